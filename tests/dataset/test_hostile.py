"""P16: what a header claims never sizes anything, and no table of impossible numbers gets through."""

import os
import subprocess
import sys
from itertools import product
from pathlib import Path

from support import plain_datasets
from tokshard.dataset.layout import IndexTable
from tokshard.errors import IntegrityError

LARGE = [
    0,
    1,
    2,
    *(2**power + step for power in (31, 32, 53, 63) for step in (-1, 0, 1)),
    2**64 - 2,
    2**64 - 1,
]
MIB = 2**20

HOSTILE_HEADERS = """
import struct, tracemalloc
from itertools import product
from dataset import test_hostile
from support import plain_datasets
from tokshard.errors import IntegrityError
from tokshard.dataset.layout import IndexTable

bodies = [b"", bytes(8), bytes(16), bytes(20), bytes(28), bytes(4096)]
tried = accepted = 0
tracemalloc.start()
for n, d, code, body in product(test_hostile.LARGE, test_hostile.LARGE, (0, 1, 4, 5, 9), bodies):
    index = struct.pack("<9sQBQQ", b"MMIDIDX\\0\\0", 1, code, n, d) + body
    for multimodal, bin_bytes in ((False, 0), (True, 0), (False, 2**63 - 1)):
        tried += 1
        try:
            IndexTable.from_buffer(index, bin_bytes=bin_bytes, multimodal=multimodal, path="x.idx")
        except IntegrityError as error:
            expected = plain_datasets.first_defect(index, bin_bytes, multimodal=multimodal)
            assert (error.field, error.offset) == expected
        else:
            assert plain_datasets.first_defect(index, bin_bytes, multimodal=multimodal) is None
            accepted += 1
print(tried, accepted, tracemalloc.get_traced_memory()[1])
"""


def run(program):
    search = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(search)}
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment
    )
    assert result.returncode == 0, result.stderr
    return [int(word) for word in result.stdout.split()]


def test_hostile_counts_allocate_nothing():
    tried, accepted, allocated = run(HOSTILE_HEADERS)
    print(f"{tried} hostile headers, {accepted} of them sound, {allocated} bytes allocated at most")
    assert tried > 5000
    assert accepted > 0
    assert allocated < 50 * MIB


def test_hostile_entries_are_judged_as_by_the_slow_twin():
    lengths = [-(2**31), -2, -1, 0, 1, 2**31 - 1]
    pointers = [-(2**63), -8, -1, 0, 1, 8, 2**31, 2**34 - 8, 2**63 - 8, 2**63 - 1]
    boundaries = [-(2**63), -1, 0, 1, 2, 3, 2**63 - 1]
    sound = 0
    for n, m, first, second in product(lengths, lengths, [0, 8, -8], pointers):
        for boundary, bin_bytes in product(boundaries, {max(0, 8 * (n + m)), 2**63 - 1}):
            index = plain_datasets.raw_idx(5, [n, m], [first, second], [0, boundary, 2])
            expected = plain_datasets.first_defect(index, bin_bytes, multimodal=False)
            found = None
            try:
                IndexTable.from_buffer(index, bin_bytes=bin_bytes, multimodal=False, path="x.idx")
            except IntegrityError as error:
                found = error.field, error.offset
            assert found == expected
            sound += found is None
    assert sound > 10


def test_opening_five_million_documents_takes_little_memory(tmp_path):
    """The file of 200 MB is mapped; what Python and numpy allocate on top is bounded."""
    program = f"""
import tracemalloc
import numpy as np
from tokshard.dataset import index_file
from tokshard.dataset.reader import IndexedDataset

count, piece = 5_000_000, 250_000
ones = np.ones(piece, np.int32)
def pieces():
    return (ones for _ in range(count // piece))
tracemalloc.start()
with open({str(tmp_path)!r} + "/large.idx", "wb") as file:
    total = index_file.write_index(
        file, dtype="u1", sequence_count=count, document_count=count, lengths=pieces,
        sequences_per_document=pieces,
    )
written = tracemalloc.get_traced_memory()[1]
with open({str(tmp_path)!r} + "/large.bin", "wb") as file:
    file.truncate(total)
tracemalloc.reset_peak()
dataset = IndexedDataset({str(tmp_path)!r} + "/large")
print(len(dataset), dataset.document_count, written, tracemalloc.get_traced_memory()[1])
"""
    sequences, documents, written, opened = run(program)
    print(f"5M documents: {written} bytes allocated to write the index, {opened} to open it")
    assert sequences == documents == 5_000_000
    assert written < 20 * MIB
    assert opened < 20 * MIB
