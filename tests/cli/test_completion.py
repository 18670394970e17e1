"""Completion in a shell, asked as the script of the shell asks it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from support.command_line import tokshard

SHELLS = ("bash", "zsh", "fish")


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
    return {**os.environ, "PATH": f"{path.parent}:{os.environ['PATH']}"}


ASKED = {
    "tok": {"tokenize"},
    "--ver": {"--version"},
    "sha": {"shard-plan"},
    "tokenize --max": {"--max-errors", "--max-document-bytes", "--max-tokens"},
    "tokenize x --on-error ": {"fail", "skip"},
    "shard-plan x --mode c": {"cyclic", "contiguous", "chunked"},
    "verify --level d": {"digest", "deep"},
    "completion ": {*SHELLS},
}


@pytest.mark.parametrize("line", ASKED)
def test_bash_completes(line, command):
    words = ["tokshard", *line.split()] + ([""] if line.endswith(" ") else [])
    program = (
        'eval "$(tokshard completion bash)"\n'
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


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_is_valid(shell, tmp_path):
    script = tokshard("completion", shell)
    assert (script.returncode, script.stderr) == (0, "")
    assert "_TOKSHARD_COMPLETE=complete_" in script.stdout
    if (program := shutil.which(shell)) is None:
        pytest.skip(f"there is no {shell}")
    path = tmp_path / "script"
    path.write_text(script.stdout)
    assert subprocess.run([program, "-n", path], check=False).returncode == 0


def test_an_unknown_shell_is_refused():
    done = tokshard("completion", "tcsh")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: the shell must be bash, zsh or fish, got 'tcsh'\n")
