"""Lets reads and writes be short, as they may be on network and FUSE file systems.

Python imports it in every process if its folder is on PYTHONPATH. TOKSHARD_SHORT says how many bytes a call
transfers of those that it is asked for: one, half of them, or a random number (the same ones in each run).
Reads and writes of Python's own files are short below their buffers.
"""

import builtins
import io
import os
import random

_random = random.Random(7)
# More than so many calls for one buffer take too long.
_MOST_CALLS = 64
LENGTHS = {
    "one": lambda count: max(1, count // _MOST_CALLS),
    "half": lambda count: max(1, count // 2),
    "random": lambda count: _random.randint(max(1, count // _MOST_CALLS), max(1, count)),
}


def _install(length):
    read, pread, preadv = os.read, os.pread, os.preadv
    write, copy_file_range, sendfile = os.write, os.copy_file_range, os.sendfile
    opened = io.open

    def short(buffer):
        view = memoryview(buffer).cast("B")
        return view[: length(len(view))] if len(view) else view

    class ShortFile(io.FileIO):
        def readinto(self, buffer):
            return super().readinto(short(buffer))

        def read(self, count=-1):
            return self.readall() if count is None or count < 0 else super().read(length(count))

        readall = io.RawIOBase.readall

        def write(self, buffer):
            return super().write(short(buffer))

    def open_short(file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, **settings):
        if "+" in mode:
            return opened(file, mode, buffering, encoding, errors, newline, **settings)
        raw = ShortFile(file, mode.replace("b", "").replace("t", ""), **settings)
        if buffering == 0:
            return raw
        buffered = io.BufferedReader(raw) if "r" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline)

    os.read = lambda file, count: read(file, length(count))
    os.pread = lambda file, count, offset: pread(file, length(count), offset)
    os.preadv = lambda file, buffers, offset: preadv(file, [short(buffers[0])], offset)
    os.write = lambda file, buffer: write(file, short(buffer))
    os.copy_file_range = lambda source, target, count, *offsets: copy_file_range(
        source, target, length(count), *offsets
    )
    os.sendfile = lambda target, source, offset, count: sendfile(target, source, offset, length(count))
    builtins.open = io.open = open_short


if kind := os.environ.get("TOKSHARD_SHORT"):
    _install(LENGTHS[kind])
