"""Tracing through indexes, blends and plans against the twin that lists everything that is read."""

import tempfile

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support import traced as support
from support.assignments import plan_with, topology_of
from support.replanned_plans import continued
from tokshard.checks.trace.options import TraceItem
from tokshard.checks.trace.queries import trace_items, trace_sample, trace_step
from tokshard.checks.trace.reads import stages_of
from tokshard.checks.trace.traced_data import TracedData, TracedStream
from tokshard.ranks.choices import Shuffling
from tokshard.samples.index.packing import Packing

worlds = st.lists(support.documents, min_size=1, max_size=3)
indexes = st.one_of(
    st.fixed_dictionaries(
        {
            "sequence_length": st.integers(1, 12),
            "seed": st.integers(0, 9),
            "num_samples": st.none() | st.integers(1, 40),
            "extra_token": st.booleans(),
            "unused": st.integers(0, 3),
            "packing": st.sampled_from([None, Packing(), Packing(max_documents=2)]),
        }
    ),
    st.fixed_dictionaries({"first": st.integers(0, 3), "unused": st.integers(0, 3)}),
)
few = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow]
)


def made(directory, lengths, index, blend):
    """Return a source, or None where a dataset is too small for the index."""
    index = dict(index)
    if index.get("sequence_length", 0) > min(sum(map(sum, documents)) for documents in lengths) - 1:
        index["sequence_length"] = 2
    return support.source_of(directory, lengths, blend=blend, **index)


def everything(lengths, source):
    """Return an item for every document, and what it is."""
    return [
        (
            TraceItem(f"{dataset.path_prefix}#{document}", "document", dataset.path_prefix, document),
            number,
            document,
        )
        for number, dataset in enumerate(source.datasets)
        for document in range(len(lengths[number]))
    ]


def found_by(report, items, micro_batch_size=1):
    """Return all reads of a report as a sorted list of tuples."""
    found = []
    for traced, (_, number, document) in zip(report.items, items, strict=True):
        for traced_document in traced.documents:
            assert traced_document.document == document
            for r in traced_document.reads:
                place = None if r.row is None else r.micro_batch * micro_batch_size + r.row
                where = (r.epoch, r.step, r.data_parallel_rank, place, r.repeated, r.seen)
                piece = (number, document, r.sequence, r.first_token, r.stop_token, r.label_only)
                found.append((r.sample, *piece, *where))
    return sorted(found)


@given(worlds, indexes, st.none() | st.integers(1, 60), st.integers(0, 40))
@few
def test_samples_are_traced_there_and_back_as_the_twin_lists_them(lengths, index, blend, consumed):
    with tempfile.TemporaryDirectory() as directory:
        source = made(directory, lengths, index, blend)
        through, items = support.data_of(source), everything(lengths, source)
        expected = []
        for sample in range(source.total):
            pieces = support.slow_pieces(lengths, source, sample)
            nowhere = (None, None, None, None, None, sample < consumed)
            expected += [(sample, *piece, *nowhere) for piece in pieces]
            forward = trace_sample(through, "train", sample).samples[0]
            number = next(
                n for n, dataset in enumerate(source.datasets) if dataset.path_prefix == forward.dataset
            )
            assert [
                (number, p.document, p.sequence, p.first_token, p.stop_token, p.label_only)
                for p in forward.pieces
            ] == pieces
            sizes = [p.stop_token - p.first_token for p in forward.pieces]
            assert [p.position for p in forward.pieces] == [sum(sizes[:at]) for at in range(len(sizes))]
            assert forward.tokens == sum(sizes)
        report = trace_items(through, [item for item, _, _ in items], consumed_samples=consumed)
        assert found_by(report, items) == sorted(expected)
        for traced, (_, number, document) in zip(report.items, items, strict=True):
            inputs = [read for read in traced.documents[0].reads if not read.label_only]
            assert traced.status == ("read" if inputs else "unread")
            assert traced.documents[0].tokens == sum(lengths[number][document])
            assert traced.seen == any(read.seen for read in inputs)


@given(worlds, indexes, st.none() | st.integers(8, 60), support.requests, st.data())
@few
def test_plans_of_all_modes_are_traced_there_and_back_as_the_twin_lists_them(
    lengths, index, blend, request, data
):
    with tempfile.TemporaryDirectory() as directory:
        source = made(directory, lengths, index, blend)
        ranks, size, batches = (data.draw(st.integers(1, most)) for most in (3, 2, 2))
        stream = support.stream_of(source, ranks, size, batches, request)
        if stream is None:
            return
        through, items = support.data_of(source, stream, topology_of(ranks)), everything(lengths, source)
        consumed = data.draw(st.integers(0, 80))
        pieces = [support.slow_pieces(lengths, source, sample) for sample in range(source.total)]
        expected_reads = list(support.slow_reads(stream.order, through.streams["train"].key_of))
        expected = [
            (sample, *piece, *where, after <= consumed)
            for sample, *where, after in expected_reads
            for piece in pieces[sample]
        ]
        report = trace_items(through, [item for item, _, _ in items], consumed_samples=consumed)
        assert found_by(report, items, size) == sorted(expected)
        reads = [read for item in report.items for document in item.documents for read in document.reads]
        assert all(read.row < size for read in reads)
        assert {rank.data_parallel_rank: rank.ranks for rank in report.ranks} == {
            rank: (rank,) for rank in sorted({read.data_parallel_rank for read in reads})
        }
        step = data.draw(st.integers(0, stream.order.steps - 1))
        forward = trace_step(through, "train", step)
        assert [
            (sample.data_parallel_rank, sample.micro_batch * size + sample.row, sample.sample)
            for sample in forward.samples
        ] == sorted((rank, row, sample) for sample, _, at, rank, row, _, _ in expected_reads if at == step)
        sample = data.draw(st.integers(0, source.total - 1))
        reads = trace_sample(through, "train", sample).reads
        assert sorted(
            (r.epoch, r.step, r.data_parallel_rank, r.micro_batch * size + r.row, r.repeated) for r in reads
        ) == sorted(tuple(where) for number, *where, _ in expected_reads if number == sample)


@given(st.lists(support.documents, min_size=1, max_size=2), st.integers(0, 3), st.data())
@settings(max_examples=25, deadline=None)
def test_a_plan_is_traced_through_those_that_it_continues(lengths, seed, data):
    with tempfile.TemporaryDirectory() as directory:
        source = support.source_of(
            directory, lengths, sequence_length=2, seed=seed, num_samples=48, extra_token=True
        )
        request = {"epochs": 2, "shuffle": Shuffling("samples"), "shuffle_per_epoch": True}
        stream = support.stream_of(source, 2, 2, 1, request)
        first = plan_with(topology_of(2), {"train": stream})
        stop = data.draw(st.integers(1, stream.order.steps - 4))
        second = continued(first, 4 * stop, 4, global_batch_size=8)
        stages, others = stages_of(second, "train")
        assert ([stage.plan_id for stage in stages], others) == ([first.plan_id, second.plan_id], 0)
        through = support.data_of(source, second.streams["train"], topology_of(4), stages)
        items, consumed = everything(lengths, source), 4 * stop + 8
        pieces = [support.slow_pieces(lengths, source, sample) for sample in range(source.total)]
        expected = [
            (sample, *piece, *where, after <= consumed)
            for order, steps in ((stream.order, stop), (second.streams["train"].order, None))
            for sample, *where, after in support.slow_reads(order, None, steps)
            for piece in pieces[sample]
        ]
        report = trace_items(through, [item for item, _, _ in items], consumed_samples=consumed)
        assert found_by(report, items) == sorted(expected)


@given(st.lists(support.documents, min_size=2, max_size=3), st.data())
@settings(max_examples=25, deadline=None)
def test_a_list_finds_what_each_of_its_items_finds_alone(lengths, data):
    with tempfile.TemporaryDirectory() as directory:
        source = support.source_of(
            directory, lengths, blend=50, sequence_length=4, seed=3, num_samples=30, extra_token=True
        )
        stream = support.stream_of(source, 2, 1, 2, {"mode": "single", "epochs": 2})
        through = support.data_of(source, stream, topology_of(2))
        items = [item for item, _, _ in everything(lengths, source)]
        chosen = data.draw(st.lists(st.sampled_from(items), min_size=1, max_size=6))
        together = trace_items(through, chosen)
        alone = [trace_items(through, [item]).items[0] for item in chosen]
        assert list(together.items) == alone


def test_a_stream_is_looked_through_alone_and_others_have_no_count_of_consumed_samples(tmp_path):
    source = support.source_of(
        str(tmp_path), [[[9], [9]]], sequence_length=4, seed=1, num_samples=None, extra_token=True
    )
    through = support.data_of(source)
    streams = {name: TracedStream(name, source) for name in ("train", "valid")}
    both = TracedData("blend", "here", streams, through.datasets)
    item = TraceItem("x", "document", source.datasets[0].path_prefix, 0)
    every = trace_items(both, [item], consumed_samples=99).items[0].documents[0].reads
    assert {(read.stream, read.seen) for read in every} == {("train", True), ("valid", None)}
    alone = trace_items(both, [item], streams=["valid"], consumed_samples=0).items[0]
    assert alone.seen is False
    assert {(read.stream, read.seen) for read in alone.documents[0].reads} == {("valid", False)}
