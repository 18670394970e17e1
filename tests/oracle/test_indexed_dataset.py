"""Against Megatron Core itself: our builder's bytes are its bytes, and each side reads the other's files."""

import random

import numpy as np
import pytest

from oracle.support import megatron_or_skip
from tokshard.dataset.builder import IndexedDatasetBuilder
from tokshard.dataset.layout import DTYPES, DType
from tokshard.dataset.reader import IndexedDataset

pytestmark = pytest.mark.oracle

RANGES = {
    "uint8": (0, 2**8),
    "int8": (-(2**7), 2**7),
    "int16": (-(2**15), 2**15),
    "int32": (-(2**31), 2**31),
    "int64": (-(2**63), 2**63 - 1),
    "uint16": (0, 2**16),
}
CASES = 120


@pytest.fixture(scope="module")
def megatron():
    return megatron_or_skip()


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


def random_documents(rng, name):
    """Documents of sequences of tokens, with empty documents and empty sequences among them."""
    low, high = RANGES[name]
    return [
        [[rng.randrange(low, high) for _ in range(rng.choice([0, 1, 2, 9]))] for _ in range(rng.randrange(4))]
        for _ in range(rng.choice([0, 1, 2, 20]))
    ]


def contents(prefix):
    return tuple(open(f"{prefix}{suffix}", "rb").read() for suffix in (".bin", ".idx"))


def add_documents(builder, documents, name, torch, modes=None):
    """The same calls for either builder: whole documents or single items, as lists, arrays or tensors."""
    remaining = iter(modes or [])
    for i, document in enumerate(documents):
        own = [next(remaining) for _ in document] if modes is not None else None
        if i % 3 == 0:
            # uint16 tensors exist, but not everywhere in torch: its callers use int32 ones.
            kind = torch.int32 if name == "uint16" else getattr(torch, name)
            for position, sequence in enumerate(document):
                builder.add_item(torch.tensor(sequence, dtype=kind), *([own[position]] if own else []))
            builder.end_document()
        else:
            tokens = [token for sequence in document for token in sequence]
            lengths = [len(sequence) for sequence in document]
            builder.add_document(
                tokens if i % 3 == 1 else np.array(tokens, name), lengths, *([own] if own is not None else [])
            )


def equal_readings(ours, theirs, *, multimodal):
    assert len(ours) == len(theirs)
    assert ours.dtype == theirs.index.dtype
    np.testing.assert_array_equal(ours.sequence_lengths, theirs.sequence_lengths)
    np.testing.assert_array_equal(ours.document_indices, theirs.document_indices)
    np.testing.assert_array_equal(ours.get_document_indices(), theirs.get_document_indices())
    np.testing.assert_array_equal(ours.index.sequence_pointers, theirs.index.sequence_pointers)
    for i in range(len(ours)):
        found, expected = ours[i], theirs[i]
        if multimodal:
            assert found[1] == expected[1]
            found, expected = found[0], expected[0]
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
        half = len(found) // 2
        parts = ours.get(i, half), theirs.get(i, half), ours.get(i, 0, half), theirs.get(i, 0, half)
        parts = [part[0] if multimodal else part for part in parts]
        np.testing.assert_array_equal(parts[0], parts[1])
        np.testing.assert_array_equal(parts[2], parts[3])
    middle = slice(len(ours) // 3, len(ours) - 1)
    if len(ours) > 3:
        found, expected = ours[middle], theirs[middle]
        if multimodal:
            np.testing.assert_array_equal(found[1], expected[1])
            found, expected = found[0], expected[0]
        assert [array.tolist() for array in found] == [array.tolist() for array in expected]


@pytest.mark.parametrize("name", sorted(RANGES))
@pytest.mark.parametrize("multimodal", [False, True])
def test_bytes_and_readings_are_equal(tmp_path, megatron, torch, name, multimodal):
    for seed in range(CASES // 12):
        rng = random.Random(f"{name}-{multimodal}-{seed}")
        documents = random_documents(rng, name)
        modes = [rng.randrange(-128, 128) for document in documents for _ in document] if multimodal else None
        ours, theirs = tmp_path / f"ours{seed}", tmp_path / f"theirs{seed}"
        dtype = getattr(np, name)
        states = []
        for kind, prefix in ((IndexedDatasetBuilder, ours), (megatron.IndexedDatasetBuilder, theirs)):
            builder = kind(f"{prefix}.bin", dtype=dtype, multimodal=multimodal)
            add_documents(builder, documents, name, torch, modes)
            builder.finalize(f"{prefix}.idx")
            states.append([*builder.sequence_lengths, *builder.document_indices])
            states[-1] += builder.sequence_modes or []
        assert states[0] == states[1]
        assert contents(ours) == contents(theirs)
        if sum(map(len, contents(ours)[:1])) == 0:
            continue  # Megatron cannot map an empty .bin
        for mmap in (True, False):
            equal_readings(
                IndexedDataset(theirs, multimodal, mmap),
                megatron.IndexedDataset(str(ours), multimodal=multimodal, mmap=mmap),
                multimodal=multimodal,
            )


@pytest.mark.parametrize("name", ["uint16", "int32"])
@pytest.mark.parametrize("multimodal", [False, True])
def test_merges_are_equal(tmp_path, megatron, torch, name, multimodal):
    for seed in range(10):
        rng = random.Random(f"merge-{name}-{multimodal}-{seed}")
        prefixes = []
        for part in range(rng.randrange(1, 5)):
            documents = random_documents(rng, name)
            modes = [rng.randrange(9) for document in documents for _ in document] if multimodal else None
            prefixes.append(str(tmp_path / f"part{seed}-{part}"))
            builder = megatron.IndexedDatasetBuilder(f"{prefixes[-1]}.bin", getattr(np, name), multimodal)
            add_documents(builder, documents, name, torch, modes)
            builder.finalize(f"{prefixes[-1]}.idx")
        extra = random_documents(rng, name)
        extra_modes = [1 for document in extra for _ in document] if multimodal else None
        outputs = []
        for kind, side in ((IndexedDatasetBuilder, "ours"), (megatron.IndexedDatasetBuilder, "theirs")):
            outputs.append(tmp_path / f"{side}{seed}")
            builder = kind(f"{outputs[-1]}.bin", getattr(np, name), multimodal)
            builder.add_index(prefixes[0])
            add_documents(builder, extra, name, torch, extra_modes)
            for prefix in prefixes[1:]:
                builder.add_index(prefix)
            builder.finalize(f"{outputs[-1]}.idx")
        assert contents(outputs[0]) == contents(outputs[1])


def test_tables_and_rules_are_equal(megatron):
    assert {code: dtype.name for code, dtype in DTYPES.items()} == {d.value: d.name for d in megatron.DType}
    for member in megatron.DType:
        dtype = megatron.DType.dtype_from_code(member.value)
        assert DType.dtype_from_code(member.value) is dtype
        assert DType.code_from_dtype(dtype) == megatron.DType.code_from_dtype(dtype) == member.value
        assert DType.size(member.value) == DType.size(dtype) == megatron.DType.size(dtype)
    assert {member.name: member.value for member in DType} == {d.name: d.value for d in megatron.DType}
    for vocab_size in (None, 1, 65499, 65500, 65535, 65536, 10**6):
        assert DType.optimal_dtype(vocab_size) is megatron.DType.optimal_dtype(vocab_size)


@pytest.mark.parametrize("length", [0, 1, 1 << 19])
def test_tensors_of_any_kind_give_the_same_bytes(tmp_path, megatron, torch, length):
    tensors = [
        torch.arange(length, dtype=torch.int64) % 30000,
        (torch.arange(2 * length, dtype=torch.int32) % 30000)[::2],
        (torch.arange(length, dtype=torch.int16) % 300).reshape(-1, 1),
    ]
    for kind, prefix in ((IndexedDatasetBuilder, "ours"), (megatron.IndexedDatasetBuilder, "theirs")):
        builder = kind(str(tmp_path / f"{prefix}.bin"), np.uint16)
        for tensor in tensors:
            builder.add_item(tensor)
            builder.end_document()
            builder.add_document(tensor, [tensor.numel()])
        builder.finalize(str(tmp_path / f"{prefix}.idx"))
    assert contents(tmp_path / "ours") == contents(tmp_path / "theirs")


def test_tensors_that_megatron_would_wrap_are_refused(tmp_path, torch):
    builder = IndexedDatasetBuilder(tmp_path / "x.bin", np.uint16)
    for tensor in (torch.tensor([70000]), torch.tensor([-1]), torch.tensor([1.5]), torch.tensor([True])):
        with pytest.raises(ValueError, match="tokens"):
            builder.add_item(tensor)
    for tensor in (torch.tensor([1.0], dtype=torch.bfloat16), torch.tensor([1.0], requires_grad=True)):
        with pytest.raises(ValueError, match="tokens"):
            builder.add_item(tensor)
    builder.discard()
