"""Number of processes that a launcher starts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from tokshard.checks.doctor.shell.values import Word

LAUNCHERS = frozenset({"torchrun", "torch.distributed.run", "torch.distributed.launch"})
"""Programs and modules of torch that start processes, and set WORLD_SIZE themselves."""

_MPI = frozenset({"mpirun", "mpiexec", "mpiexec.hydra", "orterun"})
_SRUN = frozenset({"srun"})
# Launchers with their own configuration of processes, also if srun or mpirun starts them.
_OTHERS = frozenset({"accelerate", "aprun", "deepspeed", "horovodrun", "jsrun", "pdsh", "ray"})
# Programs that a launcher starts; options after their names are not the launcher's.
_STARTED = frozenset({"nice", "numactl", "taskset", "env", "docker", "podman", "singularity", "apptainer"})
_STARTED |= frozenset({"bash", "sh", "timeout", "stdbuf", "nsys"})
_PAIRS = frozenset({"mca", "gmca", "genv", "env", "prtemca"})  # mpirun's options with two values
_NUMBER = re.compile(r"0*[1-9][0-9]{0,8}")
_ATTACHED = re.compile(r"-([nN])(\d+)")

WorldSize = int | str | None
"""A number of processes, the expansion, value or launcher that decides it, or None without a launcher."""


def world_size_of(words: Sequence[Word], variables: Mapping[str, str]) -> WorldSize:
    """Return the number of processes that the words before the program start.

    Args:
        words: The launcher and its wrappers.
        variables: Variables of the job scheduler.

    Example:
        >>> world_size_of([Word(text) for text in "torchrun --nproc-per-node 8 --nnodes=4".split()], {})
        32
    """
    assigned = _assignments(words)
    if (options := _after(words, LAUNCHERS)) is not None:
        return _torchrun(options, {name: Word(text) for name, text in variables.items()} | assigned)
    size: WorldSize = None
    if "WORLD_SIZE" in assigned:
        size = _product(assigned["WORLD_SIZE"])
    elif (other := next((_name(word) for word in words if _name(word) in _OTHERS), None)) is not None:
        size = other
    elif (options := _after(words, _SRUN)) is not None:
        size = _srun(options, variables)
    elif (options := _after(words, _MPI)) is not None:
        # Several programs, which a colon separates, are one job.
        number = None if any(word.text == ":" for word in words) else _Options(options).given("np", "n", "c")
        size = "mpirun" if number is None else _product(number)
    else:
        size = next((word.unknown[0] for word in words if word.is_open), None)
    passed = _product(Word(variables.get("WORLD_SIZE", "")))
    return passed if isinstance(passed, int) and not isinstance(size, int) else size


def _after(words: Sequence[Word], names: frozenset[str]) -> Sequence[Word] | None:
    """Return the words between one of several launchers and the program that it starts, or None."""
    start = next((at + 1 for at, word in enumerate(words) if _name(word) in names), None)
    if start is None:
        return None
    end = start
    while end < len(words):
        text = words[end].text
        is_open = words[end].is_open
        if not (text.startswith("-") or is_open) or _name(words[end]) in LAUNCHERS:
            break
        values = 0 if "=" in text or is_open or _ATTACHED.fullmatch(text) else 1
        values = 2 if text.lstrip("-") in _PAIRS else values
        end += 1
        while values and end < len(words) and _may_be_value(words[end]):
            end, values = end + 1, values - 1
    return words[start:end]


def _may_be_value(word: Word) -> bool:
    return not word.text.startswith("-") and _name(word) not in _STARTED | LAUNCHERS


def _name(word: Word) -> str:
    return word.text.rsplit("/", 1)[-1]


def _assignments(words: Iterable[Word]) -> dict[str, Word]:
    pairs = ((word, *word.text.partition("=")) for word in words)
    return {
        name: Word(value, word.unknown) for word, name, sign, value in pairs if sign and name.isidentifier()
    }


class _Options:
    """The options of a launcher.

    Attributes:
        values: The values by names without hyphens, unknown if only some alternatives of a word set them.
        hidden: An expansion that may contain more options, or None.
    """

    def __init__(self, words: Sequence[Word]) -> None:
        self.values: dict[str, Word] = {}
        self.hidden: str | None = None
        for before, word, following in zip((Word(""), *words), words, (*words[1:], Word("")), strict=False):
            is_value = before.text.startswith("-") and "=" not in before.text
            if word.text.startswith("-"):
                name, sign, value = (_ATTACHED.sub(r"-\1=\2", word.text)).partition("=")
                name = name.lstrip("-").replace("_", "-")
                self.values[name] = Word(value, word.unknown) if sign else following
            elif word.is_open and not is_value:
                choices = word.choices()
                self.hidden = self.hidden if choices else word.unknown[0]
                for name in {name for choice in choices for name in _Options(choice).values}:
                    self.values[name] = Word("", word.unknown)

    def given(self, *names: str) -> Word | None:
        """Return the value of the first of several options that is given, or None."""
        return next((self.values[name] for name in names if name in self.values), None)


def _torchrun(words: Sequence[Word], environment: Mapping[str, Word]) -> WorldSize:
    options = _Options(words)
    size = 1
    for name in ("nnodes", "nproc-per-node"):
        default = environment.get(f"PET_{name.replace('-', '_').upper()}", Word("1"))
        word = options.given(name) or default
        if name not in options.values and options.hidden is not None:
            return options.hidden
        number = _product(word)
        if not isinstance(number, int):
            # A range of nodes, or "gpu": torchrun decides when it runs.
            return number if word.unknown else f"--{name} {word.text}".rstrip()
        size *= number
    return size


def _srun(words: Sequence[Word], variables: Mapping[str, str]) -> WorldSize:
    options = _Options(words)
    total = options.given("ntasks", "n")
    nodes = options.given("nodes", "N")
    per_node = options.given("ntasks-per-node")
    slurm = {name: Word(variables[name]) for name in variables if name.startswith("SLURM_")}
    if total is None and per_node is None and options.hidden is not None:
        return options.hidden
    if total is None and per_node is None and nodes is None:
        total = slurm.get("SLURM_NTASKS")
    if total is not None:
        return _product(total)
    nodes = nodes or slurm.get("SLURM_NNODES")
    per_node = per_node or slurm.get("SLURM_NTASKS_PER_NODE")
    return "srun" if nodes is None or per_node is None else _product(nodes, per_node)


def _product(*numbers: Word) -> int | str:
    result = 1
    for number in numbers:
        if number.unknown:
            return number.unknown[0]
        if not _NUMBER.fullmatch(number.text):
            return number.text or "a missing number"
        result *= int(number.text)
    return result
