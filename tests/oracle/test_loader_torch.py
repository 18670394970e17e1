"""The loader in torch and in Megatron: workers, states, samplers on top, and the values of GPTDataset."""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from oracle.reference import Megatron, Tokenizer
from oracle.support import skip_unless_first
from support.assignments import topology_of
from support.loader_plans import (
    EOD,
    LENGTH,
    open_plan,
    plan_for,
    reference_of,
    some_documents,
    source_of,
    stream_of,
    write_documents,
    write_streams,
)
from support.restored_loaders import assert_same_after_restore
from tokshard.dataset.reader import IndexedDataset
from tokshard.errors import UsageError
from tokshard.loader import BatchOptions
from tokshard.loader.torch import ExternalIterator, PlanDataset, PlanSampler, Turn, data_loader
from tokshard.ranks.links import Bucketing
from tokshard.ranks.sources import SampleSource

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="module")
def torch():
    if os.environ.get("TOKSHARD_ORACLE") == "required":
        import torch

        return torch
    return pytest.importorskip("torch")


@pytest.fixture(scope="module")
def first_torch(torch):
    skip_unless_first()
    return torch


@pytest.fixture(scope="module")
def megatron(torch):
    return Megatron()


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    """Plans for two ranks by the names of their modes."""
    directory = tmp_path_factory.mktemp("plans")
    (directory / "documents").mkdir()
    source = source_of(directory, datasets=3, documents=90, weights=[0.5, 0.3, 0.2], size=96)
    documents = source_of(directory / "documents", datasets=2, documents=32, kind="documents")
    topology = topology_of(2)
    lengths = stream_of(
        documents,
        topology,
        links=(Bucketing(documents.total, 16, 4, 1, per_epoch=True),),
        sort_key="length",
        epochs=2,
    )
    return {
        "single": plan_for(directory, source=source, topology=topology),
        "threes": plan_for(directory, source=source, topology=topology_of(3)),
        "cyclic": plan_for(directory, source=source, topology=topology, mode="cyclic", epochs=2),
        "contiguous": plan_for(directory, source=source, topology=topology, mode="contiguous"),
        "documents": write_streams(directory, topology, train=lengths),
    }


def equal(found, expected):
    """Tell whether a micro-batch of tensors is one of arrays."""
    return list(found) == list(expected) and all(
        found[name].numpy().dtype == expected[name].dtype and np.array_equal(found[name], expected[name])
        for name in expected
    )


OPTIONS = [
    {"num_workers": 0},
    {"num_workers": 1},
    {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 3},
    {"num_workers": 2, "persistent_workers": True, "multiprocessing_context": "spawn"},
]


NAMES = ["single", "cyclic", "contiguous", "documents"]
CASES = [(name, options) for name in NAMES for options in OPTIONS[: 4 if name == "single" else 3]]


@pytest.mark.parametrize(("name", "options"), CASES)
def test_workers_give_what_the_loader_gives(first_torch, plans, name, options):
    expected = list(open_plan(plans[name], 1))
    loader = open_plan(plans[name], 1)
    batches = data_loader(loader, **options)
    assert len(batches) == len(expected)
    found = []
    for number, batch in enumerate(batches, start=1):
        # A worker's tensors lie in shared memory that is taken back: numpy needs them now.
        found.append({field: tensor.clone() for field, tensor in batch.items()})
        assert (loader.position, len(batches)) == (number, len(expected))
    assert len(found) == len(expected)
    assert all(map(equal, found, expected))
    again = list(batches)
    assert all(map(equal, again, expected))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("workers", "every"), [(0, 1), (2, 9)])
def test_a_state_saved_through_workers_resumes_there(first_torch, plans, name, workers, every):
    def made():
        return data_loader(open_plan(plans[name], 0), num_workers=workers)

    restored = assert_same_after_restore(made(), fresh=made, every=every)
    assert restored >= len(made()) // every


def test_a_state_does_not_depend_on_the_number_of_workers(first_torch, plans):
    expected = list(open_plan(plans["single"], 0))
    states = []
    for workers in (0, 1, 2):
        batches = data_loader(open_plan(plans["single"], 0), num_workers=workers)
        for number, _ in enumerate(batches, start=1):
            if number == 5:
                states.append(batches.state_dict())
                break
    assert states[0] == states[1] == states[2]
    for workers in (2, 1, 0):
        batches = data_loader(open_plan(plans["single"], 0), num_workers=workers)
        batches.load_state_dict(states[workers])
        assert all(map(equal, batches, expected[5:]))
        other = open_plan(plans["single"], 0)
        other.load_state_dict(states[workers])
        assert len(list(other)) == len(expected) - 5


@pytest.mark.parametrize("workers", [0, 1])
def test_a_distributed_sampler_on_top_is_refused(first_torch, plans, workers):
    from torch.utils.data import DataLoader, DistributedSampler, RandomSampler

    data = PlanDataset(open_plan(plans["single"], 0))
    for sampler in (DistributedSampler(data, 2, 0, shuffle=False), RandomSampler(data)):
        with pytest.raises(UsageError, match="distribute the samples again"):
            next(iter(DataLoader(data, sampler=sampler, batch_size=None, num_workers=workers)))
        with pytest.raises(UsageError, match=f"sampler={type(sampler).__name__} is not supported"):
            data_loader(open_plan(plans["single"], 0), sampler=sampler)
    with pytest.raises(UsageError, match="shuffle=bool"):
        data_loader(open_plan(plans["single"], 0), shuffle=True)
    assert equal(data[Turn.of(3, data.loader.origin)], open_plan(plans["single"], 0)[3])


@pytest.mark.parametrize("workers", [0, 2])
def test_torchdata_saves_and_restores_it(first_torch, plans, workers):
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")

    def made():
        loader = open_plan(plans["cyclic"], 0)
        options = {"batch_size": None, "num_workers": workers}
        return torchdata.StatefulDataLoader(PlanDataset(loader), sampler=PlanSampler(loader), **options)

    expected = list(open_plan(plans["cyclic"], 0))
    for stop in (1, 2, 9, len(expected) - 1):
        batches = made()
        iterator = iter(batches)
        assert all(equal(next(iterator), expected[number]) for number in range(stop))
        state = batches.state_dict()
        other = made()
        other.load_state_dict(state)
        rest = list(other)
        assert len(rest) == len(expected) - stop
        assert all(map(equal, rest, expected[stop:]))


def state_of_threes(plans):
    """Return the state of three ranks after a step, where none of the two ranks starts."""
    loader = open_plan(plans["threes"], 0)
    next(loader)
    return loader.state_dict()


def test_workers_read_what_a_loader_in_another_world_continues_with(first_torch, plans):
    state = state_of_threes(plans)
    loader = open_plan(plans["single"], 1)
    loader.load_state_dict(state)
    expected = list(loader)
    assert (len(expected), loader.sample_ids(0)) == (22, [8, 9])
    for options in OPTIONS:
        loader = open_plan(plans["single"], 1)
        loader.load_state_dict(state)
        found = list(data_loader(loader, **options))
        assert len(found) == 22
        assert all(map(equal, found, expected))


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_from_before_a_state_of_another_world_are_refused(first_torch, plans, context):
    options = {"num_workers": 1, "multiprocessing_context": context}
    for persistent in (False, True):
        loader = open_plan(plans["single"], 1)
        batches = data_loader(loader, persistent_workers=persistent, **options)
        next(iter(batches))
        same_world = loader.state_dict()
        batches.load_state_dict(state_of_threes(plans))
        if not persistent:
            assert equal(next(iter(batches)), loader[0])
            continue
        with pytest.raises(UsageError, match=r"(?s)from 6 consumed samples .* counts from 0 .*another world"):
            next(iter(batches))
        # A state of the same world means the same micro-batches everywhere.
        loader.load_state_dict(same_world)
        assert equal(next(iter(batches)), loader[1])


@pytest.mark.parametrize("workers", [0, 1])
def test_torchdata_needs_a_loader_that_has_the_state_of_another_world(first_torch, plans, workers):
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")

    def made(path, rank, state=None):
        loader = open_plan(path, rank)
        if state is not None:
            loader.load_state_dict(state)
        options = {"batch_size": None, "num_workers": workers}
        return torchdata.StatefulDataLoader(PlanDataset(loader), sampler=PlanSampler(loader), **options)

    threes = made(plans["threes"], 0)
    next(iter(threes))
    with pytest.raises(UsageError, match="the state is of another world") as caught:
        batches = made(plans["single"], 1)
        batches.load_state_dict(threes.state_dict())
        next(iter(batches))
    assert "load_state_dict before the data loader is made" in caught.value.hint
    loader = open_plan(plans["single"], 1)
    loader.load_state_dict(state_of_threes(plans))
    batches = made(plans["single"], 1, state_of_threes(plans))
    iterator = iter(batches)
    assert equal(next(iterator), loader[0])
    other = made(plans["single"], 1, state_of_threes(plans))
    other.load_state_dict(batches.state_dict())
    assert equal(next(iter(other)), loader[1])


def test_masks_that_samples_share_become_tensors(first_torch, plans):
    options = BatchOptions(create_attention_mask=True, document_ids=True, num_tokens=True)
    loader = open_plan(plans["single"], 0, options=options)
    first = next(iter(data_loader(loader)))
    assert equal(first, loader[0])
    first["attention_mask"][0] = True
    assert not loader[0]["attention_mask"].all()


def gpt_dataset(megatron, directory, prefix, **options):
    """Return Megatron's dataset over all sequences, or None where this version lacks an option."""
    from megatron.core.datasets.indexed_dataset import IndexedDataset as Theirs
    from megatron.core.datasets.utils import Split

    tokenizer = Tokenizer({"class": "x"}, options.pop("pad"), EOD)
    split, samples = Split[options.pop("split")], options.pop("num_samples")
    try:
        config = megatron.config(
            blend=([prefix], None),
            split="1",
            path_to_cache=str(directory / "cache"),
            tokenizer=tokenizer,
            mid_level_dataset_surplus=0.0,
            **options,
        )
    except TypeError:
        return None
    data = Theirs(prefix, multimodal=False, mmap=True)
    return megatron.dataset(data, prefix, np.arange(len(data), dtype=np.int32), samples, split, config)


def both(megatron, directory, seed, **flags):
    """Return Megatron's dataset and our loader of the same samples, one a micro-batch."""
    draw = np.random.RandomState(seed)
    place = directory / f"{seed}"
    place.mkdir()
    documents = some_documents(seed, int(draw.randint(4, 30)))
    prefix = write_documents(place, "data", documents, "int32" if seed % 2 else "uint16")
    extra, whole = bool(draw.randint(4)), bool(draw.randint(2))
    tokens = sum(map(len, documents))
    samples = (None, int(draw.randint(1, 3 * tokens // LENGTH + 2)))[int(draw.randint(2)) or tokens <= LENGTH]
    theirs = gpt_dataset(
        megatron,
        place,
        prefix,
        random_seed=seed,
        sequence_length=LENGTH,
        split="valid",
        num_samples=samples,
        pad=(None, 3, 7)[int(draw.randint(3))],
        add_extra_token_to_sequence=extra,
        drop_last_partial_validation_sequence=whole,
        **{"reset_position_ids": False, "reset_attention_mask": False, "eod_mask_loss": False} | flags,
    )
    if theirs is None:
        return None
    reference = reference_of(
        str(place), prefix, seed=seed, num_samples=samples, extra_token=extra, drop_last_partial=whole
    )
    source = SampleSource("index", "train", reference.samples, (reference,))
    if "inter_document_masking" in flags:
        options = BatchOptions(pad_id=theirs._pad_token_id, cu_seqlens=True)
    else:
        options = BatchOptions(eod_id=EOD, pad_id=theirs._pad_token_id, **flags)
    loader = open_plan(plan_for(str(place), source=source, micro=1), options=options)
    assert len(IndexedDataset(prefix)) == len(documents)
    assert len(loader) == len(theirs)
    return theirs, loader


def assert_padding_is_megatrons(theirs, loader):
    theirs.masks_and_position_ids_are_cached = False
    expected = theirs[None]
    found = loader._reader.padding()
    assert set(found) == {*expected}
    assert all(np.array_equal(found[name][0], tensor.numpy()) for name, tensor in expected.items())


@pytest.mark.parametrize("part", range(4))
def test_values_are_those_of_megatrons_gpt_dataset(tmp_path, megatron, part):
    padded = reset = 0
    for seed in range(part * 30, part * 30 + 30):
        names = ("reset_position_ids", "eod_mask_loss", "create_attention_mask")
        flags = {name: bool(seed >> place & 1) for place, name in enumerate(names)}
        flags["reset_attention_mask"] = flags["create_attention_mask"] and seed % 3 == 0
        theirs, loader = both(megatron, tmp_path, seed, **flags)
        assert_padding_is_megatrons(theirs, loader)
        for number in range(len(theirs)):
            theirs.masks_and_position_ids_are_cached = False
            expected, found = theirs[number], loader[number]
            assert set(found) == {*expected}
            for name, tensor in expected.items():
                assert found[name].dtype == tensor.numpy().dtype
                assert np.array_equal(found[name][0], tensor.numpy()), (seed, number, name)
            padded += not expected["loss_mask"].all()
            reset += expected["position_ids"][-1] < LENGTH - 1
    assert padded > 50
    assert reset > 50


def test_boundaries_are_those_of_megatrons_inter_document_masking(tmp_path, megatron):
    found_any = 0
    for seed in range(300, 330):
        made = both(megatron, tmp_path, seed, inter_document_masking=True, create_attention_mask=False)
        if made is None:
            pytest.skip("this megatron-core has no inter-document masking")
        theirs, loader = made
        for number in range(len(theirs)):
            theirs.masks_and_position_ids_are_cached = False
            expected, found = theirs[number], loader[number]
            lone = expected["cu_seqlens"].tolist() != found["cu_seqlens"][0].tolist()
            if lone:
                # Where Megatron gives the only token of a padded sample's last document to the one before.
                assert (expected["loss_mask"] == 0).any()
                assert (
                    len(set(found["cu_seqlens"][0].tolist())) == len(set(expected["cu_seqlens"].tolist())) + 1
                )
                continue
            found_any += len(set(found["cu_seqlens"][0].tolist())) > 2
            for name, tensor in expected.items():
                assert np.array_equal(found[name][0], tensor.numpy()), (seed, number, name)
    assert found_any > 100


def test_megatron_takes_the_external_iterator(monkeypatch, plans, megatron):
    """As in the recipe of the docs; what Megatron does on a GPU, to tell the ranks, is left out."""
    training = pytest.importorskip("megatron.training.training")
    from megatron.core import rerun_state_machine
    from megatron.training.datasets import data_samplers

    arguments = SimpleNamespace(
        dataloader_type="external", full_validation=False, multiple_validation_sets=False
    )
    loader = open_plan(plans["single"], 0)
    loader.seek(12)
    expected = list(loader.clone())
    provided = ExternalIterator(loader)
    assert iter(provided) is provided

    def loaders(provider):
        train, valid, test = provider()
        build = data_samplers.build_pretraining_data_loader
        return build(train, 12), [build(valid, 0)], build(test, 0)

    for module in (training, data_samplers):
        monkeypatch.setattr(module, "get_args", lambda: arguments)
    monkeypatch.setattr(training, "build_train_valid_test_data_loaders", loaders)
    monkeypatch.setattr(rerun_state_machine, "rerun_state_machine_enabled", lambda: False, raising=False)
    train, valid, test = training.build_train_valid_test_data_iterators(lambda: (provided, None, None))
    assert valid is None
    assert test is None
    assert all(equal(next(train), batch) for batch in expected[:3])
    assert train.iterable.save_state()["consumed_samples"] == 24
    assert all(equal(next(train), batch) for batch in expected[3:])
    with pytest.raises(StopIteration):
        next(train)


def blocks(word):
    """Return the Python blocks of the loader's page that contain a word."""
    page = Path(__file__).parents[2] / "docs/how-to/train.md"
    found = [
        block for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL) if word in block
    ]
    assert found
    return found


@pytest.fixture
def planned(tmp_path, monkeypatch):
    """A directory with a plan of one rank called ``plan``."""
    path = plan_for(str(tmp_path), source=source_of(str(tmp_path), documents=60))
    Path(path).rename(tmp_path / "plan")
    monkeypatch.chdir(tmp_path)
    return open_plan("plan")


def test_the_pages_code_runs(planned, torch):
    state = {}
    for block in (blocks("import BatchOptions, RankLoader\n\nloader")[0], blocks("persistent_workers")[0]):
        exec(block, state)
        assert state["state"]["consumed_samples"] == 2 * len(planned)


def test_the_pages_recipe_for_torchdata_runs(planned, torch):
    pytest.importorskip("torchdata.stateful_dataloader")
    state = {}
    exec(blocks("StatefulDataLoader")[0], state)
    assert len(list(state["batches"])) == len(planned)


def test_the_pages_recipe_for_distributed_training_runs(planned, megatron):
    state = {}
    exec(blocks("torch.distributed")[0], state)
    assert state["loader"].position == len(planned)


def test_the_pages_recipe_for_megatron_runs(planned, megatron, monkeypatch):
    training = pytest.importorskip("megatron.training")
    arguments = SimpleNamespace(eod_mask_loss=True, consumed_train_samples=6, num_workers=0)
    monkeypatch.setattr(training, "get_args", lambda: arguments)
    monkeypatch.setattr("megatron.core.mpu.get_data_parallel_rank", lambda: 0)
    state = {}
    exec(blocks("def train_valid_test_datasets_provider")[0], state)
    train, valid, test = state["train_valid_test_datasets_provider"]([1, 1, 1])
    assert (valid, test) == (None, None)
    expected = open_plan("plan", options=BatchOptions(eod_id=0, eod_mask_loss=True))
    assert equal(next(train), expected[3])
