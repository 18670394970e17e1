"""Integers from outside (lists, arrays, tensors) as arrays of a given dtype, or an error: never wrapped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray


def integer_array(values: Any, dtype: np.dtype[Any], what: str) -> NDArray[Any]:
    """Return ``values`` as a flat, contiguous array of an integer dtype.

    Args:
        values: Integers as a list, a numpy array, a torch tensor in main memory, or anything else that
            numpy takes; of any shape, read in C order. Not copied where it has the dtype already.
        dtype: An integer dtype.
        what: What the values are, in the plural, for errors.

    Raises:
        UsageError: They are no integers (an empty array may have any dtype), or one is outside the
            range of ``dtype``. It is a ValueError too.

    Example:
        >>> integer_array([1, 2, 65535], np.dtype("u2"), "tokens")
        array([    1,     2, 65535], dtype=uint16)
    """
    try:
        array = np.asarray(values).reshape(-1)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"the {what} cannot be made an array of integers: {error}") from error
    if array.size == 0:
        return np.empty(0, dtype)
    if array.dtype.kind not in "iu":
        raise UsageError(f"the {what} must be integers that fit 64 bits, not values of type {array.dtype}")
    if not np.can_cast(array.dtype, dtype, "safe"):
        _check_range(array, dtype, what)
    return np.ascontiguousarray(array, dtype=dtype)


def _check_range(array: NDArray[Any], dtype: np.dtype[Any], what: str) -> None:
    limits = np.iinfo(dtype)
    if limits.min <= int(array.min()) and int(array.max()) <= limits.max:
        return
    for position, value in enumerate(array.tolist()):
        if not limits.min <= value <= limits.max:
            raise UsageError(
                f"the {what} hold {value} at position {position}, "
                f"outside the range {limits.min} to {limits.max} of {dtype.name}",
                hint="for tokens, choose the dtype by the vocabulary: tokshard.dataset.layout.optimal_dtype",
            )
