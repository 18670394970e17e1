"""Commands that change the state of a shell script, or run other texts: shells, files, and job schedulers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tokshard.checks.doctor.shell.conditions import ExitStatus
from tokshard.checks.doctor.shell.state import State
from tokshard.checks.doctor.shell.values import (
    Value,
    Word,
    known,
    unknown,
    unknown_variable,
    value_of,
)

SHELLS = frozenset({"bash", "sh", "zsh", "dash", "ksh"})
BATCH = frozenset({"sbatch", "salloc"})
RUNNERS = SHELLS | BATCH
"""Programs that run the script of a file or of their standard input."""

TESTS = frozenset({"grep", "egrep", "command", "type", "which", "hash", "cmp", "diff", "pgrep"})
"""Programs that scripts run for their exit status; others are expected to succeed."""

IS_SCRIPT = re.compile(r"\.(?:sh|bash|sbatch|slurm|job)$")
"""The names of shell scripts."""

_OPTION_WITH_TEXT = re.compile(r"-[a-z]*c")
_DIRECTIVE = re.compile(r"#SBATCH\s+(.*)")
_INNER_COMMAND = re.compile(r"\.py[ \t\n]")
_INTERPRETERS = re.compile(r"python[0-9.]*|perl")

_NODES = ("SLURM_NNODES", "SLURM_JOB_NUM_NODES")
_TASKS = ("SLURM_NTASKS", "SLURM_NPROCS")
_GPUS = ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE")
_VARIABLES = {
    "--nodes": _NODES,
    "-N": _NODES,
    "--ntasks": _TASKS,
    "-n": _TASKS,
    "--ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
    "--gpus-per-node": _GPUS,
    "--gres": _GPUS[:1],
}


def variables_of_directives(script: str) -> Iterator[tuple[str, str]]:
    """Yield the variables that Slurm sets for the ``#SBATCH`` lines of a script.

    Example:
        >>> list(variables_of_directives("#SBATCH --nodes=4 --gres=gpu:8"))
        [('SLURM_NNODES', '4'), ('SLURM_JOB_NUM_NODES', '4'), ('SLURM_GPUS_ON_NODE', '8')]
    """
    for line in script.splitlines():
        if line.strip() and not line.startswith("#"):
            return  # sbatch reads the comments before the first command
        match = _DIRECTIVE.match(line)
        yield from variables_of_options(("" if match is None else match[1]).partition(" #")[0].split())


def variables_of_options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the variables that Slurm sets for options of ``sbatch``."""
    for number, word in enumerate(words):
        option, separator, value = word.partition("=")
        if re.fullmatch(r"-[Nn]\d+", word):
            option, value = word[:2], word[2:]
        elif not separator:
            value = words[number + 1] if number + 1 < len(words) else ""
        if option in ("--gres", "--gpus-per-node"):
            value = value.rpartition(":")[2]
        for name in _VARIABLES.get(option, ()):
            if value.isdecimal():
                yield name, value


def nested_text(words: Sequence[Word]) -> tuple[int, Word, Sequence[Word]] | None:
    """Return the position of a shell among the words, the text that it runs, and the text's parameters.

    Example:
        >>> nested_text([Word("srun"), Word("bash"), Word("-c"), Word("run $0 $1"), Word("x"), Word("y")])
        (1, Word(text='run $0 $1', unknown=(), is_open=False), [Word(text='y', unknown=(), is_open=False)])
    """
    shell = program_at(words, SHELLS)
    if shell is not None:
        for at in range(shell + 1, len(words) - 1):
            if not words[at].text.startswith("-"):
                break
            if _OPTION_WITH_TEXT.fullmatch(words[at].text):
                return shell, words[at + 1], list(words[at + 3 :])
    for at, word in enumerate(words):
        # For example: ssh HOST "torchrun pretrain_gpt.py ...".
        known_text = "".join(piece.text for piece in value_of(word) if not piece.is_unknown)
        is_code = words[at - 1].text == "-c" and any(map(_is_interpreter, words[:at]))
        if at and _INNER_COMMAND.search(known_text) and not is_code:
            return at, word, ()
    return None


def _is_interpreter(word: Word) -> bool:
    return _INTERPRETERS.fullmatch(word.text.rsplit("/", 1)[-1]) is not None


def assignments_of(words: Sequence[Word]) -> Iterator[tuple[str, Value]]:
    """Yield the variables that wrappers set for the shell that they run.

    Example:
        >>> words = [Word("env"), Word("A=1"), Word("sbatch"), Word("--export=ALL,B=2")]
        >>> [name for name, _ in assignments_of(words)]
        ['A', 'B']
    """
    for word in words:
        exported = word.text.removeprefix("--export=")
        for pair in [word.text] if exported == word.text else exported.split(","):
            name, separator, text = pair.partition("=")
            if separator and name.isidentifier():
                yield name, unknown(text) if word.unknown else known(text)


def program_at(words: Sequence[Word], names: frozenset[str]) -> int | None:
    """Return the position of the first word that is one of these programs."""
    for at, word in enumerate(words):
        if word.text.rsplit("/", 1)[-1] in names:
            return at
    return None


# They change no variables, and run nothing.
_SILENT = frozenset({"echo", "printf", "cd", "pushd", "popd", "module", "ulimit", "umask", "wait", "trap"})


def run_builtin(words: Sequence[Word], text: str | None, state: State) -> ExitStatus | None:
    """Run a command of the shell itself; None if it is not one.

    Args:
        words: The command.
        text: Its here-document, if it has one.
        state: The state of the script, which the command changes.
    """
    name, operands = words[0].text, words[1:]
    if name in ("true", "false", ":"):
        return ExitStatus(name != "false")
    if name in ("exit", "return", "break", "continue"):
        state.flow = name
    elif name == "set":
        _set_parameters(operands, state)
    elif name == "shift":
        return _shift(operands, state)
    elif name == "unset":
        for word in operands:
            variable, bracket, _ = word.text.partition("[")
            state.assign(variable, unknown_variable(variable, ("`unset`",)) if bracket else ())
            state.exported -= {variable}
    elif name in ("read", "mapfile", "readarray", "getopts"):
        _read(operands, text, state)
    elif name not in _SILENT:
        return None
    elif [word.text for word in operands[:1]] == ["-v"]:  # printf
        state.forget((word.text for word in operands[1:2]), ("`printf`",))
    return ExitStatus.of_program(name)


def _read(operands: Sequence[Word], text: str | None, state: State) -> None:
    names = [word.text for word in operands if word.text.isidentifier()]
    state.forget(names, ("`read`",))
    if text is not None and len(names) == 1 and Word("-d") in operands:
        # read -d '' NAME <<END: the whole text
        state.assign(names[0], (known(text.strip()),))


def _set_parameters(operands: Sequence[Word], state: State) -> None:
    if Word("--") in operands:
        words = operands[list(operands).index(Word("--")) + 1 :]
        state.parameters = parameters_of(words)


def parameters_of(words: Sequence[Word]) -> tuple[Value, ...] | None:
    """Return the positional parameters that words become; None if their number is unknown."""
    return None if any(word.is_open for word in words) else tuple(map(value_of, words))


def _shift(operands: Sequence[Word], state: State) -> ExitStatus:
    count = operands[0].text if operands else "1"
    if state.parameters is None or not count.isdecimal():
        state.parameters = None
        return ExitStatus.of_program("shift")
    if int(count) > len(state.parameters):
        return ExitStatus(False)
    state.parameters = state.parameters[int(count) :]
    return ExitStatus(True)
