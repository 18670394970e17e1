"""Writers of index caches that are broken on purpose, to see that the campaign notices."""

import os

from tokshard.samples.index import build_or_reuse
from tokshard.samples.index.npy import write_npy
from tokshard.storage import syscalls
from tokshard.storage.files import AtomicFile, write_atomically


def description_first():
    """Write the description before the arrays, as Megatron does, over whatever is there."""

    def write(target, arrays, tell):
        entry = target.entry
        write_atomically(entry.description_path, target.description.text().encode())
        files = {
            f"{name}.npy": write_npy(entry.array_path(name), arrays[name], tell) for name in entry.arrays
        }
        build_or_reuse._sidecar(target, files).write(entry.sidecar_path)

    build_or_reuse.write = write


def no_withdrawal():
    """Replace the arrays of an older cache while its description stands."""
    build_or_reuse._withdraw = lambda entry: None


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
