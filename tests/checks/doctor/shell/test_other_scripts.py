"""Scripts that a script runs or sources are followed if they are here, and named if they are not."""

from __future__ import annotations

import subprocess

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
    reading = read_shell(f"SEQ=256; {command}; run $SEQ", path="jobs/job")
    assert [[word.text for word in command.words] for command in reading.commands] == [["run", "512"]]
    assert reading.unread == ()


OWN_DIRECTORY = [
    "$(dirname $0)",
    '"$(dirname -- "$0")"',
    "${0%/*}",
    "$0",
    '"${BASH_SOURCE[0]}" $BASH_SOURCE ${BASH_SOURCE}',
    "$(basename $0) $(basename $0 .sh)",
    '$(readlink -f "$0") $(realpath $0)',
    '"$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")"',
    '$(cd "$(dirname "$0")" && pwd)',
    '$(cd "$(dirname "$0")"; pwd)',
    '$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)',
    '$(cd -P "$(dirname "$0")" && pwd -P)',
    '$(cd -L "$(dirname "$0")" && pwd -L)',
    '$( cd -- "$( dirname -- "${BASH_SOURCE[0]}" )" &> /dev/null && pwd )',
    '$(cd "$(dirname "$0")" >/dev/null 2>&1 && pwd)',
    '$(cd "$(dirname "$0")" > /dev/null 2>&1; pwd -P)',
    '$(builtin cd "$(dirname "$0")" && builtin pwd)',
    '$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)',
    '$(unset CDPATH; cd "$(dirname "$0")" && pwd)',
    '$(pushd "$(dirname "$0")" > /dev/null && pwd)',
    '$(cd "$(dirname "$0")" && echo $PWD)',
    '$(cd "$(dirname "$0")/.." && pwd)/jobs',
    '`cd "\\`dirname "$0"\\`" && pwd`',
    '$(dirname "$(realpath "$0")") "$PWD" $(pwd)',
    '"$(cd "${0%/*}" || exit 1; pwd)"',
    "$(cd ${BASH_SOURCE[0]%/*} && cd .. && pwd)",
]


@pytest.mark.parametrize("words", OWN_DIRECTORY)
@pytest.mark.parametrize("start", ["", 'cd "$(dirname "$0")/.."; ', "set -euo pipefail; "])
def test_a_script_knows_its_directory_in_all_usual_spellings(tmp_path, monkeypatch, words, start):
    (tmp_path / "jobs").mkdir()
    monkeypatch.chdir(tmp_path)
    text = f"{start}run() {{ printf '%s\\n' \"$@\"; }}\nrun {words}\n"
    (tmp_path / "jobs/job").write_text(text)
    done = subprocess.run(["bash", "jobs/job"], capture_output=True, text=True, timeout=20, check=True)
    script = text.replace("run() { printf '%s\\n' \"$@\"; }", "")
    (command,) = (c for c in read_shell(script, path="jobs/job").commands if c.words[0].text == "run")
    assert [word.text for word in command.words[1:]] == done.stdout.splitlines()


def test_a_sourced_file_has_a_path_and_parameters_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/env.sh").write_text('HERE=$(dirname "${BASH_SOURCE[0]}")\nONE=$1\nreturn\nONE=no\n')
    text = "set -- x; source lib/env.sh a; run $HERE $ONE $1 $BASH_SOURCE"
    (command,) = read_shell(text, path="job.sh").commands
    assert [word.text for word in command.words] == ["run", "lib", "a", "x", "job.sh"]


@pytest.mark.parametrize(
    "tool", ["cp $0 logs", "cat $0 > copy", "chmod +x ./job.sh", "git add $0", "rsync -a job.sh x:"]
)
def test_a_script_that_is_copied_is_not_run(tmp_path, monkeypatch, tool):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.sh").write_text(f"{tool}\nrun\n")
    commands = read_shell(f"{tool}\nrun\n", path="job.sh").commands
    assert [command.words[0].text for command in commands] == [tool.split()[0], "run"]


@pytest.mark.parametrize(
    "tool", ["md5sum $0", "logger ./job.sh", "wandb save $0", "source $0", "bash $0 x", "exec ./$0"]
)
def test_a_script_that_names_itself_is_read_once(tmp_path, monkeypatch, tool):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.sh").write_text(f"run\n[ $X ] && {tool}\n")
    reading = read_shell(f"run\n[ $X ] && {tool}\n", path="job.sh")
    assert [command.words[0].text for command in reading.commands].count("run") in (1, 2)
    assert ("job.sh" in reading.unread) == tool.startswith("bash")


@pytest.mark.parametrize("text", ["bash other.sh", "bash -c 'source other.sh'"])
def test_a_script_that_is_not_a_file_names_what_it_runs(text):
    assert read_shell(text).unread == ("other.sh",)
