"""Runs Megatron's preprocess_data.py in forks of a process that imported it: imports take half a minute.

Started with the Python of Megatron and the path of the script. Each line of standard input is a JSON list,
the words of a run and the path of its log; the answer is its exit code. A run that printed a traceback and
goes on is killed: workers that fail are replaced forever.
"""

import contextlib
import json
import os
import runpy
import signal
import sys
import time
import traceback
from importlib.metadata import version
from pathlib import Path

GRACE, LIMIT = 2, 300  # seconds


def run(script, words, log):
    """Return the exit code; that of a signal if the run was killed."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(target, stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.argv = [script, *words]
        code = 1
        try:
            runpy.run_path(script, run_name="__main__")
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
            os._exit(code)
    end = time.monotonic() + LIMIT
    while not (done := os.waitpid(pid, os.WNOHANG))[0]:
        time.sleep(0.02)
        with contextlib.suppress(FileNotFoundError):
            if b"\nTraceback (" in b"\n" + Path(log).read_bytes():
                end = min(end, time.monotonic() + GRACE)
        if time.monotonic() > end:
            os.killpg(pid, signal.SIGKILL)
            done = os.waitpid(pid, 0)
            break
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # workers that are left
    return os.waitstatus_to_exitcode(done[1])


def main():
    """Import the script and answer lines."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what imports print
    runpy.run_path(sys.argv[1], run_name="imported")
    print(json.dumps(version("transformers")), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(run(sys.argv[1], *json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
