import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from support.assignments import topology_of
from support.loader_plans import open_plan, plan_for, same, slow_inputs, some_documents, source_of
from support.restored_loaders import assert_same_after_restore
from tokshard.errors import UsageError
from tokshard.loader import BatchOptions
from tokshard.loader.assembly import DocumentAssembly, SampleAssembly, SampleShape, document_bounds
from tokshard.loader.memory import Memory
from tokshard.ranks.links import Bucketing
from tokshard.ranks.topology import FIELDS, context_slices
from tokshard.samples.index.samples import Sample


@st.composite
def micro_batches(draw):
    """Texts with many ends of documents and much padding, and how to read them."""
    context = draw(st.sampled_from([1, 2, 3]))
    length = 2 * context * draw(st.integers(1, 5))
    extra = draw(st.booleans())
    pad = draw(st.sampled_from([-1, 0, 3]))
    row = st.lists(st.sampled_from([pad, 0, 1, 2, 3]), min_size=length + extra, max_size=length + extra)
    options = {name: draw(st.booleans()) for name in ("reset_position_ids", "eod_mask_loss", "num_tokens")}
    return context, length, extra, pad, draw(st.lists(row, min_size=1, max_size=4)), options


def samples_of(texts, numbers=None, lengths=None):
    """Return samples: each of one document, or with ``lengths`` of several."""
    numbers = numbers or [[0]] * len(texts)
    lengths = lengths or [[len(text)] for text in texts]
    parts = zip(texts, numbers, lengths, strict=True)
    return [Sample(np.array(text), np.array(owners), np.array(sizes)) for text, owners, sizes in parts]


def assembled(texts, length, extra, fields, options, *place, numbers=None, lengths=None):
    assembly = SampleAssembly(SampleShape(length, extra, fields, *place), options)
    samples = samples_of(texts, numbers, lengths)
    return assembly.micro_batch(samples, np.zeros(len(texts), np.int16), Memory())


@given(case=micro_batches(), reset_attention=st.booleans(), data=st.data())
@settings(max_examples=300, deadline=None)
def test_fields_are_those_of_the_slow_twin(case, reset_attention, data):
    context, length, extra, pad, texts, chosen = case
    options = BatchOptions(
        eod_id=0, pad_id=pad, create_attention_mask=True, reset_attention_mask=reset_attention, **chosen
    )
    cp = data.draw(st.integers(0, context - 1))
    slices = context_slices(length, context, cp)
    places = [place for part in slices for place in range(part.start, part.stop)]
    batch = assembled(texts, length, extra, FIELDS[:-1], options, context, cp)
    wanted = ["tokens", "position_ids", "labels", "loss_mask", "attention_mask"]
    assert list(batch) == wanted + ["num_tokens"] * options.num_tokens
    for number, text in enumerate(texts):
        named = {name: chosen[name] for name in ("reset_position_ids", "eod_mask_loss")}
        tokens, labels, mask, positions, starts = slow_inputs(text, extra=extra, pad=pad, eod=0, **named)
        for name, row in zip(wanted, (tokens, positions, labels, mask), strict=False):
            assert batch[name][number].tolist() == [row[place] for place in places]
        reach = starts if reset_attention else [0] * length
        attended = [[reach[query] <= key <= query for key in range(length)] for query in places]
        assert np.array_equal(batch["attention_mask"][number, 0], ~np.array(attended))
        if options.num_tokens:
            assert batch["num_tokens"][number] == sum(mask)
    dtypes = [batch[name].dtype.name for name in wanted]
    assert dtypes == ["int64", "int64", "int64", "float32", "bool"]


@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=6),
    shortfall=st.integers(0, 3),
    extra=st.booleans(),
)
def test_bounds_cut_a_sample_where_its_documents_change(lengths, shortfall, extra):
    assume(lengths[-1] and sum(lengths) + shortfall - extra >= 1)
    length = sum(lengths) + shortfall - (extra and not shortfall)
    assume(length >= 1)
    bounds = document_bounds(np.array(lengths), length)
    assert (bounds[0], bounds[-1]) == (0, length)
    owners = [number for number, size in enumerate(lengths) for _ in range(size)][:length]
    owners += [owners[-1]] * (length - len(owners))
    found = [number for number, size in enumerate(np.diff(bounds)) for _ in range(size)]
    changes = [place for place in range(1, length) if owners[place] != owners[place - 1]]
    assert [place for place in range(1, length) if found[place] != found[place - 1]] == changes


def test_boundaries_and_documents_come_as_arrays_of_fixed_shape():
    numbers, lengths = [[7, 9, 4], [5]], [[2, 2, 1], [3]]
    texts = [[1, 2, 3, 4, 5], [6, 7, 8, -1, -1]]
    options = BatchOptions(cu_seqlens=True, document_ids=True)
    batch = assembled(texts, 4, True, FIELDS, options, numbers=numbers, lengths=lengths)
    assert batch["cu_seqlens"].tolist() == [[0, 2, 4, 4, 4], [0, 4, 4, 4, 4]]
    assert batch["max_seqlen"].tolist() == [2, 4]
    assert batch["position_ids"].tolist() == [[0, 1, 0, 1], [0, 1, 2, 3]]
    assert batch["document_ids"].tolist() == [[7, 7, 9, 9], [5, 5, 5, -1]]
    assert batch["dataset_ids"].tolist() == [0, 0]
    assert batch["cu_seqlens"].dtype == batch["max_seqlen"].dtype == np.int32


@pytest.mark.parametrize("fields", [("labels", "loss_mask"), ("tokens", "position_ids"), ("cu_seqlens",), ()])
def test_a_rank_gets_the_fields_that_its_stage_reads(fields):
    options = BatchOptions(num_tokens=True, document_ids=True)
    batch = assembled([[1, 2, 3, 4, 5]], 4, True, fields, options, numbers=[[7]])
    more = {"num_tokens", "document_ids", "dataset_ids"} if fields else set()
    assert set(batch) == {*fields, *more} | ({"max_seqlen"} if "cu_seqlens" in fields else set())


def test_changing_one_field_changes_no_other():
    batch = assembled([[1, 2, 3, 4, 5]] * 2, 4, True, FIELDS[:-1], BatchOptions())
    before = {name: array.copy() for name, array in batch.items()}
    for name in batch:
        batch[name] += 1
        assert all(np.array_equal(batch[other], before[other]) for other in batch if other != name)
        batch[name] -= 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eod_mask_loss": True}, "eod_mask_loss requires eod_id"),
        ({"reset_attention_mask": True, "eod_id": 0}, "requires create_attention_mask"),
        (
            {"cu_seqlens": True, "create_attention_mask": True},
            "cu_seqlens cannot be used with create_attention_mask",
        ),
        ({"pad_to_multiple": 0}, "must be at least 1, got 0"),
        ({"max_length": 0}, "must be at least 1, got .* and 0"),
        ({"tokens_only": True, "num_tokens": True}, "tokens_only cannot be used with num_tokens"),
        ({"tokens_only": True, "cu_seqlens": True}, "tokens_only cannot be used with cu_seqlens"),
        ({"tokens_only": True, "eod_id": 0, "eod_mask_loss": True}, "cannot be used with eod_mask_loss"),
        ({"tokens_only": True, "pad_to_multiple": 8}, "tokens_only cannot be used with pad_to_multiple"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        BatchOptions(**options)


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
    samples = samples_of([np.array(document, np.uint16) for document in documents])
    cut = [document[:max_length] for document in documents]
    length = max(-(-max(map(len, cut)) // multiple), 1) * multiple
    parts = []
    for cp in range(context):
        assembly = DocumentAssembly(SampleShape(0, False, FIELDS[:-1], context, cp), options)
        parts.append(assembly.micro_batch(samples, np.zeros(len(samples), np.int16), Memory()))
        assert parts[-1]["lengths"].tolist() == [len(document) for document in cut]
    half = length // context // 2

    def whole(name):
        if context == 1:
            return parts[0][name]
        return np.concatenate([parts[0][name][:, :half], parts[1][name], parts[0][name][:, half:]], axis=1)

    for row, document in enumerate(cut):
        clean = [0 if token == pad else token for token in document]
        rest = [0] * (length - len(document))
        labels, weights = (
            [*clean[1:], 0][: len(document)],
            [float(token != pad) for token in document[1:]] + [0.0],
        )
        assert whole("tokens")[row].tolist() == clean + rest
        assert whole("labels")[row].tolist() == labels + rest
        assert whole("loss_mask")[row].tolist() == weights[: len(document)] + rest
        assert whole("position_ids")[row].tolist() == list(range(length))
        assert parts[0]["num_tokens"][row] == sum(weights[: len(document)])


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    directory = tmp_path_factory.mktemp("documents")
    source = source_of(directory, datasets=3, documents=32, kind="documents")
    return directory, source, [document for number in range(3) for document in some_documents(number, 32)]


def bucketed(documents, ranks=2):
    directory, source, _ = documents
    links = (Bucketing(source.total, 48, 8, 7, per_epoch=True),)
    return plan_for(
        directory,
        source=source,
        topology=topology_of(ranks),
        micro=4,
        links=links,
        sort_key="length",
        epochs=2,
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
            for row, sample_id in enumerate(ids):
                tokens = documents[2][sample_id]
                assert batch["tokens"][row, : len(tokens)].tolist() == tokens
                owners = [sample_id % 32] * len(tokens) + [-1] * (batch["tokens"].shape[1] - len(tokens))
                assert batch["document_ids"][row].tolist() == owners
            assert batch["dataset_ids"].tolist() == [sample_id // 32 for sample_id in ids]
    assert sorted(seen) == sorted(list(range(96)) * 2)
    plain = plan_for(documents[0], source=documents[1], topology=topology_of(2), micro=4, epochs=2)
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
    path = plan_for(documents[0], source=documents[1], topology=topology_of(2, context=2))
    with pytest.raises(
        UsageError, match="pad_to_multiple must be divisible by 2 x context-parallel size = 4, got 6"
    ):
        open_plan(path, options=BatchOptions(pad_to_multiple=6))
    shapes = [[batch["tokens"].shape for batch in open_plan(path, rank)] for rank in range(2)]
    assert shapes[0] == shapes[1]
    assert all(length % 2 == 0 for _, length in shapes[0])
