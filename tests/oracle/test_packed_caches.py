"""P51: packed indexes that tokshard builds, read by an unmodified Megatron and by our loader."""

from __future__ import annotations

import json
from collections import Counter
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from oracle.packs import (
    CACHE,
    EOD,
    IDENTIFIERS,
    PAD,
    Packed,
    S,
    check,
    entry_of,
    found,
    has_inter_document_masking,
    random_lengths,
    slow_packs,
    write_documents,
)
from oracle.reference import Megatron
from support.mixture_data import run
from tokshard.loader import BatchOptions, RankLoader
from tokshard.loader.torch import to_tensors
from tokshard.samples.index.description import GPTDatasetDescription
from tokshard.samples.index.entry import CacheEntry
from tokshard.samples.index.splits import parse_split

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="module")
def megatron():
    return Megatron()


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """Run in a directory of its own: prefixes are relative, as their text is in the names of the files."""
    monkeypatch.chdir(tmp_path)
    Path("job.json").write_text(json.dumps(IDENTIFIERS))


def tokshard(command, *arguments):
    """Run a command about an index of samples of ``S`` tokens; return its report."""
    done = run(
        *(command, *arguments, "--seq-length", S, "--seed", 1234, "--tokenizer-identifiers", "job.json"),
        *("--cache-dir", CACHE, "--json"),
    )
    assert done.returncode == 0, done.stderr
    return done.json


def packed_in(entry, documents, sequences, *, most=None, multiple=1):
    """Return the packs of an index, after checking that they are what the format promises."""
    arrays = entry.load()
    rows = arrays["sample_index"].tolist()
    starts = [position for position, offset in rows if offset == 0]
    order = arrays["document_index"].tolist()
    packs = [order[start:stop] for start, stop in pairwise(starts)]
    every = [number for number in sequences if len(documents[number])]
    epochs = np.array_split(np.arange(len(packs)), len(order) // len(every))
    packed = Packed(documents, S, [[packs[k] for k in epoch] for epoch in epochs], arrays["shuffle_index"])
    for name, array in packed.arrays().items():
        assert np.array_equal(arrays[name], array)
        assert arrays[name].dtype == array.dtype
    lengths = list(map(len, documents))
    for epoch in packed.epochs:
        assert sorted(number for pack in epoch for number in pack) == every
        for pack in epoch:
            kept = [(lengths[pack[0]] - 1) % S + 1, *(lengths[number] for number in pack[1:])]
            assert sum(-(-tokens // multiple) * multiple for tokens in kept) <= S
            assert len(pack) <= (most or len(pack))
        if most is None and multiple == 1:
            assert len(epoch) == len(slow_packs(lengths, sequences, S, np.random.RandomState(0)))
    samples = len(packed.order) // len(packed.epochs)
    for number in range(len(packed.epochs)):
        epoch = packed.order[number * samples : (number + 1) * samples]
        assert sorted(epoch) == list(range(number * samples, (number + 1) * samples))
    return packed


BEST_FIT = ("--pack", "best-fit")


def test_megatron_reads_the_packs_of_build_indices(megatron):
    for seed in range(9):
        draw = np.random.RandomState(seed)
        prefix, split, extra = f"data/{seed}", ("1", "8,2")[seed % 2], bool(draw.randint(3))
        documents = write_documents(prefix, random_lengths(draw, S, int(draw.randint(5, 60))))
        most = (None, 3, 1)[draw.randint(3)]
        ranges = [part for part in parse_split(split).ranges(len(documents)) if part]
        train = (None, int(draw.randint(1, 90)), int(draw.randint(1, 20)))[seed % 3]
        sizes = (train, 7, 0) if len(ranges) > 1 else (train, 0, 0)
        asked = ",".join("none" if size is None else str(size) for size in sizes)
        options = ["--split", split, "--num-samples", asked]
        options += ["--max-documents-per-sample", most] if most else []
        options += [] if extra else ["--no-add-extra-token"]
        tokshard("build-indices", prefix, *BEST_FIT, *options)
        datasets = found(
            megatron, S, list(sizes), blend=([prefix], None), split=split, add_extra_token_to_sequence=extra
        )
        for name, size, part, dataset in zip(("train", "valid"), sizes, ranges, datasets, strict=False):
            packed = packed_in(entry_of(prefix, S, size, split=split, name=name), documents, part, most=most)
            check(dataset, packed, extra_token=extra)
            per_epoch = len(packed.order) // len(packed.epochs)
            assert len(packed.epochs) == (1 if size is None else -(-size // per_epoch))


def test_room_is_kept_for_padded_documents(megatron):
    """Megatron reads documents for which ``--pad-multiple`` keeps room without gaps: it pads samples only."""
    documents = write_documents("data/a", random_lengths(np.random.RandomState(3), S, 40))
    tokshard("build-indices", "data/a", *BEST_FIT, "--pad-multiple", 4, "--split", "1", "--num-samples", 70)
    packed = packed_in(entry_of("data/a", S, 70), documents, range(len(documents)), multiple=4)
    (dataset, *_) = found(megatron, S, [70, 0, 0], blend=(["data/a"], None))
    check(dataset, packed)


def plan_of(source):
    """Plan the training samples of an index or blend for one rank, one sample a step; return the plan."""
    done = run("shard-plan", source, "-o", "plan", "--data-parallel", 1, "--split", "train", "--quiet")
    assert done.returncode == 0, done.stderr
    return "plan"


def check_loader(dataset, plan, **options):
    """Compare all fields of all samples with those of the loader of a plan."""
    loader = RankLoader.open(plan, 0, options=BatchOptions(pad_id=PAD, **options))
    assert len(loader) == len(dataset)
    for number in range(len(dataset)):
        for part in getattr(dataset, "datasets", [dataset]):
            part.masks_and_position_ids_are_cached = False
        theirs, ours = dataset[number], loader[number]
        theirs.pop("dataset_id", None)
        assert set(theirs) == set(ours)
        for name, tensor in theirs.items():
            assert ours[name].dtype == tensor.numpy().dtype
            assert np.array_equal(ours[name][0], tensor.numpy()), (number, name)


FLAGS = (
    {},
    {"reset_position_ids": True, "eod_mask_loss": True},
    {"reset_attention_mask": True, "create_attention_mask": True},
)


@pytest.mark.parametrize("extra_token", [True, False], ids=["extra-token", "no-extra-token"])
def test_the_loader_yields_megatrons_values(megatron, extra_token):
    write_documents("data/a", random_lengths(np.random.RandomState(5), S, 40), eod=True)
    extra = [] if extra_token else ["--no-add-extra-token"]
    tokshard("build-indices", "data/a", *BEST_FIT, "--split", "1", "--num-samples", 70, *extra)
    plan = plan_of(entry_of("data/a", S, 70).description_path)
    for flags in FLAGS:
        job = {"blend": (["data/a"], None), "add_extra_token_to_sequence": extra_token}
        (dataset, *_) = found(megatron, S, [70, 0, 0], **job, **flags)
        check_loader(dataset, plan, eod_id=EOD, **flags)


@pytest.mark.parametrize("extra_token", [True, False], ids=["extra-token", "no-extra-token"])
def test_the_loader_has_the_boundaries_of_megatron(megatron, extra_token):
    """The rest of a short sample is its last document's; without the extra token, it is one of its own."""
    if not has_inter_document_masking(megatron):
        pytest.skip("this megatron-core has no inter-document masking")
    write_documents("data/a", random_lengths(np.random.RandomState(5), S, 40))
    extra = [] if extra_token else ["--no-add-extra-token"]
    tokshard("build-indices", "data/a", *BEST_FIT, "--split", "1", "--num-samples", 70, *extra)
    job = {"blend": (["data/a"], None), "add_extra_token_to_sequence": extra_token}
    (dataset, *_) = found(megatron, S, [70, 0, 0], inter_document_masking=True, **job)
    check_loader(dataset, plan_of(entry_of("data/a", S, 70).description_path), cu_seqlens=True)


def test_megatron_flattens_padded_documents(megatron):
    """Megatron joins the samples of a micro-batch; its attention has the boundaries of padded documents."""
    flatten = getattr(import_module("megatron.core.utils"), "flatten_batch_for_packed_sequences", None)
    if flatten is None:
        pytest.skip("this megatron-core has no packed sequences of several samples")
    documents = write_documents("data/a", random_lengths(np.random.RandomState(3), S, 40))
    tokshard("build-indices", "data/a", *BEST_FIT, "--pad-multiple", 4, "--split", "1", "--num-samples", 70)
    entry = entry_of("data/a", S, 70)
    packed = packed_in(entry, documents, range(len(documents)), multiple=4).shuffled()
    options = BatchOptions(pad_id=PAD, cu_seqlens=True, pad_to_multiple=4, document_ids=True)
    loader = RankLoader.open(plan_of(entry.description_path), 0, options=options)
    for first in range(0, len(loader) - 2, 3):
        batch = to_tensors(
            {name: np.concatenate([loader[first + k][name] for k in range(3)]) for name in loader[0]}
        )
        flat = {
            name: value.numpy()[0] for name, value in flatten(dict(batch)).items() if name != "dataset_ids"
        }
        bounds = flat["cu_seqlens_padded"]
        tokens, expected = flat["tokens"].tolist(), []
        for sample in packed[first : first + 3]:
            own = iter(sample.own)
            padded = [[next(own) for _ in range(part)] + [0] * (-part % 4) for part in sample.parts]
            padded[-1] += [0] * (S - sum(map(len, padded)))
            expected += padded
        assert [tokens[a:b] for a, b in pairwise(bounds)] == expected
        assert flat["max_seqlen"] == max(map(len, expected))


def write_recipe(packs, weights):
    """Write three datasets of different tokens and a recipe; return the documents of each by prefix."""
    draw = np.random.RandomState(len(packs))
    written, lines, first = {}, [], 1
    for number, (pack, weight) in enumerate(zip(packs, weights, strict=True)):
        prefix = f"data/{number}"
        written[prefix] = write_documents(prefix, random_lengths(draw, S, 40 + 5 * number), first=first)
        first += sum(map(len, written[prefix]))
        lines.append(f'[[source]]\nprefix = "{prefix}"\npack = "{pack}"')
        lines += [] if weight is None else [f"weight = {weight}"]
    Path("mix.toml").write_text("\n".join(lines))
    return written


def packed_dataset(dataset, written):
    """Check the samples of a packed dataset; return its packs."""
    description = GPTDatasetDescription.from_text(dataset.unique_description)
    documents = written[description.dataset_path]
    # With fast_cache_load Megatron has no numbers of the sequences.
    sequences = range(len(documents)) if dataset.indices is None else dataset.indices.tolist()
    packed = packed_in(CacheEntry.of(description, CACHE), documents, sequences)
    check(dataset, packed)
    return packed


def check_blend(blend, written, packs, certificate):
    """Check the packed sources of a blend, that draws are within what was built, and the certificate."""
    assert len(blend) == certificate["samples"]
    drawn = np.bincount(blend.dataset_index, minlength=len(packs))
    for number, (source, dataset) in enumerate(zip(certificate["sources"], blend.datasets, strict=True)):
        numbers = blend.dataset_sample_index[blend.dataset_index == number].tolist()
        assert numbers == list(range(drawn[number]))
        assert source["samples"] == drawn[number] <= len(dataset) == source["available"]
        if packs[number] == "best-fit":
            packed = packed_dataset(dataset, written)
            samples = packed.shuffled()
            seen = Counter(token for k in numbers for token in samples[k].own)
            documents = [packed.documents[k] for pack in packed.epochs[0] for k in pack]
            times = [[seen[token] for token in document.tolist()] for document in documents]
            assert source["tokens"] == seen.total()
            assert source["documents"] == len(times)
            assert source["documents_drawn"] == sum(max(document) > 0 for document in times)
            assert source["document_least"] == min(map(max, times))
            assert source["document_most"] == max(map(max, times))


MIXED = ("best-fit", "concat", "best-fit")


@pytest.mark.parametrize("packs", [MIXED, ("best-fit",) * 3], ids=["mixed", "packed"])
@pytest.mark.parametrize("weights", [(5, 3, 2), (None,) * 3], ids=["weights", "exhaustive"])
def test_megatron_reads_blends_with_packed_sources(megatron, packs, weights):
    """Several epochs by weights, or each sample once; the certificate counts what Megatron reads."""
    written = write_recipe(packs, weights)
    sizes = (250, 20, 0) if weights[0] else (None, None, 0)
    asked = ",".join("none" if size is None else str(size) for size in sizes)
    report = tokshard("blend", "mix.toml", "--split", "8,2", "--num-samples", asked, "-o", "mix")
    blend = (list(written), None if weights[0] is None else list(map(float, weights)))
    datasets = found(megatron, S, list(sizes), blend=blend, split="8,2")
    for name, dataset in zip(("train", "valid"), datasets, strict=False):
        check_blend(dataset, written, packs, report["blend"]["certificates"][name])
    check_loader(datasets[0], plan_of("mix"))


def test_megatron_reads_packed_blends_of_each_split(megatron):
    """With ``fast_cache_load``, which requires data for each split; one dataset is no blend."""
    written = write_recipe(MIXED, (None,) * 3)
    options = ["--train", "0.6 data/0 0.4 data/1", "--valid", "data/2", "--num-samples", "150,20"]
    report = tokshard("blend", *options, *BEST_FIT, "-o", "mix")
    blends = [(["data/0", "data/1"], [0.6, 0.4]), (["data/2"], None), None]
    train, valid, _ = found(megatron, S, [150, 20, 0], blend_per_split=blends, fast_cache_load=True)
    check_blend(train, written, BEST_FIT[1:] * 2, report["blend"]["certificates"]["train"])
    assert len(packed_dataset(valid, written).order) == len(valid) >= 20
