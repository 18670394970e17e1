"""A file system that misbehaves on request, and what a directory holds."""

import contextlib
import os

DESCRIPTOR_DIRECTORY = "/proc/self/fd"


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def open_descriptors():
    """Return the files that this process has open, as pairs of a number and a name.

    Hold them against earlier ones by ``<=``: what earlier tests have left may be closed at any time.
    """
    found = set()
    for number in os.listdir(DESCRIPTOR_DIRECTORY):
        with contextlib.suppress(FileNotFoundError):  # the one that lists them
            found.add((number, os.readlink(f"{DESCRIPTOR_DIRECTORY}/{number}")))
    return found


def raising(number):
    """Return a stand-in for a system call that fails with an error number."""

    def fail(*arguments, **options):
        raise OSError(number, os.strerror(number))

    return fail
