"""Job files: what a shell and Kubernetes make of them is the command as it was given."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tokshard.errors import UsageError
from tokshard.tokenization.job_array.job_files import (
    _ArrayJob,
    _job_directory,
    _kubernetes_manifest,
    _slurm_script,
)

words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12)
HOSTILE = ["it's", "$(HOME)", "$$", "$HOME", "`id`", "a b", '"', "\\", "#", "\n#SBATCH --array=0-9"]
HOSTILE += ["\x85", "😀", "!"]
COMMANDS = {"hostile": HOSTILE, "dashes": ["-x", "--", "-"], "plain": ["plain"]}
NAMES = {"": "tokshard", "...": "tokshard", "A" * 99: f"tokshard-{'a' * 40}"}


def job(command=(), name="web", directory="/data", tasks=8, cores=4):
    return _ArrayJob(("tokshard", "tokenize", *command), name, directory, tasks, cores)


def expanded(word: str) -> str:
    """Return what Kubernetes makes of a word: ``$$`` is ``$``, and ``$(NAME)`` would be a variable."""
    assert not re.search(r"\$\(", word.replace("$$", ""))
    return word.replace("$$", "$")


@given(command=st.lists(words | st.sampled_from(HOSTILE), max_size=6), directory=words, image=words)
def test_kubernetes_gets_the_command_word_by_word(command, directory, image):
    value = yaml.safe_load(_kubernetes_manifest(job(command, directory=f"/{directory}"), image))
    (container,) = value["spec"]["template"]["spec"]["containers"]
    given_words = [expanded(word) for word in container["command"]]
    assert given_words == ["tokshard", "tokenize", "--array-task", "auto", *command]
    assert container["workingDir"] == f"/{directory}" == container["volumeMounts"][0]["mountPath"]
    assert container["image"] == image


def test_the_manifest_is_an_indexed_job():
    value = yaml.safe_load(_kubernetes_manifest(job(name="Web_2 corpus!"), "example/image:1"))
    assert (value["apiVersion"], value["kind"]) == ("batch/v1", "Job")
    assert value["metadata"] == {"generateName": "tokshard-web-2-corpus-"}
    spec = value["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 8, 8)
    assert spec["backoffLimitPerIndex"] == 3
    pod = spec["template"]["spec"]
    assert pod["restartPolicy"] == "Never"  # or a limit for each index would be refused
    (container,) = pod["containers"]
    assert container["env"] == [{"name": "TOKSHARD_ARRAY_TASKS", "value": "8"}]
    assert container["resources"]["requests"] == {"cpu": 4, "memory": "4Gi"}
    (volume,) = pod["volumes"]
    assert volume["name"] == container["volumeMounts"][0]["name"]
    assert volume["persistentVolumeClaim"]["claimName"]


@pytest.fixture(scope="module")
def tools(tmp_path_factory):
    """A ``tokshard`` that prints its words, and a directory with a difficult name."""
    directory = tmp_path_factory.mktemp("tools")
    program = directory / "tokshard"
    program.write_text('#!/bin/sh\npwd\nprintf "%s\\0" "$@"\n')
    program.chmod(0o755)
    place = directory / "it's $(a) `place`"
    place.mkdir()
    return directory, place


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_shell_gets_the_command_word_by_word_in_the_directory(tools, command):
    directory, place = tools
    script = _slurm_script(job(command, directory=str(place)))
    done = subprocess.run(
        ["bash"],
        input=script.encode(),
        capture_output=True,
        check=True,
        env={"PATH": f"{directory}:/usr/bin:/bin"},
    )
    where, _, rest = done.stdout.partition(b"\n")
    assert where.decode() == str(place)
    assert rest.decode().split("\0") == ["tokenize", "--array-task", "auto", *command, ""]
    assert done.stderr == b""


def test_slurm_is_asked_for_what_was_said_and_nothing_else():
    script = _slurm_script(job(["\n#SBATCH --array=0-9\n"], name="x\n#SBATCH --exclusive", tasks=5, cores=7))
    lines = script.splitlines()
    assert lines[0] == "#!/bin/bash"
    head = lines[1 : lines.index("")]  # sbatch reads no further than the first command
    assert head == [
        "#SBATCH --job-name=tokshard-x-sbatch-exclusive",
        "#SBATCH --array=0-4",
        "#SBATCH --ntasks=1",
        "#SBATCH --cpus-per-task=7",
        "#SBATCH --mem-per-cpu=1G",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
    ]


def test_a_name_that_is_no_text_is_refused():
    with pytest.raises(UsageError, match="is not UTF-8"):
        job(["caf\udce9.jsonl"])
    with pytest.raises(UsageError, match="is not UTF-8"):
        job(directory="/caf\udce9")


def test_a_name_is_one_for_every_scheduler():
    assert {name: job(name=name).safe_name for name in NAMES} == NAMES


def test_the_directory_is_called_as_the_user_calls_it(tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path / "real")
    for name, found in ((tmp_path / "link", "link"), (tmp_path, "real"), (Path("real"), "real")):
        monkeypatch.setenv("PWD", str(name))
        assert _job_directory() == str(tmp_path / found)
