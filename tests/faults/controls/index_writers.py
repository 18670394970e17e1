"""Writers of index caches that are broken on purpose, to see that the campaign notices."""

import os

from tokshard.index_cache import provision
from tokshard.index_cache.npy import write_npy
from tokshard.index_cache.sidecar import Sidecar
from tokshard.storage import syscalls
from tokshard.storage.files import AtomicFile, write_atomically


def description_first():
    """Write the description before the arrays, as Megatron does, over whatever is there."""

    def write(entry, arrays, origin, tell):
        write_atomically(entry.description_path, entry.text.encode())
        files = {
            f"{name}.npy": write_npy(entry.array_path(name), arrays[name], tell) for name in entry.arrays
        }
        Sidecar.make(entry.hash, origin, files).write(entry.sidecar_path)

    provision.write = write


def no_withdrawal():
    """Replace the arrays of an older cache while its description stands."""
    provision._withdraw = lambda entry: None


def in_place():
    """Write files under their final names, as numpy.save does."""

    def begin(self):
        self._temporary = self.path
        syscalls.unlink(self.path)
        self._descriptor = syscalls.create(self.path)
        return self

    def leave(self, kind, error, trace):
        os.close(self._descriptor)
        self._descriptor = -1

    AtomicFile.__enter__ = begin
    AtomicFile.__exit__ = leave
