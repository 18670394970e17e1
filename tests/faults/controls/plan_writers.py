"""Writers of plans that are broken on purpose, to see that the campaign notices."""

import os

from tokshard.ranks import publication
from tokshard.ranks.replan import reweighting
from tokshard.storage import syscalls
from tokshard.storage.files import write_atomically


def plan_first():
    """Write ``plan.json`` before the ranks' manifests."""

    def write(directory, contents):
        name = publication.PLAN_NAME
        write_atomically(os.path.join(directory, name), publication_of["whole"])
        original(directory, contents)

    publication_of = {}
    original, dump = publication._write_together, publication.dump_readable_json

    def dumped(value, path, **how):
        content = dump(value, path, **how)
        if path == publication.PLAN_NAME:
            publication_of["whole"] = content
        return content

    publication.dump_readable_json = dumped
    publication._write_together = write
    publication.write_atomically = lambda path, content, **_: write_atomically(path, content)


def no_withdrawal():
    """Replace the ranks' manifests of an older plan while its ``plan.json`` stands."""
    original = syscalls.unlink

    def unlink(path):
        if not path.endswith(publication.PLAN_NAME):
            original(path)

    syscalls.unlink = unlink


def no_sweep():
    """Leave what a killed run for the same files has left."""
    reweighting.is_temporary = lambda name: False
