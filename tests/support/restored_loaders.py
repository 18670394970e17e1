"""The check that a loader restored from its state continues with identical items."""

import numpy as np


def assert_same_after_restore(loader, *, fresh=None, every=1):
    """Check that a loader restored at any position yields exactly the same remaining items.

    Reads the loader from its current position to its end and saves the state before every item and after
    the last. Then restores each state and compares the remaining items: their number and all their arrays.
    The time is quadratic in the number of items.

    Args:
        loader: The loader; it must be finite, with ``state_dict`` and ``load_state_dict``.
        fresh: Creates another loader to restore each state into, as a new process would; by default the
            states are restored into the same loader.
        every: Restore only every ``every``-th state, and the last one.

    Returns:
        The number of states restored.

    Raises:
        AssertionError: The remaining items differ.
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


def _copied(value):
    if isinstance(value, dict):
        return {name: _copied(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_copied, value))
    if isinstance(value, np.ndarray):
        return value.copy()
    return value.clone() if hasattr(value, "clone") and hasattr(value, "dtype") else value


def _assert_equal(found, expected, where):
    if isinstance(expected, dict):
        if not isinstance(found, dict) or list(found) != list(expected):
            raise AssertionError(f"{where}: fields must be {list(expected)}, got {found!r}")
        for name in expected:
            _assert_equal(found[name], expected[name], f"{where}, field {name}")
        return
    left, right = np.asarray(found), np.asarray(expected)
    if left.dtype != right.dtype or not np.array_equal(left, right):
        raise AssertionError(f"{where}: must be {expected!r}, got {found!r}")
