"""P46: a run that may open no more files ends with a sentence that names the limit, and the next one works.

Each command is run with several limits on the open files, and then without one. A run with a limit does what
one without does, or it fails; it never finds a product damaged or incomplete. In the end all files are those
of undisturbed runs.
"""

from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys

import pytest

from faults.every_command import COMMANDS, VARIABLE, make_inputs
from support.command_line import tokshard
from tokshard.errors import InputError, StorageError, WorkerError, known_error, reason_of
from tokshard.text.tokenize.workers.channel import sendable

LIMITS = range(4, 41) if os.environ.get("TOKSHARD_CAMPAIGN_STEP") == "1" else [5, 9]
LIBRARIES = {"in/table.parquet", "pooled"}  # they take seconds to start
CHOSEN = [words for words in COMMANDS if not LIBRARIES & set(words)]


def run(words, **settings):
    done = tokshard(*words, **settings)
    return done.returncode, VARIABLE.sub("...", done.stdout), done.stderr


def files_below(directory):
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name != "events.jsonl"
    }


def run_all(directory, limits):
    """Run all commands in a new directory; return how they ended without a limit, and the files."""
    directory.mkdir()
    os.chdir(directory)
    make_inputs()
    ends, failures = [], 0
    for words in CHOSEN:
        limited = [(limit, *run(words, open_files=limit)) for limit in limits]
        ends.append(run(words)[:2])
        for pattern in ("*.bin", "*.idx", "*.tokshard/manifest.json"):
            for path in directory.glob(pattern):
                os.utime(path, (1, 1))  # the manifest of a merge depends on it
        for limit, code, out, err in limited:
            assert "Traceback" not in err, err
            if code in {7, 8}:
                failures += 1
                assert f"Too many open files (ulimit -n is {limit})" in err
                assert "hint: raise the limit" in err
            else:
                assert code == ends[-1][0], (words, limit, err)
                if not {"-o", "--cache-dir"} & set(
                    words
                ):  # else the first run that succeeds tells of its work
                    assert out == ends[-1][1]
    return ends, failures, files_below(directory)


def test_commands_with_few_open_files_fail_or_do_their_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    expected, none, whole = run_all(tmp_path / "here", [])
    (tmp_path / "here").rename(tmp_path / "undisturbed")
    ends, failures, files = run_all(tmp_path / "here", LIMITS)
    assert none == 0
    assert failures > 10
    assert [code for code, _ in ends] == [code for code, _ in expected]
    assert [name for name in files | whole if files.get(name) != whole.get(name)] == []


def test_a_process_that_starts_with_few_open_files_names_the_limit(tmp_path):
    """Unlike forked ones, it imports modules when no more files can be opened."""
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3)); "
        "from tokshard.cli import failures\n"
        "with failures.reported():\n    import decimal, wave, mailbox"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"from tokshard.cli import main\n{code}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "error: cannot open " in done.stderr
    assert "Too many open files (ulimit -n is 3)" in done.stderr


def test_the_cause_of_another_error_is_named():
    cause = OSError(errno.EMFILE, os.strerror(errno.EMFILE), "settings.json")
    with pytest.raises(InputError) as caught:
        try:
            raise cause
        except OSError as error:
            raise InputError("cannot load the tokenizer") from error
    limit = os.sysconf("SC_OPEN_MAX")
    known = known_error(caught.value)
    assert isinstance(known, StorageError)
    assert str(known) == f"cannot open settings.json: Too many open files (ulimit -n is {limit})"
    assert "ulimit -n 4096" in known.hint
    library = ImportError("libfast.so: cannot open shared object file: Too many open files", path="fast.so")
    assert str(known_error(library)) == f"cannot open fast.so: Too many open files (ulimit -n is {limit})"
    again = pickle.loads(pickle.dumps(sendable(caught.value)))
    assert (type(again), str(again), again.hint) == (StorageError, str(known), known.hint)


def test_the_limit_of_processes_is_named():
    limit = os.sysconf("SC_CHILD_MAX")
    known = known_error(RuntimeError("can't start new thread"))
    assert (type(known), known.exit_code) == (WorkerError, 8)
    assert f"cannot start a thread (ulimit -u is {limit})" in str(known)
    again = pickle.loads(pickle.dumps(sendable(RuntimeError("can't start new thread"))))
    assert (type(again), str(again)) == (WorkerError, str(known))
    refused = OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    assert reason_of(refused) == f"Resource temporarily unavailable (ulimit -u is {limit})"
    assert known_error(RuntimeError("a bug")) is None
