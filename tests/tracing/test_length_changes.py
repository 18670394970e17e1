"""Tracing through plans whose sequence length has changed: views lead to the documents of their datasets."""

from __future__ import annotations

from collections import Counter

import numpy as np

from support.length_changes import blended
from support.replanned_plans import plan_of, reads_of
from tokshard.gpt_index.samples import GPTSamples
from tokshard.sharding.locator import Locator
from tokshard.sharding.plan import read_plan
from tokshard.sharding.publication import write_plan
from tokshard.sharding.replan.job import continue_plan
from tokshard.sharding.requests import ReplanRequest
from tokshard.tracing.job import trace_items, trace_step
from tokshard.tracing.options import TraceItem
from tokshard.tracing.traced_data import open_plan

LENGTHS = [[7, 12, 0, 3, 9, 20, 5, 8], [6, 0, 6, 11, 2, 15]]


def chain(directory):
    """Return plans of 4, of 9 and of 5 tokens a sample, each with the steps that are taken of it."""
    plans, steps = [plan_of(blended(directory, LENGTHS), 1, batch=1)], [5, 3, None]
    for number, length in enumerate((9, 5)):
        write_plan(plans[-1], directory / f"plan{number}")
        plan = read_plan(directory / f"plan{number}")
        consumed = plan.streams["train"].assignment.consumed_after(steps[number])
        request = ReplanRequest(consumed_samples=consumed, sequence_length=length)
        plans.append(continue_plan(plan, request, directory / f"plan{number + 1}"))
    write_plan(plans[-1], directory / "plan2")
    return list(zip(plans, steps, strict=True))


def texts_of(plan, steps):
    """Return the tokens of the samples of each step, with their last labels."""
    source = plan.streams["train"].source
    samples = [GPTSamples(each.open_dataset(), each.open_index()) for each in source.datasets]
    for ids in reads_of(plan, steps=steps):
        datasets, numbers = Locator(source).locate(np.array(ids, np.int64))
        pairs = zip(datasets.tolist(), numbers.tolist(), strict=True)
        yield [token for dataset, sample in pairs for token in samples[dataset].read(sample).tokens.tolist()]


def tokens_of(directory, dataset, document, first, stop):
    """Return tokens of a document by its dataset and number, as they were written."""
    number = int(dataset.removeprefix(f"{directory}/d"))
    start = 10_000 * number + sum(LENGTHS[number][:document])
    return range(start + first, start + stop)


def test_steps_are_traced_to_documents_and_documents_to_the_steps_of_all_plans(tmp_path):
    plans = chain(tmp_path)
    through = open_plan(str(tmp_path / "plan2"))
    assert set(through.datasets) == {f"{tmp_path}/d0", f"{tmp_path}/d1"}
    for step, text in enumerate(texts_of(*plans[-1])):
        (sample,) = trace_step(through, "train", step).samples
        parts = [
            tokens_of(tmp_path, sample.dataset, piece.document, piece.first_token, piece.stop_token)
            for piece in sample.pieces
        ]
        assert [token for part in parts for token in part] == text
        assert sample.view.startswith(f"{tmp_path}/plan2/views-")
    expected = {
        (plan.plan_id, step): Counter(text)
        for plan, steps in plans
        for step, text in enumerate(texts_of(plan, steps))
    }
    items = [
        TraceItem(f"{prefix}#{document}", "document", prefix, document)
        for number, prefix in enumerate(through.datasets)
        for document in range(len(LENGTHS[number]))
    ]
    found = {place: Counter() for place in expected}
    report = trace_items(through, items)
    for document in (document for item in report.items for document in item.documents):
        for read in document.reads:
            part = tokens_of(tmp_path, document.dataset, document.document, read.first_token, read.stop_token)
            found[read.plan_id, read.step] += Counter(part)
    assert found == expected
    assert report.warnings == ()
