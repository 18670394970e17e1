"""The workflow of docs/how-to/ci.md: it is one, and its steps do what the page says."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from support.command_line import SAMPLE

PAGE = Path(__file__).parents[1] / "docs/how-to/ci.md"
HOSTILE = "corpus/a%,:\x1b[31m\n::error::<b>|`x`.jsonl"


def block(language):
    """Return the only block of a language on the page."""
    (text,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return text


@pytest.fixture(scope="module")
def workflow():
    return yaml.safe_load(block("yaml"))


@pytest.fixture(scope="module")
def steps(workflow):
    return {step["name"]: step["run"] for step in workflow["jobs"]["data"]["steps"] if "run" in step}


class Runner:
    """A machine with a checkout, on which steps are run as GitHub runs them."""

    def __init__(self, directory, workflow, steps):
        self.directory = directory
        self.summary = directory / "summary.md"
        self._steps = steps
        (directory / "corpus").mkdir()
        (directory / "ci").mkdir()
        (directory / "bin").mkdir()
        shutil.copy(SAMPLE / "tokenizer.json", directory)
        shutil.copy(SAMPLE / "stories.jsonl", directory / "corpus")
        (directory / "ci/report.py").write_text(block("python"))
        (directory / "launch.sh").write_text(block("bash"))
        for name, program in (
            ("python3", '"$@"'),
            ("tokshard", "-c 'from tokshard.cli.main import main; main()' \"$@\""),
        ):
            path = directory / "bin" / name
            path.write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} {program}\n")
            path.chmod(0o755)
        job = workflow["jobs"]["data"]
        assert job["defaults"]["run"]["shell"] == "bash"
        self._environment = {
            **os.environ,
            "PATH": f"{directory / 'bin'}:{os.environ['PATH']}",
            "GITHUB_STEP_SUMMARY": str(self.summary),
        }

    def step(self, name):
        """Run a step; returns its exit code and what it printed."""
        script = self.directory / "step.sh"
        script.write_text(self._steps[name])
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)]
        done = subprocess.run(
            command,
            cwd=self.directory,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout

    def report(self):
        """Run the last step; returns its annotations and the summary."""
        code, printed = self.step("Report")
        assert code == 0, printed
        lines = printed.splitlines()
        assert all(re.match(r"::(error|warning|notice) .*::", line) for line in lines), printed
        return lines, self.summary.read_text()


WORK = ("Tokenize", "Verify", "Build the indexes", "Check that the job will find them")


@pytest.fixture
def runner(tmp_path, workflow, steps):
    return Runner(tmp_path, workflow, steps)


def test_the_workflow_is_one(workflow, steps):
    assert workflow.keys() == {"name", True, "permissions", "jobs"}  # YAML reads "on" as a truth value
    assert workflow[True].keys() == {"push", "pull_request"}
    for step in workflow["jobs"]["data"]["steps"]:
        assert ("run" in step) != ("uses" in step)
        assert step.keys() <= {"name", "run", "uses", "with", "if"}
        assert re.fullmatch(r"actions/[a-z-]+@v\d+", step.get("uses", "actions/x@v1"))
    assert tuple(steps) == ("Install", *WORK, "Report")
    assert steps["Install"] == "pip install wheels/tokshard-*.whl"


def test_all_steps_succeed_and_the_summary_says_so(runner):
    with (runner.directory / "corpus/stories.jsonl").open("a") as corpus:
        corpus.write('{"text": 7}\n')
    for name in WORK:
        assert runner.step(name)[0] == 0, runner.step(name)
    annotations, summary = runner.report()
    assert annotations == [
        "::warning file=corpus/stories.jsonl,line=431,title=field-type::" + annotations[0].split("::")[2]
    ]
    rows = [line.split(" | ") for line in summary.splitlines()[2:]]
    assert [row[0] for row in rows] == ["| 1-tokenize", "| 2-verify", "| 3-blend", "| 4-doctor"]
    manifest = json.loads((runner.directory / "data/web.tokshard/manifest.json").read_text())
    tokens = manifest["counts"]["tokens"]
    assert rows[0][1] == f"430 documents, {tokens:,} tokens, 1 records rejected |"
    assert rows[1][1] == "sound |"
    assert rows[3][1] == "sound |"


def test_a_damaged_dataset_fails_its_step_and_is_annotated(runner):
    assert runner.step("Tokenize")[0] == 0
    victim = runner.directory / "data/web.bin"
    content = bytearray(victim.read_bytes())
    content[1000] ^= 1
    victim.write_bytes(content)
    assert runner.step("Verify")[0] == 1
    annotations, summary = runner.report()
    assert any(line.startswith("::error file=data/web.bin,title=") for line in annotations), annotations
    assert "| 2-verify | 1 findings |" in summary


def test_a_stale_cache_fails_its_step_and_is_annotated(runner):
    assert [runner.step(name)[0] for name in WORK[:3]] == [0, 0, 0]
    victim = next((runner.directory / "mix/cache").glob("*-GPTDataset-train-shuffle_index.npy"))
    victim.unlink()
    assert runner.step(WORK[3])[0] == 1
    annotations, summary = runner.report()
    assert [line.split("::")[1] for line in annotations] == ["warning title=cache-missing"]
    message = "the job will build 1 of 2 indexes (train of data/web): train of data/web is incomplete: "
    assert message in annotations[0]
    assert "| 4-doctor | 1 findings |" in summary


def test_a_failure_is_annotated_at_its_line(runner):
    (runner.directory / "tokenizer.json").write_text("{")
    assert runner.step("Tokenize")[0] == 3
    annotations, summary = runner.report()
    assert [line.partition("::")[2].split(" ")[0] for line in annotations] == ["error"]
    assert "| 1-tokenize | failed&#58; " in summary


def test_a_wrong_command_line_is_annotated(runner, steps):
    runner._steps = {**steps, "Tokenize": steps["Tokenize"].replace("--on-error skip", "--on-error never")}
    assert runner.step("Tokenize")[0] == 2
    annotations, _ = runner.report()
    assert len(annotations) == 1
    assert annotations[0].startswith("::error title=UsageError::")
    assert "'never'" in annotations[0]


def test_names_from_data_become_neither_commands_nor_markup(runner):
    (runner.directory / HOSTILE).write_text('{"text": "a"}\n{"text": null}\n')
    code, printed = runner.step("Tokenize")
    assert code == 0
    assert not [line for line in printed.splitlines() if line.startswith("::")]
    annotations, _ = runner.report()
    assert [line.split(" ")[0] for line in annotations] == ["::warning"]
    assert "file=corpus/a%25%2C%3A\\x1b[31m\\n%3A%3Aerror%3A%3A<b>|`x`.jsonl,line=2," in annotations[0]
    (runner.directory / HOSTILE).write_text("7\n")
    shutil.rmtree(runner.directory / "data")
    runner._steps = {**runner._steps, "Tokenize": runner._steps["Tokenize"].replace("skip", "fail")}
    runner.summary.unlink()
    assert runner.step("Tokenize")[0] == 3
    annotations, summary = runner.report()
    assert len(annotations) == 1
    assert not set("<>`\x1b") & set(summary)
    assert {line.count("|") for line in summary.splitlines()} == {3}


def test_the_line_for_other_places_runs(runner, workflow):
    assert [runner.step(name)[0] for name in WORK] == [0, 0, 0, 0]
    runner._steps = {"elsewhere": block("sh")}
    code, printed = runner.step("elsewhere")
    assert (code, printed.splitlines()[0]) == (
        0,
        "no problems found: the job will find its 2 cached indexes",
    )
