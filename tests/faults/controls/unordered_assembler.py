"""An assembly that is wrong on purpose: it appends parts in the order in which they are finished."""

from __future__ import annotations

import os
from typing import Any


def append_in_order_of_completion() -> None:
    from tokshard.text.tokenize import run
    from tokshard.text.tokenize.part import PartReader, UnitKey

    def wrong(self: Any) -> None:
        for key in list(self._ready):
            with PartReader(os.path.join(self._run.parts, self._job.part_names.of(key))) as part:
                self._assembly.next = key
                self._assembly.append(part)
            self._ready.discard(key)

    run.UnitEncoding._assemble = wrong
    original = run.UnitEncoding.encode

    def encode(self: Any, executor: Any) -> None:
        original(self, executor)
        self._assembly.next = UnitKey(len(self._job.files), 0)  # the last one would be found missing

    run.UnitEncoding.encode = encode
