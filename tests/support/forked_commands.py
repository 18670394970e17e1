"""Running the real command many times without starting an interpreter for each: a process that forks.

The forked processes are real ones: they can be killed, and share nothing with the test. Most of the time of a
command is the import of modules and libraries; the process that forks has imported them all. It must have no
threads, so it does nothing else.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import gc
import importlib
import json
import os
import pkgutil
import resource
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

# What commands import when they need it.
_LIBRARIES = ("numpy", "orjson", "xxhash", "tokenizers", "numba", "s3fs")
_NOT_IMPORTED = ("tokshard.__main__", "tokshard.dump_tokenizer_identifiers")
# An interpreter looks at these when it starts.
_READ_AT_START = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC")
_MOST_MESSAGE_BYTES = 1 << 20
_PROGRAM = (
    "import sys; sys.path.insert(0, {tests!r}); from support import forked_commands; "
    "forked_commands.serve({descriptor})"
)


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_READ_AT_START)}


_AT_START = _read_at_start(os.environ)


def can_run(environment: Mapping[str, str]) -> bool:
    """Tell whether a forked process can stand in for one that starts with this environment."""
    return _read_at_start(environment) == _AT_START


def run(
    arguments: list[str],
    *,
    directory: str | Path | None = None,
    environment: dict[str, str] | None = None,
    stdin: bytes = b"",
    part_bytes: int | None = None,
    open_files: int | None = None,
    program: Path | None = None,
    one_stream: bool = False,
    stdout: int | None = None,
    stderr: int | None = None,
    started: Callable[[int], object] = lambda _: None,
) -> subprocess.CompletedProcess[bytes]:
    """Run ``tokshard`` with these arguments.

    Args:
        arguments: What follows ``tokshard``.
        directory: Where it runs; the current directory by default.
        environment: All of its variables; those of this process by default.
        stdin: What it reads from a pipe.
        part_bytes: The size of the parts in which outputs are uploaded.
        open_files: The most files that it may have open.
        program: What to run with these arguments instead of ``tokshard``: a program of the tests, which may
            import modules of its directory.
        one_stream: Whether it writes what belongs to stderr to the same file as stdout.
        stdout: The descriptor that it writes to; by default a file, whose content is returned.
        stderr: The same of stderr.
        started: Is told the process.
    """
    job = {
        "arguments": arguments,
        "directory": str(directory or Path.cwd()),
        "environment": environment or dict(os.environ),
        "part_bytes": part_bytes,
        "open_files": open_files,
        "program": program and str(program),
    }
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        source, sink = os.pipe()
        answers, answer = os.pipe()
        first = out.fileno() if stdout is None else stdout
        second = err.fileno() if stderr is None else stderr
        streams = [source, first, first if one_stream else second, answer]
        _server().send(json.dumps(job).encode(), streams)
        os.close(source)
        os.close(answer)
        feeder = threading.Thread(target=_feed, args=(sink, stdin))
        feeder.start()
        with open(answers, encoding="ascii") as lines:
            started(int(lines.readline()))
            code = int(lines.readline())
        feeder.join()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(arguments, code, out.read(), err.read())


def _feed(sink: int, content: bytes) -> None:
    with contextlib.suppress(BrokenPipeError), open(sink, "wb") as file:
        file.write(content)


class _Server:
    """The process that forks, seen from the tests."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program = _PROGRAM.format(tests=str(Path(__file__).parents[1]), descriptor=theirs.fileno())
        self._process = subprocess.Popen(
            [sys.executable, "-c", program],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        theirs.close()

    def send(self, message: bytes, descriptors: list[int]) -> None:
        socket.send_fds(self._socket, [message], descriptors)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


@functools.cache
def _server() -> _Server:
    server = _Server()
    atexit.register(server.close)
    return server


def serve(descriptor: int) -> None:
    """Run the command of each message in a process of its own."""
    load(_LIBRARIES)
    if (threads := len(os.listdir("/proc/self/task"))) > 1:
        raise RuntimeError(f"there are {threads} threads, which do not survive a fork")
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the processes that wait
    connection = socket.socket(fileno=descriptor)
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, _MOST_MESSAGE_BYTES, 4)
        if not message:
            os._exit(0)
        if os.fork() == 0:
            connection.close()
            job = json.loads(message)
            _start(job, descriptors)
            end(functools.partial(_program, job["program"]) if job["program"] else command)
        for number in descriptors:
            os.close(number)


def load(libraries: Iterable[str]) -> None:
    """Do what each command would do again before it works: imports, the parsers, the codecs.

    Reading annotations for the last two is a third of the time of a short command.
    """
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # as the command does
    import tokshard
    from tokshard.cli import main
    from tokshard.core import codec

    for name in libraries:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for module in pkgutil.walk_packages(tokshard.__path__, "tokshard."):
        if module.name not in _NOT_IMPORTED:
            with contextlib.suppress(ImportError):
                importlib.import_module(module.name)
    commands = {name: main._load(name, entry) for name, entry in main.COMMANDS.items()}
    main._load = lambda name, _: commands[name]
    formats = [codec.Document]
    for cls in formats:
        formats += cls.__subclasses__()
        if dataclasses.is_dataclass(cls):
            codec._shape_of(cls)


def _start(job: dict[str, Any], descriptors: list[int]) -> None:
    """Fork once more: one process waits for the other, and ends; the other becomes the command."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *streams, answer = descriptors
    if pid := os.fork():
        for number in streams:
            os.close(number)
        os.write(answer, b"%d\n" % pid)
        os.write(answer, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        os._exit(0)
    for target, number in enumerate(streams):
        os.dup2(number, target)
    for number in descriptors:
        os.close(number)
    os.chdir(job["directory"])
    os.environ.clear()
    os.environ.update(job["environment"])
    tempfile.tempdir = None  # what TMPDIR says now
    sys.path[0] = ""
    sys.argv = ["tokshard", *job["arguments"]]
    if job["open_files"]:
        resource.setrlimit(resource.RLIMIT_NOFILE, (job["open_files"], job["open_files"]))
    if job["part_bytes"]:
        from tokshard.storage.remote import objects

        objects.PART_BYTES = job["part_bytes"]


def command() -> None:
    """Run the command that ``sys.argv`` is."""
    from tokshard.cli.main import main

    main()


def _program(path: str) -> None:
    sys.path[0] = str(Path(path).parent)
    sys.argv[0] = path
    runpy.run_path(path, run_name="__main__")


def _code_of(action: Callable[[], None]) -> int:
    """Return the exit code of an action, as the interpreter understands it."""
    try:
        action()
    except SystemExit as stop:
        if isinstance(stop.code, int | None):
            return stop.code or 0
        print(stop.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def end(action: Callable[[], None]) -> NoReturn:
    """Do something, and end as the interpreter does, but for taking the modules to pieces."""
    code = _code_of(action)
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
