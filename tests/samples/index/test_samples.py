import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from support.index_twins import lengths_lists, slow_text, write_dataset
from tokshard.dataset.reader import IndexedDataset
from tokshard.errors import InputError, IntegrityError
from tokshard.samples.index import samples as samples_module
from tokshard.samples.index.index import GPTDatasetIndex
from tokshard.samples.index.samples import GPTSamples


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("samples")


def opened(directory, sequences, *, mmap=True, dtype="uint16", pad_id=-1, **arguments):
    prefix = str(directory / "data")
    write_dataset(prefix, sequences, dtype)
    dataset = IndexedDataset(prefix, mmap=mmap)
    defaults = {"sequence_length": 4, "seed": 1, "num_samples": None}
    index = GPTDatasetIndex.build(dataset.sequence_lengths, range(len(sequences)), **(defaults | arguments))
    return GPTSamples(dataset, index, pad_id=pad_id)


ARGUMENTS = st.fixed_dictionaries(
    {
        "num_samples": st.integers(0, 30),
        "sequence_length": st.integers(1, 12),
        "extra_token": st.booleans(),
        "drop_last_partial": st.booleans(),
        "pad_id": st.sampled_from([-1, 0, 3]),
        "dtype": st.sampled_from(["uint8", "uint16", "int32", "int64"]),
    }
)


def numbered(lengths):
    """Sequences in which every token is another number."""
    tokens = iter(range(sum(lengths)))
    return [[next(tokens) for _ in range(length)] for length in lengths]


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("worth", [0, 3, 10**9], ids=["copied", "mixed", "picked"])
@given(lengths=lengths_lists(), arguments=ARGUMENTS)
@settings(max_examples=40, deadline=None)
def test_a_sample_is_its_part_of_all_tokens(directory, mmap, worth, lengths, arguments):
    sequences = numbered([*lengths, 1])
    length, extra, pad_id = (arguments[name] for name in ("sequence_length", "extra_token", "pad_id"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(samples_module, "TOKENS_WORTH_A_COPY", worth)
        try:
            samples = opened(directory, sequences, mmap=mmap, **arguments)
        except InputError:  # an empty sequence is read last, see test_indices
            reject()
        order = samples.index.document_index.tolist()
        stream = [token for number in order for token in sequences[number]]
        batch = samples.read_batch(range(len(samples)))
        assert (batch.dtype, batch.shape) == (np.int64, (len(samples), length + extra))
        for k in range(len(samples)):
            place = int(samples.index.shuffle_index[k])
            text = slow_text(stream, place, length, extra, pad_id)
            sample = samples.read(k)
            assert sample.tokens.dtype == sample.document_ids.dtype == sample.lengths.dtype == np.int64
            assert sample.tokens.tolist() == batch[k].tolist() == text
            assert_pieces_are(sample, sequences)


def assert_pieces_are(sample, sequences):
    """Each piece reaches to the end of its sequence, but for the last, from its start, but for the first."""
    begin, last = 0, len(sample.lengths) - 1
    for number, (document, length) in enumerate(zip(sample.document_ids, sample.lengths, strict=True)):
        piece = sample.tokens[begin : begin + length].tolist()
        sequence, begin = sequences[document], begin + length
        if number == 0 == last:
            assert not piece or piece == sequence[sequence.index(piece[0]) :][: len(piece)]
        elif number == 0:
            assert piece == sequence[len(sequence) - length :]
        else:
            assert piece == sequence[:length]
            assert number == last or length == len(sequence)


@pytest.mark.parametrize("mmap", [True, False])
def test_both_ways_to_copy_are_taken_at_real_sizes(tmp_path, mmap):
    lengths = [5] * 200 + [700] * 9 + [0] * 20
    sequences = numbered(lengths)
    samples = opened(tmp_path, sequences, mmap=mmap, sequence_length=256)
    stream = [token for number in samples.index.document_index for token in sequences[number]]
    wanted = [3, 0, 3, len(samples) - 1]
    texts = [slow_text(stream, int(samples.index.shuffle_index[k]), 256, 1, -1) for k in wanted]
    assert samples.read_batch(np.array(wanted)).tolist() == texts
    assert samples.read_batch([]).shape == (0, 257)


def test_rows_of_a_sample_that_is_all_padding_hold_the_last_token(tmp_path):
    samples = opened(tmp_path, numbered([3, 3]), drop_last_partial=False, num_samples=1)
    index = samples.index
    plan = replace(index.plan, samples=3)
    rows = np.append(index.sample_index, index.sample_index[-1:], axis=0)
    longer = GPTSamples(
        samples.dataset, replace(index, plan=plan, sample_index=rows, shuffle_index=np.arange(3))
    )
    last = longer.read(2)
    assert last.tokens.tolist()[1:] == [-1] * 4
    assert last.tokens[0] == longer.read(1).tokens[1]
    assert last.lengths.tolist() == [1]


@pytest.mark.parametrize("sample", [-1, 3, 2**70])
def test_a_sample_that_is_not_there_is_an_index_error(tmp_path, sample):
    samples = opened(tmp_path, numbered([13]))
    assert len(samples) == 3
    for read in (samples.read, lambda k: samples.read_batch([0, k])):
        with pytest.raises(IndexError, match=rf"sample {sample} not found \(the index has 3\)"):
            read(sample)


def bent(index, **arrays):
    return replace(index, **{name: np.array(values) for name, values in arrays.items()})


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize(
    "arrays",
    [
        {"document_index": [5, 0]},
        {"document_index": [0, 0]},
        {"sample_index": [[0, 9], [1, 1], [1, 5]]},
        {"sample_index": [[0, -1], [1, 1], [1, 5]]},
        {"sample_index": [[0, 0], [1, 9], [1, 5]]},
        {"sample_index": [[0, 0], [0, 1], [1, 5]]},
        {"sample_index": [[0, 2], [0, 0], [1, 5]]},
        {"sample_index": [[1, 0], [0, 0], [1, 5]]},
        {"sample_index": [[1, 0], [1, 5], [1, 5]]},
        {"sample_index": [[7, 0], [7, 5], [1, 5]]},
        {"shuffle_index": [2, 2]},
        {"shuffle_index": [9, 1]},
    ],
)
def test_an_index_of_other_data_is_named_and_reads_nothing_foreign(tmp_path, arrays, mmap):
    samples = opened(tmp_path, numbered([3, 7]), mmap=mmap, seed=0)
    other = GPTSamples(samples.dataset, bent(samples.index, **arrays))
    with pytest.raises(IntegrityError, match="sample 0 of the index does not fit the sequences of"):
        other.read(0)


def test_shapes_that_contradict_the_plan_are_refused(tmp_path):
    samples = opened(tmp_path, numbered([3, 7]))
    for arrays in ({"document_index": [0]}, {"sample_index": [[0, 0], [1, 1]]}, {"shuffle_index": [0]}):
        with pytest.raises(IntegrityError, match="the arrays of the index must have the shapes"):
            GPTSamples(samples.dataset, bent(samples.index, **arrays))


def test_reading_needs_numpy_alone(tmp_path):
    prefix = tmp_path / "data"
    write_dataset(prefix, numbered([3, 7]))
    program = f"""
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {{"numba", "xxhash", "orjson", "typer", "rich", "tokenizers"}}:
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
from tokshard.dataset.reader import IndexedDataset
from tokshard.samples.index.index import GPTDatasetIndex
from tokshard.samples.index.samples import GPTSamples
dataset = IndexedDataset({str(prefix)!r})
index = GPTDatasetIndex.build(
    dataset.sequence_lengths, range(2), sequence_length=4, seed=0, num_samples=None
)
print(GPTSamples(dataset, index).read_batch([0, 1]).sum())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().isdigit()
