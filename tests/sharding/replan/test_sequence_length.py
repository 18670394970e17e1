"""Another sequence length in the middle of a run: every token is read as an input as often as before."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from support.blends import TOKENIZER, write_dataset
from support.replanned_plans import flat, plan_of, reads_of
from tokshard.blending.job import build_blend
from tokshard.blending.options import BuilderConfig
from tokshard.blending.recipe import BlendRecipe, Mixture, Source
from tokshard.dataset.view import data_prefix
from tokshard.errors import UsageError
from tokshard.gpt_index.packing import Packing
from tokshard.gpt_index.sizes import Sizes
from tokshard.sharding.discovery import RequestedSamples, open_sources
from tokshard.sharding.locator import Locator
from tokshard.sharding.plan import read_plan
from tokshard.sharding.publication import write_plan
from tokshard.sharding.replan.job import continue_plan
from tokshard.sharding.replan.proof import verify_replan
from tokshard.sharding.requests import ReplanRequest
from tokshard.sharding.schedule import BatchSchedule
from tokshard.sharding.topology import Topology

MODES = ["single", "sequential", "contiguous", "chunked", "cyclic"]


def blended(directory, lengths, *, weights=None, samples=None, packed=False, sequence_length=4, name="mix"):
    """Write datasets whose tokens are all different, blend them, and return the source of training."""
    prefixes = []
    for number, each in enumerate(lengths):
        prefix = str(directory / f"d{number}")
        prefixes.append(write_dataset(prefix, each, first_token=10_000 * number))
    shares = weights or [None] * len(prefixes)
    pack = "best-fit" if packed else None
    sources = (Source(prefix, share, pack=pack) for prefix, share in zip(prefixes, shares, strict=True))
    config = BuilderConfig(
        sequence_length=sequence_length,
        sizes=Sizes(samples, 0, 0),
        split="1",
        tokenizer=TOKENIZER,
        surplus=0.5,
        packing=Packing() if packed else None,
    )
    build_blend(BlendRecipe(Mixture(tuple(sources))), config, directory / name, force=True)
    return open_sources([str(directory / name)], RequestedSamples())["train"]


def rows_of(reference):
    """List the input tokens of each sample of a dataset, token by token, and those after the last."""
    dataset, index = reference.open_dataset(), reference.open_index()
    bounds = [tuple(row) for row in index.sample_index.tolist()]
    stream = [
        (position, place, int(token))
        for position, sequence in enumerate(index.document_index.tolist())
        for place, token in enumerate(dataset[sequence])
    ]
    if index.plan.packed is not None:
        stream = [entry for entry in stream if entry[:2] < bounds[-1]]
    rows = [[] for _ in bounds]
    for position, place, token in stream:
        rows[max(number for number, bound in enumerate(bounds) if bound <= (position, place))].append(token)
    *rows, rest = rows
    return [rows[row] for row in index.shuffle_index.tolist()], rest


class Tokens:
    """The tokens of the samples of a stream, listed once."""

    def __init__(self, source):
        self.source = source
        self.locator = Locator(source)
        self.rows = [rows_of(reference) for reference in source.datasets]

    def of(self, ids):
        datasets, samples = self.locator.locate(np.array(ids, np.int64))
        pairs = zip(datasets.tolist(), samples.tolist(), strict=True)
        return Counter(token for dataset, sample in pairs for token in self.rows[dataset][0][sample])

    def of_rest(self):
        """Return the tokens after the last sample of datasets of which every sample is read once."""
        datasets, samples = self.locator.locate(np.arange(self.source.total))
        found = Counter()
        for number, (rows, rest) in enumerate(self.rows):
            if sorted(samples[datasets == number].tolist()) == list(range(len(rows))):
                found += Counter(rest)
        return found


def everything(source, epochs=1):
    tokens = Tokens(source)
    once = tokens.of(range(source.total)) + tokens.of_rest()
    return Counter({token: times * epochs for token, times in once.items()})


def by_dataset(tokens, count):
    return [sum(times for token, times in tokens.items() if token // 10_000 == n) for n in range(count)]


def number_of(reference):
    return int(Path(data_prefix(reference.prefix)).name[1:])


@settings(max_examples=20, deadline=None, phases=[Phase.generate])
@given(data=st.data())
def test_each_token_is_read_as_often_as_the_first_plan_was_going_to(tmp_path_factory, data):
    draw = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731 - as short as a name
    directory = tmp_path_factory.mktemp("chain")
    count, packed = draw(1, 3), data.draw(st.booleans())
    lengths = [[draw(0, 9) for _ in range(draw(3, 9))] + [20] for _ in range(count)]
    weighted = data.draw(st.booleans())
    shape = {"weights": [1 + n for n in range(count)], "samples": draw(8, 30)} if weighted else {}
    source = blended(directory, lengths, packed=packed, sequence_length=draw(2, 5), **shape)
    mode = data.draw(st.sampled_from(MODES))
    shuffle = "none" if mode == "cyclic" else data.draw(st.sampled_from(["none", "samples"]))
    ranks = draw(1, 2)
    epochs = 1 if packed else draw(1, 2)
    plan = plan_of(source, ranks, batch=ranks, mode=mode, shuffle=shuffle, epochs=epochs)
    left = everything(source, epochs)
    for number in range(draw(1, 3)):
        write_plan(plan, directory / f"plan{number}")
        plan = read_plan(directory / f"plan{number}")
        tokens, source = Tokens(plan.streams["train"].source), plan.streams["train"].source
        assignment = plan.streams["train"].assignment
        # Of an epoch that is over, the tail is no part of what is left.
        step = draw(0, assignment.steps if epochs == 1 or number else assignment.steps // 2 - 1)
        read = tokens.of(flat(reads_of(plan, steps=step)))
        assert not read - left, "a token is read more often than it is there"
        left -= read
        ranks, length = draw(1, 2), draw(1, 9)
        if epochs == 2 and not number and length == source.sequence_length:
            length += 1
        changes = {"topology": Topology(ranks), "schedule": BatchSchedule.constant(ranks)}
        if length != source.sequence_length:
            changes["sequence_length"] = length
        request = ReplanRequest(consumed_samples=assignment.consumed_after(step), **changes)
        try:
            after = continue_plan(plan, request, directory / f"plan{number + 1}")
        except UsageError:
            return
        assert verify_replan(after, parent=plan, deep=True) == []
        if "sequence_length" in changes:
            left = check_change(after, left, source, length)
        plan = after
    tokens = Tokens(plan.streams["train"].source)
    assert not tokens.of(flat(reads_of(plan))) - left


def check_change(after, left, source, length):
    """Check a change of the sequence length against the tokens that are left; return those planned."""
    stream, change = after.streams["train"], after.history[-1].streams["train"].length_change
    assert stream.source.sequence_length == length
    planned = everything(stream.source)
    remainders = [0] * 3
    for reference, count in zip(source.datasets, change.tokens, strict=True):
        assert count.adds_up
        remainders[number_of(reference)] += count.remainder
    samples = Tokens(stream.source).of(range(stream.source.total))
    assert not samples - left, "a token is planned that was read"
    assert by_dataset(left - samples, 3) == remainders
    assert by_dataset(samples, 3) == [
        sum(c.planned for r, c in zip(source.datasets, change.tokens, strict=True) if number_of(r) == n)
        for n in range(3)
    ]
    for reference, count in zip(source.datasets, change.tokens, strict=True):
        padded = reference.index.epochs.packed is not None
        assert count.remainder <= (0 if padded else length)
    return planned
