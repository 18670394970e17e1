"""Number of processes that a launcher starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tokshard.preflight.shell.values import Word

LAUNCHERS = frozenset({"torchrun", "torch.distributed.run", "torch.distributed.launch"})
"""Programs and modules of torch that start processes, and set WORLD_SIZE themselves."""

_MPI = frozenset({"mpirun", "mpiexec", "mpiexec.hydra", "orterun"})
_DEEPSPEED = frozenset({"deepspeed"})


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
    given = _options(words)
    names = {word.text.rsplit("/", 1)[-1] for word in words}
    found = WorldSize()
    if names & LAUNCHERS:
        return _torchrun(given, _hidden(words))
    if names & _DEEPSPEED:
        found = _deepspeed(given)
    elif "WORLD_SIZE" in given:
        found = _product(given["WORLD_SIZE"])
    elif "srun" in names:
        found = _srun(given, variables)
    elif names & _MPI:
        number = given.get("np", given.get("n"))
        found = WorldSize(None, "mpirun") if number is None else _product(number)
    if found.size is None and variables.get("WORLD_SIZE", "").isdecimal():
        return WorldSize(int(variables["WORLD_SIZE"]))
    return found


def _torchrun(given: Mapping[str, Word], hidden: Word | None) -> WorldSize:
    default = Word("1") if hidden is None else Word(hidden.text, (hidden.text,))
    return _product(given.get("nnodes", default), given.get("nproc-per-node", default))


def _hidden(words: Sequence[Word]) -> Word | None:
    # An expansion that may contain options of the launcher, and not the value of one.
    for word, before in zip(words[1:], words, strict=False):
        if word.is_open and (not before.text.startswith("-") or "=" in before.text):
            return word
    return None


def _options(words: Sequence[Word]) -> dict[str, Word]:
    found: dict[str, Word] = {}
    for word, following in zip(words, (*words[1:], Word("")), strict=False):
        name, separator, value = word.text.partition("=")
        key = name.lstrip("-").replace("_", "-") if name.startswith("-") else name
        found[key] = Word(value, word.unknown) if separator else following
    return found


def _deepspeed(given: Mapping[str, Word]) -> WorldSize:
    gpus = given.get("num-gpus")
    if gpus is None:
        return WorldSize(None, "deepspeed")
    return _product(gpus, given.get("num-nodes", Word("1")))


def _srun(given: Mapping[str, Word], variables: Mapping[str, str]) -> WorldSize:
    def option(long: str, short: str, variable: str) -> Word | None:
        word = given.get(long, given.get(short)) if short else given.get(long)
        if word is None and variable in variables:
            return Word(variables[variable])
        return word

    total = option("ntasks", "n", "")
    if total is not None:
        return _product(total)
    nodes = option("nodes", "N", "SLURM_NNODES")
    per_node = option("ntasks-per-node", "", "SLURM_NTASKS_PER_NODE")
    if nodes is not None and per_node is not None:
        return _product(nodes, per_node)
    if "SLURM_NTASKS" in variables:
        return _product(Word(variables["SLURM_NTASKS"]))
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
