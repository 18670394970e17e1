"""Completion in a shell, asked as the script of the shell asks it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from support.command_line import tokshard

INSTALLED = {
    "bash": ".bash_completions/tokshard.sh",
    "zsh": ".zfunc/_tokshard",
    "fish": ".config/fish/completions/tokshard.fish",
}
"""The file that each shell reads, in the home directory."""


@pytest.fixture
def command(tmp_path):
    """Return an environment with a tokshard command on its PATH."""
    path = tmp_path / "bin" / "tokshard"
    path.parent.mkdir()
    path.write_text(
        f"#!{sys.executable}\nimport sys; sys.argv[0] = 'tokshard'\n"
        "from tokshard.cli.main import main\nmain()\n"
    )
    path.chmod(0o755)
    return {**os.environ, "HOME": str(tmp_path), "PATH": f"{path.parent}:{os.environ['PATH']}"}


ASKED = {
    "tok": {"tokenize"},
    "--ver": {"--version"},
    "sha": {"shard-plan"},
    "tokenize --max": {"--max-errors", "--max-document-bytes", "--max-tokens"},
    "tokenize x --on-error ": {"fail", "skip"},
    "shard-plan x --mode c": {"cyclic", "contiguous", "chunked"},
    "verify --level d": {"digest", "deep"},
}


@pytest.mark.parametrize("line", ASKED)
def test_bash_completes(line, command):
    words = ["tokshard", *line.split()] + ([""] if line.endswith(" ") else [])
    program = (
        'eval "$(tokshard --show-completion)"\n'
        f"COMP_WORDS=({' '.join(repr(word) for word in words)})\nCOMP_CWORD={len(words) - 1}\n"
        "$(complete -p tokshard | sed 's/.*-F \\([^ ]*\\).*/\\1/') tokshard\n"
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", program], env=command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert set(done.stdout.split()) == ASKED[line]


@pytest.mark.parametrize("line", ASKED)
def test_zsh_and_fish_are_answered(line):
    zsh = {"_TOKSHARD_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": f"tokshard {line}"}
    done = tokshard(env=zsh)
    assert done.returncode == 0, done.stderr
    assert all(f'"{word}"' in done.stdout for word in ASKED[line])
    fish = {**zsh, "_TOKSHARD_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    done = tokshard(env=fish)
    assert done.returncode == 0, done.stderr
    assert {row.split("\t")[0] for row in done.stdout.splitlines()} == ASKED[line]


@pytest.mark.parametrize("shell", INSTALLED)
def test_a_script_is_installed_for_the_shell_that_runs_the_command(shell, command, tmp_path):
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    # Without a second command, the shell may replace itself by the first one.
    program = "tokshard --install-completion && tokshard --show-completion && true"
    done = subprocess.run([shell, "-c", program], env=command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    path = tmp_path / INSTALLED[shell]
    script = path.read_text()
    assert "_TOKSHARD_COMPLETE=complete_" in script
    assert done.stdout.endswith(script.rstrip() + "\n")
    assert subprocess.run([shell, "-n", path], check=False).returncode == 0


def test_completion_of_a_command_imports_no_command():
    code = (
        "import sys; from tokshard.cli.main import COMMANDS, main\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert stop.code == 0\n"
        "names = {f'tokshard.cli.{entry.module}' for entry in COMMANDS.values()}\n"
        "assert not names & sys.modules.keys(), names & sys.modules.keys()"
    )
    asked = {"_TOKSHARD_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "tokshard "}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **asked}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert '"shard-plan":"Plan which samples each rank of a training job reads at each step."' in done.stdout
