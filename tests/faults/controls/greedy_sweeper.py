"""A sweeper that removes what looks temporary to it, whoever made it."""

from __future__ import annotations

import os
from typing import Any


def sweep_whatever_ends_with_tmp_or_part() -> None:
    """Tidy up around and inside the output by the ends of names."""
    from tokshard.text.tokenize.job import Workspace

    original = Workspace.sweep

    def wrong(self: Any) -> None:
        original(self)
        for directory in (self.sidecars, os.path.dirname(self.sidecars) or "."):
            for entry in os.scandir(directory):
                if entry.name.endswith(("tmp", "part")) and entry.is_file(follow_symlinks=False):
                    os.unlink(entry.path)

    Workspace.sweep = wrong
