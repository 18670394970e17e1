"""Datasets in plain Python, entry by entry, to compare the fast code with; and a strategy."""

import struct
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

from hypothesis import strategies as st

CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float64": 6, "float32": 7, "uint16": 8}
ITEM_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 8, 7: 4, 8: 2}


@dataclass
class Plain:
    """A dataset as lists: documents of sequences of tokens, and one mode for each sequence."""

    dtype: str
    documents: list[list[list[int]]]
    modes: list[int] | None = field(default=None)

    @property
    def sequences(self):
        return [sequence for document in self.documents for sequence in document]

    def bin_bytes(self):
        letter = {"uint8": "B", "int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint16": "H"}
        letter |= {"float64": "d", "float32": "f"}
        tokens = [token for sequence in self.sequences for token in sequence]
        return struct.pack(f"<{len(tokens)}{letter[self.dtype]}", *tokens)

    def idx_bytes(self):
        lengths = [len(sequence) for sequence in self.sequences]
        return idx_bytes(
            CODES[self.dtype], lengths, [len(document) for document in self.documents], self.modes
        )

    def write(self, prefix):
        for suffix, content in ((".bin", self.bin_bytes()), (".idx", self.idx_bytes())):
            Path(f"{prefix}{suffix}").unlink(missing_ok=True)  # whoever reads the old file may go on
            with open(f"{prefix}{suffix}", "wb") as file:
                file.write(content)


def idx_bytes(code, lengths, sequences_per_document, modes=None):
    pointers = [0, *accumulate(length * ITEM_BYTES[code] for length in lengths)][: len(lengths)]
    boundaries = [0, *accumulate(sequences_per_document)]
    return raw_idx(code, lengths, pointers, boundaries, modes)


def raw_idx(code, lengths, pointers, boundaries, modes=None):
    """Pack the fields as given, consistent or not."""
    return b"".join(
        [
            b"MMIDIDX\0\0",
            struct.pack("<QBQQ", 1, code, len(lengths), len(boundaries)),
            struct.pack(f"<{len(lengths)}i", *lengths),
            struct.pack(f"<{len(pointers)}q", *pointers),
            struct.pack(f"<{len(boundaries)}q", *boundaries),
            struct.pack(f"<{len(modes or [])}b", *(modes or [])),
        ]
    )


def first_defect(buffer, bin_bytes, *, multimodal):
    """Return (field, offset) of the first thing wrong with an index, or None if it is sound."""
    if len(buffer) < 34:
        return "header", len(buffer)
    magic, version, code, sequences, boundaries = struct.unpack_from("<9sQBQQ", buffer)
    claims = [
        ("magic", 0, magic == b"MMIDIDX\0\0"),
        ("version", 9, version == 1),
        ("dtype_code", 17, code in ITEM_BYTES),
        ("document_count", 26, boundaries >= 1),
    ]
    for name, offset, holds in claims:
        if not holds:
            return name, offset
    size = 34 + 12 * sequences + 8 * boundaries + (sequences if multimodal else 0)
    if len(buffer) != size:
        return "size", min(len(buffer), size)
    return _first_entry_defect(buffer, bin_bytes, ITEM_BYTES[code], sequences, boundaries)


def _first_entry_defect(buffer, bin_bytes, item_bytes, sequences, boundaries):
    return next(_entry_defects(buffer, bin_bytes, item_bytes, sequences, boundaries), None)


def _entry_defects(buffer, bin_bytes, item_bytes, sequences, boundaries):
    """Yield defects in the order of the checks; what follows the first may be an echo of it."""
    end = 0
    for i in range(sequences):
        (length,) = struct.unpack_from("<i", buffer, 34 + 4 * i)
        (pointer,) = struct.unpack_from("<q", buffer, 34 + 4 * sequences + 8 * i)
        if length < 0:
            yield "sequence_lengths", 34 + 4 * i
        if pointer != end:
            yield "sequence_pointers", 34 + 4 * sequences + 8 * i
        end += length * item_bytes
        if end > bin_bytes:
            yield "sequence_lengths", 34 + 4 * i
    if end != bin_bytes:
        yield "bin_bytes", 34 + 4 * max(0, sequences - 1)
    previous = 0
    for i in range(boundaries):
        offset = 34 + 12 * sequences + 8 * i
        (boundary,) = struct.unpack_from("<q", buffer, offset)
        if (i == 0 and boundary != 0) or boundary < previous or boundary > sequences:
            yield "document_indices", offset
        previous = boundary
    if previous != sequences:
        yield "document_indices", offset


RANGES = {
    "uint8": (0, 2**8 - 1),
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint16": (0, 2**16 - 1),
}


@st.composite
def datasets(draw, dtype=None, multimodal=None, least=None):
    name = dtype or draw(st.sampled_from(sorted(RANGES)))
    token = st.integers(RANGES[name][0] if least is None else least, RANGES[name][1])
    documents = draw(st.lists(st.lists(st.lists(token, max_size=5), max_size=3), max_size=7))
    count = sum(map(len, documents))
    modes = None
    if multimodal if multimodal is not None else draw(st.booleans()):
        modes = draw(st.lists(st.integers(-128, 127), min_size=count, max_size=count))
    return Plain(name, documents, modes)
