"""A deliberately bad reader: asserts for checks, lengths trusted. The mutant suite must catch it."""

import struct

import numpy as np


def read(index, tokens):
    """Return (dtype, sequences as bytes, document boundaries) the way trusting readers do."""
    assert index[:9] == b"MMIDIDX\0\0"
    version, code, sequences, boundaries = struct.unpack_from("<QBQQ", index, 9)
    assert version == 1
    dtype = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}[code]
    lengths = np.frombuffer(index, "<i4", sequences, 34)
    pointers = np.frombuffer(index, "<i8", sequences, 34 + 4 * sequences)
    documents = np.frombuffer(index, "<i8", boundaries, 34 + 12 * sequences)
    assert documents[-1] == sequences
    pairs = zip(lengths, pointers, strict=True)
    return dtype, [np.frombuffer(tokens, dtype, n, at).tobytes() for n, at in pairs], documents.tolist()
