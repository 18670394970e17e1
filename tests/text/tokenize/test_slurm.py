"""Job arrays on a real Slurm: two nodes of one machine, started and stopped by ``scripts/slurm_cluster``."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from faults.processes import TOKENIZER, make_corpus
from support.array_corpora import content
from support.command_line import json_of, tokshard

ROOT = Path(__file__).parents[3]
CLUSTER = ROOT / "scripts/slurm_cluster"
COMMANDS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "squeue")
PATIENCE_SECONDS = 200.0

absent = [name for name in COMMANDS if shutil.which(name) is None]
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="Slurm's daemons need root"),
    pytest.mark.skipif(bool(absent), reason=f"not installed (apt-get install slurm-wlm munge): {absent}"),
]


def run(*command, directory=None, environment=None):
    done = subprocess.run(
        [str(word) for word in command],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


class Cluster:
    """The commands of Slurm, in a directory with a corpus."""

    def __init__(self, configuration, directory):
        self.directory = directory
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
        self.environment = {**kept, "PATH": path, "SLURM_CONF": str(configuration)}

    def run(self, *command):
        return run(*command, directory=self.directory, environment=self.environment)

    def submit(self, script, *options):
        return self.run("sbatch", "--parsable", *options, script).strip()

    def wait(self, condition):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < deadline, self.run("squeue") + self.logs()
            time.sleep(0.05)

    def wait_for_jobs(self):
        self.wait(lambda: not self.run("squeue", "--noheader"))

    def logs(self):
        return "\n".join(f"{path.name}: {path.read_text()}" for path in self.directory.glob("slurm-*.out"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    # A socket's path must be short; and the daemons write to disk before they answer, which may be busy.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    place = Path(tempfile.mkdtemp(prefix="slurm-", dir=memory))
    try:
        run(CLUSTER, "start", place / "c")
        try:
            directory = tmp_path_factory.mktemp("array")
            make_corpus(directory / "corpus.jsonl", 2)
            run("gzip", "-kn", "corpus.jsonl", directory=directory)
            yield Cluster(place / "c/slurm.conf", directory)
        finally:
            run(CLUSTER, "stop", place / "c")
    finally:
        shutil.rmtree(place)


HEADER = """#!/bin/bash
#SBATCH --array=0-7
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=1
#SBATCH --requeue
#SBATCH --open-mode=append

"""
TASK = '--workers 1 --array-task "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT"'
OPTIONS = ["--unit-size", "100kB", "--encoder", "reference", "--tokenizer", TOKENIZER]


def words_of(*command):
    return shlex.join(str(word) for word in ("tokshard", *command))


def test_the_scripts_of_the_docs_survive_killed_tasks_and_make_the_bytes_of_a_local_run(cluster):
    command = ["tokenize", "corpus.jsonl", "corpus.jsonl.gz", "-o", "out/x", *OPTIONS]
    script = cluster.directory / "encode.sh"
    script.write_text(f"{HEADER}exec {words_of(*command)} {TASK}\n")
    job = cluster.submit(script, "--hold")
    cluster.run("scancel", f"{job}_[6-7]")
    cluster.run("scontrol", "release", job)
    cluster.wait(lambda: list(cluster.directory.glob("out/x.tokshard/work/parts/*.part")))
    cluster.run("scancel", "--signal=KILL", f"{job}_[2-3]")
    cluster.wait_for_jobs()
    refused = tokshard(*command, "--finish", cwd=cluster.directory)
    assert refused.returncode == 1, cluster.logs()
    assert "not finished" in refused.stderr
    again = cluster.submit(script, "--array=0-2")
    cluster.run("sbatch", f"--dependency=afterok:{again}", "--wrap", words_of(*command, "--finish"))
    cluster.wait_for_jobs()
    local = tokshard(*command[:4], "local/x", *OPTIONS, cwd=cluster.directory)
    assert local.returncode == 0, local.stderr
    assert content(cluster.directory / "out/x") == content(cluster.directory / "local/x"), cluster.logs()
    assert "task 0 of 3" in cluster.logs()


def test_the_tasks_of_one_job_step_share_the_work(cluster):
    command = ["tokenize", "corpus.jsonl", "-o", "step/x", *OPTIONS]
    task = f'{words_of(*command)} --workers 1 --json --array-task "$SLURM_PROCID/$SLURM_NTASKS"'
    cluster.run("srun", "--ntasks=4", "--output=step-%t.json", "--error=step-%t.txt", "sh", "-c", task)
    reports = [json.loads(path.read_text()) for path in cluster.directory.glob("step-*.json")]
    assert sorted(report["task"] for report in reports) == [0, 1, 2, 3]
    assert {(report["tasks"], report["state"]) for report in reports} == {(4, "encoded")}
    assert sum(report["units"] for report in reports) > 4
    done = json_of(tokshard(*command, "--finish", "--json", cwd=cluster.directory))
    assert done["action"] == "written"


def test_an_array_that_is_not_numbered_from_0_is_refused(cluster):
    script = cluster.directory / "uneven.sh"
    script.write_text(f"#!/bin/sh\nexec tokshard tokenize corpus.jsonl -o uneven/x {TASK}\n")
    cluster.submit(script, "--array=5,7", "--output=uneven-%a.txt")
    cluster.wait_for_jobs()
    for number in (5, 7):
        said = (cluster.directory / f"uneven-{number}.txt").read_text()
        assert f"--array-task {number}/2: tasks are numbered from 0, the last is 1/2" in said
        assert "--array=0-7" in said
