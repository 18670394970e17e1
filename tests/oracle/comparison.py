"""One configuration given to Megatron and to tokshard: equal files, a cache that is found, equal samples."""

from __future__ import annotations

import os
import shutil
from collections import Counter

import numpy as np
import pytest

from oracle import candidate
from oracle.configurations import MISREAD_SPLIT_TEXTS, Configuration
from oracle.reference import Megatron, Outcome, cache_files, file_states, items
from tokshard.errors import TokshardError

EQUAL = "equal"
SAMPLES_COMPARED = 6


def refusal(configuration: Configuration, theirs: Outcome) -> str | None:
    """Return why tokshard must refuse: Megatron fails, or goes on with what cannot be meant; else None."""
    if configuration.split in MISREAD_SPLIT_TEXTS:
        return "a split that is misread"
    if configuration.repeats_a_source:
        return "a source twice"
    if theirs.failure is not None:
        return f"Megatron: {type(theirs.failure).__name__}"
    for dataset in theirs.gpt_datasets:
        if dataset.dataset.sequence_lengths[dataset.indices].sum() == 0:
            return "a split without tokens"
        if dataset.num_samples is None and len(dataset) == 0:
            return "an epoch without a sample"
    return None


def compare(configuration: Configuration, megatron: Megatron, directory: str, patch) -> str:
    """Compare everything about one configuration in a new directory; return what it was, for counting."""
    os.makedirs(directory)
    patch.chdir(directory)
    for source in configuration.sources:
        source.write(directory)
    theirs = megatron.build(configuration, "theirs" if configuration.cached else None)
    # The paths of datasets enter the hash, so that both caches beside them are the same directory.
    if not configuration.cached:
        remove_own_caches(configuration)
    cache_directory = "ours" if configuration.cached else None
    reason = refusal(configuration, theirs)
    if reason is not None:
        check_refused(configuration, cache_directory, reason)
        return reason
    candidate.build(configuration, cache_directory)
    ours = candidate.megatron_files(cache_files(configuration, cache_directory))
    assert sorted(ours) == sorted(theirs.files)
    assert [name for name in ours if ours[name] != theirs.files[name]] == []
    check_found(configuration, megatron, cache_directory, theirs)
    return EQUAL


def remove_own_caches(configuration: Configuration) -> None:
    for source in configuration.sources:
        shutil.rmtree(source.prefix, ignore_errors=True)


def check_refused(configuration: Configuration, cache_directory: str | None, reason: str) -> None:
    """Check that building raises one of tokshard's errors, which names what it means, and writes nothing."""
    with pytest.raises(TokshardError) as caught:
        candidate.build(configuration, cache_directory)
    error = caught.value
    text = f"{error.message} {error.hint or ''}"
    if "IndexError" in reason:
        assert "surplus" in text
    # A blend that would draw too much is found first, where another split of it has nothing at all.
    if ("EndlessError" in reason or "without tokens" in reason) and "would draw" not in text:
        assert "sequence" in text
        assert any(source.prefix in text for source in configuration.sources)
    # Which document is read last is only known when the order has been made; other indexes may be there.
    if "partial last sample" not in text:
        assert cache_files(configuration, cache_directory) == {}


def check_found(
    configuration: Configuration, megatron: Megatron, cache_directory: str | None, theirs: Outcome
) -> None:
    """Check that Megatron, started on our cache, writes nothing and gives the samples that it gave before."""
    before = file_states(".")
    again = megatron.build(configuration, cache_directory)
    assert again.failure is None
    assert again.writes == []
    assert file_states(".") == before
    assert list(map(type, again.splits)) == list(map(type, theirs.splits))
    for expected, found in zip(
        theirs.gpt_datasets + theirs.blended_datasets,
        again.gpt_datasets + again.blended_datasets,
        strict=True,
    ):
        assert len(expected) == len(found)
        for number in chosen(len(expected)):
            equal_samples(items(expected, number), items(found, number))
    for dataset in again.gpt_datasets:
        check_samples(configuration, dataset, cache_directory)


def chosen(count: int) -> list[int]:
    """Return the first, the last and some other numbers below ``count``."""
    numbers = np.random.RandomState(count % 1000).randint(0, max(count, 1), SAMPLES_COMPARED - 2)
    return sorted({0, count - 1, *numbers.tolist()}) if count else []


def check_samples(configuration: Configuration, dataset, cache_directory: str | None) -> None:
    """Check that GPTSamples reads what GPTDataset reads."""
    samples = candidate.samples(configuration, dataset, cache_directory)
    assert len(samples) == len(dataset)
    numbers = chosen(len(dataset))
    for number in numbers:
        text, document_ids = dataset._query_document_sample_shuffle_indices(number)[:2]
        sample = samples.read(number)
        assert sample.tokens.dtype == text.dtype
        np.testing.assert_array_equal(sample.tokens, text)
        np.testing.assert_array_equal(sample.document_ids, document_ids)
    if numbers:
        batch = samples.read_batch(np.array(numbers))
        np.testing.assert_array_equal(batch, [samples.read(number).tokens for number in numbers])


def equal_samples(a, b) -> None:
    for name in ("tokens", "labels", "loss_mask", "position_ids"):
        assert getattr(a, name).dtype == getattr(b, name).dtype
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)


def campaign(configurations, megatron: Megatron, tmp_path) -> Counter:
    """Compare many configurations; return how many there were of each kind of result."""
    counts: Counter = Counter()
    for number, configuration in enumerate(configurations):
        with pytest.MonkeyPatch.context() as patch:
            try:
                counts[compare(configuration, megatron, str(tmp_path / str(number)), patch)] += 1
            except BaseException as error:
                error.add_note(f"with {configuration.name}: {configuration}"[:3000])
                raise
        shutil.rmtree(tmp_path / str(number))
    return counts
