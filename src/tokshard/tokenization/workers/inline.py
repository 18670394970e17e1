"""Units encoded in this process, one after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tokshard.tokenization.encoder import Outcome, Task, UnitEncoder
from tokshard.tokenization.recipe import Recipe
from tokshard.tokenization.workers.executor import Listener
from tokshard.tokenization.workers.feed import Feed


class InlineExecutor:
    """Encodes in this process, one unit after the other."""

    def run(
        self,
        recipe: Recipe,
        parts_directory: str,
        make_feed: Callable[[Callable[[], None]], Feed],
        listener: Listener,
    ) -> None:
        """See :class:`~tokshard.tokenization.workers.executor.Executor`."""
        ready = threading.Event()
        feed = make_feed(ready.set)
        encoder = None
        try:
            while True:
                ready.clear()
                if (task := feed.take()) is not None:
                    encoder = encoder or UnitEncoder(recipe, parts_directory)
                    listener.finished(_encode(encoder, task, listener))
                elif feed.exhausted:
                    return
                else:
                    ready.wait()
        finally:
            feed.stop()


def _encode(encoder: UnitEncoder, task: Task, listener: Listener) -> Outcome:
    """Encode a unit; if all units before it have been, its tokens are written to their place at once."""
    made = encoder.make(task, listener.encoded)
    if isinstance(made, Outcome):
        return made
    places = listener.locate(made.measured)
    made.commit(places[0] if places and made.is_held else None)
    return task.outcome
