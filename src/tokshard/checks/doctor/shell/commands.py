"""Commands that change the state of a shell script, or run other texts: shells, files, and job schedulers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tokshard.checks.doctor.shell.values import Value, Word, known, unknown, value_of

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

KEEPS_OUTPUT = re.compile(r"(?:2>/dev/null|<[^>]*)*")
"""Redirections without blanks after which the output of a command is its own."""

DROPS_OUTPUT = re.compile(r"(?:1?>&2|[1&]?>[>|]?(?!&|\(|/dev/(?!null))[^>]*?)(?:2>&1|2>/dev/null)?")
"""Redirections without blanks after which a command has no output."""

_OPTION_WITH_TEXT = re.compile(r"-[a-z]*c")
_DIRECTIVE = re.compile(r"#SBATCH\s+(.*)")
_INNER_COMMAND = re.compile(r"\.py[ \t\n]")
_INTERPRETERS = re.compile(r"(?:.*/)?(?:python[0-9.]*|perl)")

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
    """Yield the variables that Slurm sets for options of ``sbatch``.

    Example:
        >>> list(variables_of_options(["--nodes=4", "--gres=gpu:8"]))
        [('SLURM_NNODES', '4'), ('SLURM_JOB_NUM_NODES', '4'), ('SLURM_GPUS_ON_NODE', '8')]
    """
    for number, word in enumerate(words):
        option, separator, value = word.partition("=")
        if re.fullmatch(r"-[Nn]\d+", word):
            option, value = word[:2], word[2:]
        elif not separator:
            value = "".join(words[number + 1 : number + 2])
        if option in ("--gres", "--gpus-per-node"):
            value = value.rpartition(":")[2]
        for name in _VARIABLES.get(option, ()):
            if value.isdecimal():
                yield name, value


def nested_text(words: Sequence[Word]) -> tuple[int, Word, Sequence[Word]] | None:
    """Return the position of a shell among the words, the text that it runs, and the text's parameters."""
    shell = program_at(words, SHELLS)
    if shell is not None:
        for at in range(shell + 1, len(words) - 1):
            if not words[at].text.startswith("-"):
                break
            if _OPTION_WITH_TEXT.fullmatch(words[at].text):
                return shell, words[at + 1], words[at + 3 :]
    is_code = False  # of python -c
    for at, word in enumerate(words):
        # For example: ssh HOST "torchrun pretrain_gpt.py ...".
        known_text = "".join(piece.text for piece in value_of(word) if not piece.is_unknown)
        is_code = is_code or _INTERPRETERS.fullmatch(word.text) is not None
        if at and _INNER_COMMAND.search(known_text) and not (is_code and words[at - 1].text == "-c"):
            return at, word, ()
    return None


def assignments_of(words: Sequence[Word]) -> Iterator[tuple[str, Value]]:
    """Yield the variables that wrappers such as ``env A=1`` and ``sbatch --export=ALL,B=2`` set."""
    for word in words:
        exported = word.text.removeprefix("--export=")
        for pair in [word.text] if exported == word.text else exported.split(","):
            name, separator, text = pair.partition("=")
            if separator and name.isidentifier():
                yield name, unknown(text) if word.unknown else known(text)


def program_at(words: Sequence[Word], names: frozenset[str]) -> int | None:
    """Return the position of the first word that is one of these programs."""
    return next((at for at, word in enumerate(words) if word.text.rsplit("/", 1)[-1] in names), None)
