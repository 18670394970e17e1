"""Scripts that a script runs or sources are followed if they are here, and named if they are not."""

from __future__ import annotations

import pytest

from tokshard.checks.doctor.shell.interpreter import read_shell

INNER = "#!/bin/bash\n#SBATCH -N 2 --ntasks-per-node=4\nrun $1 ${SIZE:-8} $SLURM_NNODES\n"


def words(path, text: str) -> list[list[str]]:
    (path / "inner.sh").write_text(INNER)
    (path / "env.sh").write_text("SIZE=32\n")
    script = path / "launch.sh"
    script.write_text(text)
    commands = read_shell(text, path=str(script)).commands
    return [[word.text for word in command.words] for command in commands]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bash inner.sh a", ["run", "a", "8", "2"]),
        ("./inner.sh a", ["run", "a", "8", "2"]),
        ("srun -N 2 ./inner.sh a", ["run", "a", "8", "2"]),
        ("SIZE=16 bash inner.sh a", ["run", "a", "16", "2"]),
        ("env SIZE=16 ./inner.sh a", ["run", "a", "16", "2"]),
        ("export SIZE=16; ./inner.sh a", ["run", "a", "16", "2"]),
        ("SIZE=16; ./inner.sh a", ["run", "a", "8", "2"]),
        ("sbatch inner.sh a", ["run", "a", "8", "2"]),
        ("sbatch -N 4 --export=ALL,SIZE=16 inner.sh a", ["run", "a", "16", "4"]),
        (". ./env.sh; run $SIZE", ["run", "32"]),
        ("bash -s a b <<'X'\nrun $2 $1\nX", ["run", "b", "a"]),
    ],
)
def test_a_script_beside_is_followed(tmp_path, text, expected):
    assert words(tmp_path, text) == [expected]


@pytest.mark.parametrize("text", ["bash other.sh", "./other.sh", "source other.sh", "sbatch -N 2 other.sh"])
def test_a_script_that_is_not_here_is_named(tmp_path, text):
    reading = read_shell(f"{text}\nrun", path=str(tmp_path / "launch.sh"))
    assert {name.removeprefix("./") for name in reading.unread} == {"other.sh"}


def test_environments_need_no_mention(tmp_path):
    text = "source ~/.bashrc; . /opt/venv/bin/activate; source /opt/conda/etc/profile.d/conda.sh; run"
    reading = read_shell(text, path=str(tmp_path / "launch.sh"))
    assert reading.unread == ()


@pytest.mark.parametrize("command", ['source "$(dirname "$0")/env.sh"', ". ${0%/*}/env.sh", ". ./env.sh"])
def test_a_file_is_found_next_to_a_script_that_is_named_relative_to_the_directory(
    tmp_path, monkeypatch, command
):
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/env.sh").write_text("SEQ=512\n")
    monkeypatch.chdir(tmp_path)
    reading = read_shell(f"SEQ=256; {command}; run $SEQ", path="jobs/job.sh")
    assert [[word.text for word in command.words] for command in reading.commands] == [["run", "512"]]
    assert reading.unread == ()
