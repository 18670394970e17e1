"""Number of processes that a launcher starts."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tokshard.checks.doctor.shell.values import Word

LAUNCHERS = frozenset({"torchrun", "torch.distributed.run", "torch.distributed.launch"})
"""Programs and modules of torch that start processes, and set WORLD_SIZE themselves."""

_MPI = frozenset({"mpirun", "mpiexec", "mpiexec.hydra", "orterun"})
_SRUN = frozenset({"srun"})
# They start processes by a configuration of their own, also those that srun or mpirun starts.
_OTHERS = frozenset({"accelerate", "aprun", "deepspeed", "horovodrun", "jsrun", "pdsh", "ray"})

# Programs that a launcher starts; the options after them are their own.
_STARTED = frozenset({"nice", "numactl", "taskset", "env", "docker", "podman", "singularity", "apptainer"})
_STARTED |= frozenset({"bash", "sh", "timeout", "stdbuf", "nsys"})
_PAIRS = frozenset({"mca", "gmca", "genv", "env", "prtemca"})  # mpirun's options with two values
_ATTACHED = re.compile(r"-([nN])(\d+)")


@dataclass(frozen=True, slots=True)
class WorldSize:
    """The number of processes of a job.

    Attributes:
        size: The number; None if it is unknown.
        reason: The expansion or value that makes it unknown, as it is written; None if no launcher is there.
    """

    size: int | None = None
    reason: str | None = None


def world_size_of(words: Sequence[Word], variables: Mapping[str, str]) -> WorldSize:
    """Return the number of processes that the words before the program start.

    Args:
        words: The launcher and its wrappers.
        variables: Known variables of the job scheduler.

    Example:
        >>> words = [Word(text) for text in "torchrun --nproc-per-node 8 --nnodes=4".split()]
        >>> world_size_of(words, {})
        WorldSize(size=32, reason=None)
    """
    found = WorldSize()
    environment = {name: Word(text) for name, text in variables.items()} | _assignments(words)
    if (options := _after(words, LAUNCHERS)) is not None:
        return _torchrun(options, environment)
    if "WORLD_SIZE" in _assignments(words):
        found = _product(environment["WORLD_SIZE"])
    elif (other := next((_name(word) for word in words if _name(word) in _OTHERS), None)) is not None:
        found = WorldSize(None, other)
    elif (options := _after(words, _SRUN)) is not None:
        found = _srun(options, variables)
    elif (options := _after(words, _MPI)) is not None:
        found = _mpi(options, words)
    elif (unknown := next((word for word in words if word.is_open), None)) is not None:
        found = WorldSize(None, unknown.unknown[0])
    if found.size is None and variables.get("WORLD_SIZE", "").isdecimal():
        return WorldSize(int(variables["WORLD_SIZE"]))
    return found


def _after(words: Sequence[Word], names: frozenset[str]) -> Sequence[Word] | None:
    # The words between a launcher and what it starts; None if none of the words is a launcher.
    at = next((at for at, word in enumerate(words) if _name(word) in names), None)
    if at is None:
        return None
    start = end = at + 1
    while end < len(words):
        text = words[end].text
        if not (text.startswith("-") or words[end].is_open) or _name(words[end]) in LAUNCHERS:
            break
        values = 0 if "=" in text or words[end].is_open or _ATTACHED.fullmatch(text) else 1
        values = 2 if text.lstrip("-") in _PAIRS else values
        end += 1
        while values and end < len(words) and _may_be_value(words[end]):
            end, values = end + 1, values - 1
    return words[start:end]


def _may_be_value(word: Word) -> bool:
    return not word.text.startswith("-") and _name(word) not in _STARTED | LAUNCHERS


def _name(word: Word) -> str:
    return word.text.rsplit("/", 1)[-1]


def _assignments(words: Sequence[Word]) -> dict[str, Word]:
    found = {}
    for word in words:
        name, separator, value = word.text.partition("=")
        if separator and name.isidentifier():
            found[name] = Word(value, word.unknown)
    return found


def _options(words: Sequence[Word]) -> dict[str, Word]:
    found: dict[str, Word] = {}
    for word, following in zip(words, (*words[1:], Word("")), strict=False):
        if not word.text.startswith("-"):
            continue
        if (attached := _ATTACHED.fullmatch(word.text)) is not None:
            found[attached[1]] = Word(attached[2])
            continue
        name, separator, value = word.text.partition("=")
        found[name.lstrip("-").replace("_", "-")] = Word(value, word.unknown) if separator else following
    return found


def _hidden(
    words: Sequence[Word], options: Collection[str], others: Collection[str] = ()
) -> WorldSize | None:
    """Return the reason why options of a launcher are unknown; None if they are given or absent.

    Args:
        words: The words of the launcher.
        options: Names of one option.
        others: Names of options that only known alternatives of an expansion may set.
    """
    given = _options(words).keys() & options
    for word, before in zip(words, (Word(""), *words), strict=False):
        if word.is_open and (not before.text.startswith("-") or "=" in before.text):
            choices = word.choices()
            may_replace = any(_options(choice).keys() & {*options, *others} for choice in choices)
            if may_replace or not (given or choices):
                return WorldSize(None, word.unknown[0])
    return None


def _torchrun(words: Sequence[Word], environment: Mapping[str, Word]) -> WorldSize:
    size = 1
    for option in ("nnodes", "nproc-per-node"):
        if (hidden := _hidden(words, {option})) is not None:
            return hidden
        default = environment.get(f"PET_{option.replace('-', '_').upper()}", Word("1"))
        word = _options(words).get(option, default)
        part = _product(word)
        if part.size is None:
            # A range of nodes, or "gpu": torchrun decides when it runs.
            return part if word.unknown else WorldSize(None, f"--{option} {word.text}".rstrip())
        size *= part.size
    return WorldSize(size)


def _mpi(words: Sequence[Word], command: Sequence[Word]) -> WorldSize:
    given = _options(words)
    number = given.get("np", given.get("n", given.get("c")))
    if number is None or any(word.text == ":" for word in command):
        return WorldSize(None, "mpirun")
    return _product(number)


def _srun(words: Sequence[Word], variables: Mapping[str, str]) -> WorldSize:
    given = _options(words)
    slurm = {name: Word(variables[name]) for name in variables if name.startswith("SLURM_")}
    total = given.get("ntasks", given.get("n"))
    nodes = given.get("nodes", given.get("N"))
    per_node = given.get("ntasks-per-node")
    others = {"ntasks", "n"} if total else {"ntasks", "n", "nodes", "N"}
    if (hidden := _hidden(words, others if total else {"ntasks-per-node"}, others)) is not None:
        return hidden
    if total is not None:
        return _product(total)
    if per_node is None and nodes is None and "SLURM_NTASKS" in slurm:
        return _product(slurm["SLURM_NTASKS"])
    nodes = nodes or slurm.get("SLURM_NNODES")
    per_node = per_node or slurm.get("SLURM_NTASKS_PER_NODE")
    if nodes is not None and per_node is not None:
        return _product(nodes, per_node)
    return WorldSize(None, "srun")


def _product(*numbers: Word) -> WorldSize:
    result = 1
    for number in numbers:
        if number.unknown:
            return WorldSize(None, number.unknown[0])
        if not number.text.isdecimal() or int(number.text) < 1:
            return WorldSize(None, number.text or "a missing number")
        result *= int(number.text)
    return WorldSize(result)
