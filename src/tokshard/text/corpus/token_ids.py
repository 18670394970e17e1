"""Rows of token ids: the values of fields that were tokenized before, as arrays.

A value is a list of integers, which becomes one array, uint32 [tokens]. All lists of a batch are converted
together.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.core.formatting import count
from tokshard.text.corpus.fields import MIXED_HINT, json_type, quoted
from tokshard.text.corpus.rejection import UnusableRecordError

if TYPE_CHECKING:
    from numpy.typing import NDArray


def ids_of_lists(values: list[Any], vocab_size: int) -> list[NDArray[np.uint32]] | None:
    """Return lists of token ids as arrays; None if a value is something else, or an id is out of range."""
    if not {list}.issuperset(map(type, values)):
        return None
    items = list(chain.from_iterable(values))
    if not {int}.issuperset(map(type, items)):
        return None
    try:
        ids = np.array(items, np.int64)
    except OverflowError:
        return None
    if _out_of_range(ids, vocab_size).any():
        return None
    return list(_divided(ids, accumulate(map(len, values), initial=0)))


def usable_ids(value: Any, field: str, vocab_size: int) -> NDArray[np.uint32]:
    """Return a field's value if it is a list of token ids; else raise UnusableRecordError."""
    if (ids := ids_of_lists([value], vocab_size)) is not None:
        return ids[0]
    if value is None:
        raise UnusableRecordError("field-null", f"field {quoted(field)} is null")
    if not isinstance(value, list):
        raise UnusableRecordError(
            "field-type",
            f"field {quoted(field)} must be a list of token ids, got {json_type(value)}",
            lambda: MIXED_HINT if isinstance(value, str) else "",
        )
    number, item = next(
        (number, item)
        for number, item in enumerate(value)
        if type(item) is not int or not 0 <= item < vocab_size
    )
    if type(item) is int:
        raise _not_in_vocabulary(number, item, field, vocab_size)
    found = "a number that is not an integer of 64 bits" if type(item) is float else json_type(item)
    raise UnusableRecordError(
        "item-type",
        f"item {number} of field {quoted(field)} must be a token id, got {found}",
        lambda: MIXED_HINT if isinstance(item, str) else "",
    )


def ids_of_column(
    column: Any, field: str, vocab_size: int, errors: dict[int, UnusableRecordError]
) -> list[Any]:
    """Return the lists of a column as arrays, None for null; add an error for each row that is unusable.

    Args:
        column: An Arrow array of lists of integers (:func:`is_list_of_integers`), validated; or of nulls.
        field: The name of the field.
        vocab_size: All ids must be below it.
        errors: The errors by row.
    """
    import pyarrow as pa

    if pa.types.is_null(column.type):
        return [None] * len(column)
    if pa.types.is_fixed_size_list(column.type):
        offsets = column.type.list_size * np.arange(column.offset, column.offset + len(column) + 1)
    else:
        offsets = np.asarray(column.offsets, np.int64)
    items = column.values.slice(offsets[0], offsets[-1] - offsets[0])
    offsets = offsets - offsets[0]
    is_null = np.asarray(items.is_null()) if items.null_count else np.zeros(len(items), bool)
    ids = (items.fill_null(0) if items.null_count else items).to_numpy(zero_copy_only=False)
    bad = np.flatnonzero(is_null | _out_of_range(ids, vocab_size))
    rows, firsts = np.unique(np.searchsorted(offsets, bad, side="right") - 1, return_index=True)
    for row, position in zip(rows.tolist(), bad[firsts].tolist(), strict=True):
        number = position - int(offsets[row])
        if is_null[position]:
            detail = f"item {number} of field {quoted(field)} must be a token id, got null"
            error = UnusableRecordError("item-type", detail)
        else:
            error = _not_in_vocabulary(number, int(ids[position]), field, vocab_size)
        errors.setdefault(row, error)
    values: list[Any] = list(_divided(ids, offsets.tolist()))
    for row in np.flatnonzero(np.asarray(column.is_null())).tolist():
        values[row] = None
        errors.pop(row, None)
    return values


def is_list_of_integers(kind: Any) -> bool:
    """Return whether an Arrow type is a list of integers: a list, large list or list of fixed size."""
    import pyarrow as pa

    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return is_list and pa.types.is_integer(kind.value_type)


def _divided(ids: NDArray[np.integer[Any]], offsets: Any) -> Iterator[NDArray[np.uint32]]:
    converted = ids.astype(np.uint32)
    return (converted[begin:end] for begin, end in pairwise(offsets))


def _out_of_range(ids: NDArray[np.integer[Any]], vocab_size: int) -> NDArray[np.bool_]:
    return (ids < 0) | (ids >= vocab_size)


def _not_in_vocabulary(number: int, token_id: int, field: str, vocab_size: int) -> UnusableRecordError:
    item = f"item {number} of field {quoted(field)}"
    return UnusableRecordError(
        "token-ids", f"{item} must be a token id below {count(vocab_size)}, got {token_id}"
    )
