import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.loader_plans import open_plan, plan_for, same, some_documents, source_of
from tokshard.errors import UsageError
from tokshard.loader import BatchOptions
from tokshard.loader.assembly import DocumentAssembly
from tokshard.loader.memory import Memory
from tokshard.sharding.order import Bucketing
from tokshard.sharding.topology import FIELDS, Topology
from tokshard.testing import assert_same_after_restore


@settings(max_examples=200, deadline=None)
@given(
    documents=st.lists(st.lists(st.integers(0, 9), max_size=9), min_size=1, max_size=5),
    multiple=st.integers(1, 5),
    context=st.sampled_from([1, 2]),
    max_length=st.none() | st.integers(1, 9),
    pad=st.sampled_from([-1, 4]),
)
def test_documents_are_padded_to_the_longest_and_its_multiple(documents, multiple, context, max_length, pad):
    multiple *= 2 * context if context > 1 else 1
    options = BatchOptions(pad_to_multiple=multiple, max_length=max_length, num_tokens=True, pad_id=pad)
    arrays = [np.array(one, np.uint16) for one in documents]
    numbers, datasets = np.arange(len(arrays)), np.zeros(len(arrays), np.int16)
    cut = [one[:max_length] for one in documents]
    length = max(-(-max(map(len, cut)) // multiple), 1) * multiple
    parts = []
    for cp in range(context):
        assembly = DocumentAssembly(FIELDS[:-1], options, context, cp)
        parts.append(assembly.micro_batch(arrays, numbers, datasets, Memory()))
        assert parts[-1]["lengths"].tolist() == [len(one) for one in cut]
    half = length // context // 2

    def whole(name):
        if context == 1:
            return parts[0][name]
        return np.concatenate([parts[0][name][:, :half], parts[1][name], parts[0][name][:, half:]], axis=1)

    for row, one in enumerate(cut):
        clean = [0 if token == pad else token for token in one]
        rest = [0] * (length - len(one))
        labels, weights = [*clean[1:], 0][: len(one)], [float(token != pad) for token in one[1:]] + [0.0]
        assert whole("tokens")[row].tolist() == clean + rest
        assert whole("labels")[row].tolist() == labels + rest
        assert whole("loss_mask")[row].tolist() == weights[: len(one)] + rest
        assert whole("position_ids")[row].tolist() == list(range(length))
        assert parts[0]["num_tokens"][row] == sum(weights[: len(one)])


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    directory = tmp_path_factory.mktemp("documents")
    source = source_of(directory, datasets=3, documents=32, kind="documents")
    return directory, source, [one for number in range(3) for one in some_documents(number, 32)]


def bucketed(documents, ranks=2):
    directory, source, _ = documents
    links = (Bucketing(source.total, 48, 8, 7),)
    return plan_for(
        directory, source=source, topology=Topology(ranks), micro=4, links=links, sort_key="length", epochs=2
    )


def test_documents_of_similar_length_come_together(documents):
    path = bucketed(documents)
    seen, padding = [], 0
    for rank in range(2):
        loader = open_plan(path, rank, options=BatchOptions(pad_to_multiple=2, document_ids=True))
        for number, batch in enumerate(loader):
            ids = loader.sample_ids(number)
            seen += ids
            padding += batch["tokens"].size - batch["lengths"].sum()
            for row, one in enumerate(ids):
                tokens = documents[2][one]
                assert batch["tokens"][row, : len(tokens)].tolist() == tokens
                owners = [one % 32] * len(tokens) + [-1] * (batch["tokens"].shape[1] - len(tokens))
                assert batch["document_ids"][row].tolist() == owners
            assert batch["dataset_ids"].tolist() == [one // 32 for one in ids]
    assert sorted(seen) == sorted(list(range(96)) * 2)
    plain = plan_for(documents[0], source=documents[1], topology=Topology(2), micro=4, epochs=2)
    unsorted = sum(
        batch["tokens"].size - batch["lengths"].sum()
        for rank in range(2)
        for batch in open_plan(plain, rank, options=BatchOptions(pad_to_multiple=2))
    )
    assert padding < unsorted / 2


def test_documents_are_restored_and_read_at_random(documents):
    path = bucketed(documents)
    loader = open_plan(path, 1)
    batches = list(loader.clone())
    assert all(same(loader[number], batches[number]) for number in reversed(range(len(loader))))
    assert assert_same_after_restore(loader, fresh=lambda: open_plan(path, 1)) == len(batches) + 1


def test_context_parallel_documents_need_a_multiple_that_can_be_cut(documents):
    path = plan_for(documents[0], source=documents[1], topology=Topology(2, context=2))
    with pytest.raises(
        UsageError, match="pad_to_multiple 6 is not divisible by 2 x context-parallel size = 4"
    ):
        open_plan(path, options=BatchOptions(pad_to_multiple=6))
    shapes = [[batch["tokens"].shape for batch in open_plan(path, rank)] for rank in range(2)]
    assert shapes[0] == shapes[1]
    assert all(length % 2 == 0 for _, length in shapes[0])
