"""Plans of data whose tokens are all different, and the tokens of their samples, listed one by one."""

from __future__ import annotations

from collections import Counter

import numpy as np

from support.blends import TOKENIZER, write_dataset
from tokshard.blending.job import build_blend
from tokshard.blending.options import BuilderConfig
from tokshard.blending.recipe import BlendRecipe, Mixture, Source
from tokshard.gpt_index.packing import Packing
from tokshard.gpt_index.sizes import Sizes
from tokshard.sharding.discovery import RequestedSamples, open_sources
from tokshard.sharding.locator import Locator


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
