"""The whole command line, watched: no connection, no pickle of others, no change outside the outputs.

An audit hook in each process writes down what Python code does. What libraries do on their own shows in
the files: everything outside the output is the same before and after. Not seen here, because the data are
small: compiled kernels, which are kept in the user's cache directory.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.command_line import SAMPLE
from support.index_caches import write_dataset
from tokshard.cli.main import COMMANDS

HERE = Path(__file__).parent
TOKENIZER = SAMPLE / "tokenizer.json"
NAMES = "--megatron 0.19 --tokenizer-model /models/llama"
SIZES = "--seq-length 64 --split 9,1 --num-samples 80,24"
JOB = (
    "torchrun --nproc-per-node 8 pretrain_gpt.py --seq-length 64 --split 9,1 --micro-batch-size 1 "
    "--global-batch-size 8 --train-iters 10 --eval-interval 5 --eval-iters 1 --data-cache-path indexes/cache "
    "--tokenizer-type HuggingFaceTokenizer --tokenizer-model /models/llama --data-path data/web"
)

# In this order, in one directory: the command, and the directory that it may write to, or None.
RUNS = [
    (f"tokenize corpus.jsonl -o data/web --tokenizer {TOKENIZER} --workers 2 --unit-size 1MB", "data"),
    (f"tokenize corpus.jsonl -o data/web --tokenizer {TOKENIZER} --unit-size 1MB", "data"),
    ("tokenize corpus.jsonl -o data/web --force", "data"),
    (f"tokenize corpus.jsonl -o data/web --force --tokenizer {TOKENIZER}", "data"),
    (f"tokenize {SAMPLE}/manuals.jsonl.gz -o data/code --tokenizer {TOKENIZER}", "data"),
    (f"tokenize {SAMPLE}/hostile.jsonl -o data/no", "data"),
    ("tokenize corpus.jsonl -o more/web --dry-run", None),
    ("merge data/web data/code -o merged/all", "merged"),
    ("merge data/web data/code -o more/all --dry-run", None),
    (
        "convert data/web.bin --from olmo --source-dtype uint16 --eod-id 0 -o converted/web --dry-run",
        None,
    ),
    (
        f"convert data/web.bin --from olmo --source-dtype uint16 --tokenizer {TOKENIZER} -o converted/web",
        "converted",
    ),
    (f"build-indices data/web data/code {SIZES} --cache-dir indexes/cache {NAMES}", "indexes"),
    (f"blend 0.7 data/web 0.3 data/code {SIZES} -o mix --dry-run", None),
    (f"blend 0.7 data/web 0.3 data/code {SIZES} -o mix", "mix"),
    ("shard-plan mix --data-parallel 2 -o plan --dry-run", None),
    ("shard-plan mix --data-parallel 2 -o plan", "plan"),
    ("replan plan --consumed-samples 40 --blend '1 data/web 1 data/code' -o plan2", "plan2"),
    ("diff plan plan2", None),
    (f"doctor --path-as data=data {JOB}", None),
    ("verify plan --recursive", None),
    (f"verify data/web --level deep --tokenizer {TOKENIZER}", None),
    ("verify foreign --adopt", "foreign.tokshard"),
    (f"trace plan --step 3 --tokenizer {TOKENIZER}", None),
    ("trace plan corpus.jsonl:7 --consumed-samples 40", None),
    ("export data/web --to olmo -o exported", "exported"),
    ("export mix --samples --to datatrove -o samples", "samples"),
    ("verify exported", None),
    ("inspect mix", None),
    ("inspect mix/cache", None),
    ("inspect plan --rank 1 --step 2", None),
    ("inspect data/web --verify digest --html page/page.html", "page"),
    ("inspect data/web", None),
    (f"inspect data/web --document 3 --tokenizer {TOKENIZER} --json", None),
    (f"inspect {TOKENIZER}", None),
]

PROBES = {
    "open": "open('outside', 'w')",
    "os.rename": "import os; os.rename('victim', 'outside')",
    "os.link": "import os; os.link('victim', 'outside')",
    "os.remove": "import os; os.remove('victim')",
    "os.mkdir": "import os; os.mkdir('outside')",
    "os.symlink": "import os; os.symlink('victim', 'outside')",
    "os.truncate": "import os; os.truncate('victim', 0)",
    "subprocess.Popen": "import subprocess; subprocess.run(['true'])",
    "pickle.find_class": "import pickle; pickle.loads(b'cbuiltins\\nlen\\n.')",
    "socket.connect": "import socket; socket.socket().connect_ex(('127.0.0.1', 9))",
    "socket.sendmsg": "import socket; socket.socket(type=2).sendmsg([b'x'], [], 0, ('127.0.0.1', 9))",
    "socket.getaddrinfo": "import socket; socket.getaddrinfo('127.0.0.1', 9)",
}


FORKING = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from support import forked_commands
forked_commands.load(["numpy", "orjson", "xxhash", "tokenizers"])
print("loaded", flush=True)
for line in sys.stdin:
    if pid := os.fork():
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
        continue
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    sys.argv = ["tokshard", *json.loads(line)]
    forked_commands.end(forked_commands.command)
"""


class Watched:
    """A directory in which programs run, with a log of what they do."""

    def __init__(self, directory):
        self.directory = directory
        self.log = directory / "audit.jsonl"
        self.work = directory / "work"
        for name in ("work", "home", "tmp"):
            (directory / name).mkdir()

    def environment(self):
        """Return the variables of a process that is watched."""
        home, tmp = str(self.directory / "home"), str(self.directory / "tmp")
        return {
            "PATH": os.environ["PATH"],
            "HOME": home,
            "XDG_CACHE_HOME": home,
            "TMPDIR": tmp,
            "PYTHONPATH": str(HERE / "audit"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TOKSHARD_AUDIT": str(self.log),
        }

    def run(self, program):
        """Run a program, and return its end and what it did: (event, directory, arguments)."""
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=self.work,
            env=self.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        return done, self.events()

    def events(self):
        """Return what was done since the last time."""
        lines = self.log.read_text().splitlines()
        os.truncate(self.log, 0)
        return [json.loads(line) for line in lines]

    @contextmanager
    def commands(self):
        """Yield a function that runs a command and returns its exit code and what it says.

        Each runs in a process forked by one that has imported everything, and was watched meanwhile.
        """
        program = [sys.executable, "-c", FORKING, str(HERE.parent)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with (
            tempfile.TemporaryFile("w+") as said,
            subprocess.Popen(
                program, cwd=self.work, env=self.environment(), stderr=said, text=True, **pipes
            ) as process,
        ):

            def run(command):
                process.stdin.write(json.dumps(shlex.split(command)) + "\n")
                process.stdin.flush()
                code = int(process.stdout.readline())
                said.seek(0)
                text = said.read()
                said.seek(0)
                said.truncate()
                return code, text

            assert process.stdout.readline() == "loaded\n"
            yield run

    def files(self):
        """Return what lies where, with all that a change of it would change."""
        return {
            str(path.relative_to(self.directory)): (
                path.stat().st_ino,
                path.stat().st_size,
                path.stat().st_mtime_ns,
            )
            for path in self.directory.rglob("*")
            if path.is_file() and path != self.log
        }


PARSER = r"^\['[^']*/bin/shfmt', '--language-dialect', 'bash', '--to-json'\]$"


def violations(events, roots):
    """Return the events that nothing allows: roots are the directories that may change."""
    return [event for event in events if not is_allowed(*event, roots)]


def is_allowed(event, directory, arguments, roots):
    if event == "subprocess.Popen":
        is_worker = shlex.quote("tokshard.text.tokenize.workers.forkserver") in arguments[1]
        # It parses a launch script from its standard input, and has no other operand.
        return is_worker or re.search(PARSER, arguments[1]) is not None
    if event == "os.fork":
        return True  # workers, which are watched as well
    if event == "pickle.find_class":
        return arguments[0].startswith("tokshard.")  # between processes of one run
    if event == "os.truncate" and arguments[0].isdecimal():
        return True  # a file that was opened before, and looked at then
    two_paths = event in {"os.rename", "os.link"}
    if not two_paths and event not in {"open", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"}:
        return False
    paths = [os.path.join(directory, argument) for argument in arguments[: 2 if two_paths else 1]]
    return all(path == os.devnull or any(is_inside(path, root) for root in roots) for path in paths)


def is_inside(path, root):
    real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    return real == root or real.startswith(f"{root}/")


def observe(watched):
    """Run everything; returns each run with what it did, and what lay there before and after it."""
    (watched.work / "corpus.jsonl").write_bytes((SAMPLE / "stories.jsonl").read_bytes() * 8)
    for name in ("log", "page"):
        (watched.work / name).mkdir()
    write_dataset(str(watched.work / "foreign"), [3, 1, 4])
    found = []
    before = watched.files()
    with watched.commands() as run:
        assert violations(watched.events(), []) == []  # of the imports
        for command, outputs in RUNS:
            roots = [str(watched.work / name) for name in (outputs or "").split()]
            end = run(command)
            events, after = watched.events(), watched.files()
            found.append((command, roots, end, events, before, after))
            before = after
    return found


def test_every_command_is_run():
    assert {command.split()[0] for command, _ in RUNS} == COMMANDS.keys()


def check_ends(observed):
    for command, _, (code, said), _, _, _ in observed:
        expected = 3 if "hostile" in command else int(command.startswith("diff"))
        assert code == expected, (command, said)


def check_events(observed):
    for command, roots, _, events, _, _ in observed:
        assert violations(events, roots) == [], command


def check_files(watched, observed):
    """Hold what lies outside the outputs against what lay there, for what libraries do on their own."""
    for command, roots, _, _, before, after in observed:
        changed = {str(watched.directory / name) for name, _ in before.items() ^ after.items()}
        outside = [path for path in changed if not any(is_inside(path, root) for root in roots)]
        assert outside == [], command


def check_sight(observed):
    """See to it that the hook saw what commands and workers do."""
    seen = {}
    for command, roots, _, events, _, _ in observed:
        if roots:
            seen.setdefault(command.split()[0], set()).update(event for event, _, _ in events)
    assert seen.keys() == {command.split()[0] for command, outputs in RUNS if outputs}
    assert all(events >= {"open", "os.rename"} for events in seen.values()), seen
    assert "subprocess.Popen" in seen["tokenize"]
    doctor = {
        event for command, _, _, events, _, _ in observed for event, _, _ in events if "doctor" in command
    }
    assert "subprocess.Popen" in doctor


def test_no_command_connects_unpickles_or_changes_anything_but_its_outputs(tmp_path):
    # One test, as each worker of pytest would run all the commands anew.
    watched = Watched(tmp_path.resolve())
    observed = observe(watched)
    check_ends(observed)
    check_events(observed)
    check_files(watched, observed)
    check_sight(observed)


def test_the_hook_is_in_the_workers(tmp_path):
    watched = Watched(tmp_path)
    child = "import subprocess, sys; subprocess.run([sys.executable, '-P', '-c', 'open(\"made\", \"w\")'])"
    _, events = watched.run(child)
    assert [event for event, _, _ in events] == ["subprocess.Popen", "open"]


@pytest.mark.parametrize("event", PROBES)
def test_a_program_that_does_more_is_found_out(tmp_path, event):
    watched = Watched(tmp_path.resolve())
    (watched.work / "victim").write_text("x")
    (watched.work / "allowed").mkdir()
    _, events = watched.run(PROBES[event])
    assert event in {name for name, _, _ in violations(events, [str(watched.work / "allowed")])}


def test_a_way_out_by_a_link_is_found_out(tmp_path):
    watched = Watched(tmp_path.resolve())
    (watched.work / "allowed").mkdir()
    (watched.work / "allowed/link").symlink_to(watched.directory / "home")
    _, events = watched.run("open('allowed/link/file', 'w'); open('allowed/../file', 'w')")
    assert len(violations(events, [str(watched.work / "allowed")])) == 2
