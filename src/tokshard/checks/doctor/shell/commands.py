"""Commands that change the state of a shell script, or run other texts: shells, files, and job schedulers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tokshard.checks.doctor.shell.syntax import Node
from tokshard.checks.doctor.shell.values import (
    Value,
    Word,
    known,
    unknown,
    value_of,
)

SHELLS = frozenset({"bash", "sh", "zsh", "dash", "ksh"})
BATCH = frozenset({"sbatch", "salloc"})
ELSEWHERE = frozenset({"ssh", "pdsh", "docker", "podman", "singularity", "apptainer", "enroot", "kubectl"})
"""Programs that run commands in another directory, or for another user."""

CHANGES_DIRECTORY = re.compile(r"--chdir|-D|--container|--workdir|--wdir|-wdir|-C$")
"""Options of launchers that change the current directory."""

RUNNERS = SHELLS | BATCH
"""Programs that run the script of a file or of their standard input."""

TESTS = frozenset({"grep", "egrep", "command", "type", "which", "hash", "cmp", "diff", "pgrep"})
"""Programs that scripts run for their exit status; others are expected to succeed."""

FILE_TOOLS = frozenset(
    {"cp", "mv", "rm", "ln", "ls", "cat", "chmod", "rsync", "scp", "git", "sed", "head", "test"}
)
"""Programs whose operands are files that they do not run."""

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


def keeps_output(redirections: Sequence[Node]) -> bool | None:
    """Return whether the output of a command with these redirections is its own; None if that is unknown."""
    is_kept = True
    for redirection in redirections:
        sign = redirection["Op"]
        parts = (redirection.get("Word") or {}).get("Parts", ())
        target = parts[0].get("Value", "") if parts else ""
        number = (redirection.get("N") or {}).get("Value", "1" if ">" in sign else "0")
        if number == "1" and ">" in sign:
            if target == "1" or (target.startswith("/dev/") and target != "/dev/null"):
                return None
            is_kept = False
        elif number != "0" and is_kept and target != "/dev/null":
            return None  # errors become output, or files are exchanged
    return is_kept


def directives_of(script: str) -> list[str]:
    """Return the words of the ``#SBATCH`` lines of a script: ``--nodes=4``, ``-N``, ``4``."""
    words = list[str]()
    for line in script.splitlines():
        if line.strip() and not line.startswith("#"):
            break  # sbatch reads the comments before the first command
        if (match := _DIRECTIVE.match(line)) is not None:
            words += match[1].partition(" #")[0].split()
    return words


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
