"""Test helpers for projects that use tokshard: a resume check for loaders, and hypothesis strategies.

hypothesis is imported only when a strategy is created.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tokshard.dataset.layout import DTYPES

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy
    from numpy.typing import NDArray

    from tokshard.sharding.topology import Topology


class Stateful(Protocol):
    """An iterable whose position can be saved and restored."""

    def __iter__(self) -> Any: ...

    def state_dict(self) -> Any:
        """Return the current position."""

    def load_state_dict(self, state: Any) -> None:
        """Restore a position."""


def assert_same_after_restore(
    loader: Stateful, *, fresh: Callable[[], Stateful] | None = None, every: int = 1
) -> int:
    """Check that a loader restored at any position yields exactly the same remaining items.

    Reads the loader from its current position to its end and saves the state before every item and after
    the last. Then restores each state and compares the remaining items: their number and all their arrays.
    The time is quadratic in the number of items.

    Args:
        loader: The loader; it must be finite.
        fresh: Creates another loader to restore each state into, as a new process would; by default the
            states are restored into the same loader.
        every: Restore only every ``every``-th state, and the last one.

    Returns:
        The number of states restored.

    Raises:
        AssertionError: The remaining items differ.

    Example::

        assert_same_after_restore(RankLoader.open("plan", rank=0))
    """
    states, items = [], []
    iterator = iter(loader)
    while True:
        # A copy: a loader that hands out its own dictionary would change the states saved before.
        states.append(_copied(loader.state_dict()))
        try:
            items.append(_copied(next(iterator)))
        except StopIteration:
            break
    chosen = sorted({*range(0, len(states), every), len(states) - 1})
    for number in chosen:
        other = loader if fresh is None else fresh()
        other.load_state_dict(_copied(states[number]))
        tail = list(map(_copied, other))
        if len(tail) != len(items) - number:
            raise AssertionError(
                f"restored before item {number} of {len(items)}, the loader must yield {len(items) - number} "
                f"more items, got {len(tail)}"
            )
        for place, (found, expected) in enumerate(zip(tail, items[number:], strict=True)):
            _assert_equal(found, expected, f"restored before item {number}, item {number + place}")
    return len(chosen)


def documents(
    *, dtype: str = "uint16", max_documents: int = 12, max_tokens: int = 12
) -> SearchStrategy[list[list[NDArray[Any]]]]:
    """Return a strategy of documents (lists of token sequences); documents and sequences may be empty.

    Args:
        dtype: The dtype of the tokens.
        max_documents: The maximum number of documents.
        max_tokens: The maximum number of tokens in a sequence.
    """
    from hypothesis import strategies as st

    limits = np.iinfo(dtype)
    token = st.integers(max(int(limits.min), 0), min(int(limits.max), 300)) | st.just(int(limits.max))
    sequence = st.lists(token, max_size=max_tokens).map(lambda tokens: np.array(tokens, dtype))
    return st.lists(st.lists(sequence, max_size=3), max_size=max_documents)


def indexed_datasets(directory: str | os.PathLike[str]) -> SearchStrategy[str]:
    """Return a strategy that writes indexed datasets of all integer dtypes and yields their path prefixes.

    Args:
        directory: An existing directory. One pair of files per dtype is overwritten by each example.
    """
    from hypothesis import strategies as st

    names = sorted(dtype.name for dtype in DTYPES.values() if dtype.kind in "iu")

    def written(choice: tuple[str, list[list[NDArray[Any]]]]) -> str:
        dtype, contents = choice
        prefix = os.path.join(os.fspath(directory), dtype)
        write_documents(prefix, contents, dtype)
        return prefix

    return (
        st.sampled_from(names)
        .flatmap(lambda name: st.tuples(st.just(name), documents(dtype=name)))
        .map(written)
    )


def write_documents(prefix: str, contents: Iterable[Iterable[NDArray[Any]]], dtype: str = "uint16") -> None:
    """Write documents (lists of token sequences) as an indexed dataset; existing files are overwritten."""
    from tokshard.dataset.builder import IndexedDatasetBuilder

    builder = IndexedDatasetBuilder(prefix + ".bin", dtype=np.dtype(dtype))
    for document in contents:
        for sequence in document:
            builder.add_item(np.asarray(sequence, dtype))
        builder.end_document()
    builder.finalize(prefix + ".idx")


def topologies(max_world_size: int = 64) -> SearchStrategy[Topology]:
    """Return a strategy of topologies: world sizes with tensor, pipeline and context parallel sizes."""
    from hypothesis import strategies as st

    from tokshard.sharding.topology import Topology

    def shaped(sizes: tuple[int, int, int, int]) -> Topology:
        data, tensor, pipeline, context = sizes
        return Topology(data * tensor * pipeline * context, tensor, pipeline, context)

    sizes = st.tuples(*[st.sampled_from([1, 1, 2, 3, 4]) for _ in range(4)])
    return sizes.filter(lambda found: int(np.prod(found)) <= max_world_size).map(shaped)


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _copied(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_copied, value))
    if isinstance(value, np.ndarray):
        return value.copy()
    return value.clone() if hasattr(value, "clone") and hasattr(value, "dtype") else value


def _assert_equal(found: Any, expected: Any, where: str) -> None:
    if isinstance(expected, dict):
        if not isinstance(found, dict) or list(found) != list(expected):
            raise AssertionError(f"{where}: fields must be {list(expected)}, got {found!r}")
        for name in expected:
            _assert_equal(found[name], expected[name], f"{where}, field {name}")
        return
    left, right = np.asarray(found), np.asarray(expected)
    if left.dtype != right.dtype or not np.array_equal(left, right):
        raise AssertionError(f"{where}: must be {expected!r}, got {found!r}")
