"""Views: datasets whose sequences are pieces of the sequences of another dataset, without a copy of tokens.

A view is a pair of files like every dataset, so that Megatron reads it::

    PREFIX.idx                 the pieces: length and byte position in the .bin, each a document of its own
    PREFIX.bin                 a symbolic link to the .bin of the viewed dataset
    PREFIX.tokshard/view.json  the record of the view, written last

The positions of an ordinary dataset follow from its lengths; those of a view do not, and only a dataset with
a record is read as a view. The fields are described in ``docs/reference/formats/view.md``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from tokshard.core.codec import SHA256, XXH3_128, Document, Key, Tool
from tokshard.dataset.layout import CHUNK_ENTRIES, IndexHeader
from tokshard.dataset.tokenizer_agreement import DatasetTokenizer
from tokshard.errors import InputError, IntegrityError, UsageError
from tokshard.storage import syscalls
from tokshard.storage.digest import FileRecord, identity_digest
from tokshard.storage.files import AtomicFile, link_atomically, write_atomically
from tokshard.storage.paths import bin_path, idx_path, is_remote, sidecar_directory, strip_data_suffix
from tokshard.storage.small_files import read_document

if TYPE_CHECKING:
    from numpy.typing import NDArray

VIEW_NAME = "view.json"
REMEDY = "restore the file, or run tokshard shard-plan --from again, which writes the view"
"""The hint where a view is damaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewedDataset:
    """The dataset that a view shows pieces of, as it was when the view was written."""

    path_prefix: Annotated[str, Key("path_prefix", "Absolute path prefix when the view was written.")]
    bin_bytes: Annotated[int, Key("bin_bytes", "Size of the .bin file.", minimum=0)]
    idx: Annotated[FileRecord, Key("idx", "The .idx file.")]
    manifest_fingerprint: Annotated[
        str | None,
        Key(
            "manifest_fingerprint",
            "The fingerprint in the dataset's manifest.",
            pattern=SHA256,
            omit_none=True,
        ),
    ] = None
    bin_pieces_xxh3_128: Annotated[
        str | None,
        Key(
            "bin_pieces_xxh3_128",
            "Piecewise digest of the .bin file, from the dataset's manifest.",
            pattern=XXH3_128,
            omit_none=True,
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class View(Document):
    """The record of a view: ``PREFIX.tokshard/view.json``.

    The seal is computed from all other fields unless it is passed.

    Raises:
        UsageError: The seal contradicts the other fields.
    """

    SCHEMA = "tokshard.view/1"

    tool: Annotated[Tool, Key("tool", "The program that wrote the view.")] = field(default_factory=Tool)
    dataset: Annotated[ViewedDataset, Key("dataset", "The dataset that it shows pieces of.")]
    idx: Annotated[FileRecord, Key("idx", "PREFIX.idx: the pieces.")]
    sequences: Annotated[int, Key("sequences", "Pieces.", minimum=0)]
    tokens: Annotated[int, Key("tokens", "Tokens of all pieces.", minimum=0)]
    tokenizer: Annotated[
        DatasetTokenizer, Key("tokenizer", "Tokenizer of the viewed dataset, as far as it is known.")
    ]
    seal: Annotated[str, Key("seal", "SHA-256 of all other fields.", pattern=SHA256)] = ""

    def __post_init__(self) -> None:
        value = self.to_json()
        found = identity_digest({name: part for name, part in value.items() if name != "seal"})
        if self.seal not in {"", found}:
            raise UsageError("seal contradicts the other fields: the record was changed")
        object.__setattr__(self, "seal", found)


def view_path(path_prefix: str) -> str:
    """Return the path of the record that makes the dataset at ``path_prefix`` a view."""
    return os.path.join(sidecar_directory(path_prefix), VIEW_NAME)


def read_view(path_prefix: str) -> View | None:
    """Return the record of a view; None for an ordinary dataset.

    Raises:
        IntegrityError: It is damaged, or was changed.
        StorageError: It cannot be read.
    """
    if is_remote(path_prefix):
        return None
    path = view_path(path_prefix)
    try:
        return read_document(View, path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def viewed_prefix(path_prefix: str, view: View) -> str:
    """Return the path prefix of the dataset that a view shows: where its link leads, else as recorded."""
    path = bin_path(path_prefix)
    try:
        target = os.readlink(path)
    except OSError:
        return view.dataset.path_prefix  # a copy that has followed the link
    return strip_data_suffix(os.path.join(os.path.dirname(path), target))


def data_prefix(path_prefix: str) -> str:
    """Return the path prefix of the dataset that has the tokens of a dataset: a view has another's.

    Raises:
        IntegrityError: The record of the view is damaged.
    """
    view = read_view(path_prefix)
    return path_prefix if view is None else viewed_prefix(path_prefix, view)


def refuse_view(path_prefix: str, action: str) -> None:
    """Raise InputError if a dataset is a view; ``action`` is what cannot be done with one."""
    view = read_view(path_prefix)
    if view is not None:
        place = viewed_prefix(path_prefix, view)
        raise InputError(
            f"cannot {action} {path_prefix}: it is a view of {place}",
            hint=f"pass the dataset itself: {place}",
        )


def write_view(
    path_prefix: str,
    dataset: ViewedDataset,
    dtype: np.dtype[Any],
    pointers: NDArray[np.int64],
    lengths: NDArray[np.int32],
    tokenizer: DatasetTokenizer,
) -> View:
    """Write a view; each file appears whole or not at all, the record last.

    Args:
        path_prefix: The view; files of an earlier one are replaced.
        dataset: The viewed dataset, a local one.
        dtype: Its dtype.
        pointers: The byte position of each piece in its ``.bin``: int64 of shape (pieces,).
        lengths: The tokens of each piece, 1 or more: int32 of shape (pieces,).
        tokenizer: Its tokenizer.

    Raises:
        StorageError: The disk is full or broken, or has no symbolic links.
    """
    syscalls.make_directory(sidecar_directory(path_prefix))
    syscalls.unlink(view_path(path_prefix))
    idx = _write_index(idx_path(path_prefix), dtype, pointers, lengths)
    link_atomically(bin_path(os.path.abspath(dataset.path_prefix)), bin_path(path_prefix))
    view = View(
        dataset=dataset,
        idx=idx,
        sequences=len(lengths),
        tokens=int(lengths.sum(dtype=np.int64)),
        tokenizer=tokenizer,
    )
    write_atomically(view_path(path_prefix), view.to_bytes())
    return view


def _write_index(
    path: str, dtype: np.dtype[Any], pointers: NDArray[np.int64], lengths: NDArray[np.int32]
) -> FileRecord:
    import xxhash

    count, state = len(lengths), xxhash.xxh3_128()
    with AtomicFile(path) as file:
        for content in (
            IndexHeader(dtype, count, count).to_bytes(),
            *_bytes_of(lengths, "<i4"),
            *_bytes_of(pointers, "<i8"),
            *_bytes_of(np.arange(count + 1, dtype=np.int64), "<i8"),
        ):
            file.write(content)
            state.update(content)
    return FileRecord(file.size_bytes, state.hexdigest())


def _bytes_of(values: NDArray[Any], dtype: str) -> Iterator[bytes]:
    for first in range(0, len(values), CHUNK_ENTRIES):
        yield values[first : first + CHUNK_ENTRIES].astype(dtype).tobytes()


def open_view(path_prefix: str, *, idx_bytes: int, bin_bytes: int) -> View | None:
    """Return the record of a view whose files have these sizes; None for an ordinary dataset.

    Raises:
        IntegrityError: It is damaged, or that of other files.
        StorageError: It cannot be read.
    """
    view = read_view(path_prefix)
    if view is None:
        return None
    for path, recorded, actual in (
        (idx_path(path_prefix), view.idx.size_bytes, idx_bytes),
        (bin_path(path_prefix), view.dataset.bin_bytes, bin_bytes),
    ):
        if recorded != actual:
            raise IntegrityError(
                f"{path} must have {recorded} bytes by {view_path(path_prefix)}, got {actual}",
                path=path,
                hint=REMEDY,
            )
    return view
