"""A file system that misbehaves on request, and what a directory holds."""

import os

DESCRIPTOR_DIRECTORY = "/proc/self/fd"


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def open_descriptors():
    """Return how many files this process has open."""
    return len(os.listdir(DESCRIPTOR_DIRECTORY))


def raising(number):
    """Return a stand-in for a system call that fails with an error number."""

    def fail(*arguments, **options):
        raise OSError(number, os.strerror(number))

    return fail
