"""The ``.npy`` files of a cache: exactly what ``numpy.save`` writes for little-endian integers.

The bytes of a header follow from dtype and shape alone, so a header is right if it is the one that
would be written. Nothing is allocated by a count that a file claims, and nothing is unpickled.
"""

from __future__ import annotations

import io
import re
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.dataset.fingerprint import FileFingerprint
from tokshard.dataset.source import InputFile
from tokshard.errors import IntegrityError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from tokshard.storage.digest import FileRecord

GPT_ARRAYS = ("document_index", "sample_index", "shuffle_index")
BLEND_ARRAYS = ("dataset_index", "dataset_sample_index")

HEADER_BYTES = 128
_CHUNK_BYTES = 1 << 24
_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '(<[iu][248])', 'fortran_order': False, "
    rb"'shape': \(([0-9]{1,18}),(?: ([0-9]{1,18}))?\), \} *\n",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """The dtype and the shape of an array, of one or two dimensions.

    Example:
        >>> ArraySpec(np.dtype("<i4"), (10, 2)).file_bytes
        208
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @classmethod
    def of(cls, array: NDArray[Any]) -> ArraySpec:
        """Return the specification of an array."""
        return cls(array.dtype, array.shape)

    @property
    def count(self) -> int:
        """The entries of the array, as a Python integer."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def file_bytes(self) -> int:
        """The size of the file."""
        return HEADER_BYTES + self.count * self.dtype.itemsize

    def header(self) -> bytes:
        """Return the 128 bytes before the data."""
        buffer = io.BytesIO()
        fields = {"descr": self.dtype.str, "fortran_order": False, "shape": self.shape}
        np.lib.format.write_array_header_1_0(buffer, fields)
        return buffer.getvalue()

    def __str__(self) -> str:
        return f"{self.dtype.name} of shape {self.shape}"


@dataclass(frozen=True, slots=True)
class Blocks:
    """Arrays of one length that are made together, piece by piece, so that memory never holds them whole.

    Attributes:
        specs: The dtype and the shape of each, by name.
        make: Starts again at each call: yields their next entries, one piece of each array at a time, which
            may change when the next are requested.
    """

    specs: Mapping[str, ArraySpec]
    make: Callable[[], Iterable[Sequence[NDArray[Any]]]]

    @classmethod
    def of(cls, name: str, array: NDArray[Any]) -> Blocks:
        """Return the pieces of an array in memory: little-endian integers, of one or two dimensions."""
        flat = np.ascontiguousarray(array).reshape(-1)
        entries = _CHUNK_BYTES // flat.itemsize
        return cls(
            {name: ArraySpec.of(array)},
            lambda: ([flat[first : first + entries]] for first in range(0, len(flat), entries)),
        )


def write_npy(path: str, array: NDArray[Any], tell: Callable[[int], None] = lambda _: None) -> FileRecord:
    """Write a ``.npy`` file: it appears complete or not at all, and is forced to the disk.

    ``array`` holds little-endian integers, of one or two dimensions in C order.

    Raises:
        StorageError: The disk is full or broken. Nothing appears under the name then.
    """
    return write_blocks({"": path}, Blocks.of("", array), tell)[""]


def write_blocks(
    paths: Mapping[str, str], blocks: Blocks, tell: Callable[[int], None] = lambda _: None
) -> dict[str, FileRecord]:
    """Write a ``.npy`` file for each array of blocks, all at the same time; see :func:`write_npy`.

    Raises:
        IntegrityError: The pieces do not make an array of the shape that was announced. Nothing appears.
        StorageError: The disk is full or broken. Of each file nothing appears, or all of it.
    """
    # Readers of arrays, such as the loader, do not load what writes them.
    from tokshard.storage.files import DigestingWriter

    with ExitStack() as stack:
        files = {}
        for name, spec in blocks.specs.items():
            files[name] = stack.enter_context(DigestingWriter(paths[name]))
            files[name].write(spec.header())
            tell(HEADER_BYTES)
        for pieces in blocks.make():
            for file, piece in zip(files.values(), pieces, strict=True):
                file.write(piece.view(np.uint8).data)
                tell(piece.nbytes)
        records = {name: file.record() for name, file in files.items()}
        for name, spec in blocks.specs.items():
            found = records[name].size_bytes
            if found != spec.file_bytes:
                raise IntegrityError(
                    f"{paths[name]} must have {spec.file_bytes} bytes for {spec}, got {found}",
                    path=paths[name],
                )
    return records


def read_spec(path: str) -> ArraySpec:
    """Return the dtype and shape in the header of a ``.npy`` file, which must fit the size of the file.

    Raises:
        IntegrityError: It is not a file that ``numpy.save`` has written whole.
        StorageError: It cannot be read.
    """
    return _spec(InputFile(path))


def map_npy(path: str) -> NDArray[Any]:
    """Map a ``.npy`` file; the array is read-only and keeps the map alive.

    Raises:
        IntegrityError: It is not a file that ``numpy.save`` has written whole.
        StorageError: It cannot be read.
    """
    file = InputFile(path)
    spec = _spec(file)
    if spec.count == 0:
        return np.empty(spec.shape, dtype=spec.dtype)
    array = np.frombuffer(file.map(), dtype=spec.dtype, count=spec.count, offset=HEADER_BYTES)
    return array.reshape(spec.shape)


def npy_fingerprint(array: NDArray[Any]) -> FileFingerprint:
    """Return the fingerprint of the ``.npy`` file of an array, which need not be written yet."""
    return FileFingerprint.of_array(ArraySpec.of(array).header(), array)


def _spec(file: InputFile) -> ArraySpec:
    head = bytearray(min(HEADER_BYTES, file.size_bytes))
    file.read_into(memoryview(head), 0)
    found = _HEADER.fullmatch(bytes(head))
    if found is None:
        raise IntegrityError(
            f"{file.path} does not begin with the .npy header of an integer array",
            path=file.path,
            field="header",
            offset=0,
        )
    shape = tuple(int(extent) for extent in found.groups()[1:] if extent is not None)
    spec = ArraySpec(np.dtype(found[1].decode()), shape)
    if spec.header() != head:
        raise IntegrityError(
            f"{file.path}: the header differs from that of numpy.save for {spec}",
            path=file.path,
            field="header",
            offset=0,
        )
    if spec.file_bytes != file.size_bytes:
        raise IntegrityError(
            f"{file.path} must have {spec.file_bytes} bytes by its header ({spec}), got {file.size_bytes}",
            path=file.path,
            field="size",
            offset=min(spec.file_bytes, file.size_bytes),
        )
    return spec
