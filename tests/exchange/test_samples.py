"""Samples of blends, indexes and plans, compared with what the loader and Megatron's arrays give."""

import numpy as np
import pytest

import tokshard
from support import slow_exports
from support.blends import write_sources
from support.loader_plans import plan_for, source_of, write_documents
from tokshard.errors import UsageError
from tokshard.loader.rank import RankLoader

LENGTH = 16


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Three datasets, a blend of them, and a plan of the blend for two ranks."""
    directory = tmp_path_factory.mktemp("samples")
    sources = write_sources(directory)
    weighted = [word for pair in zip(("0.5", "0.2", "0.3"), sources, strict=True) for word in pair]
    mix = tokshard.BlendOptions(
        sources=tuple(weighted),
        output=directory / "mix",
        seq_length=LENGTH,
        split="9,1,0",
        num_samples=tokshard.Sizes(90, 16, 0),
    )
    tokshard.blend(mix)
    plan = tokshard.ShardPlanOptions(
        sources=(str(directory / "mix"),),
        output=directory / "plan",
        data_parallel=2,
        micro_batch_size=3,
        global_batch_size=12,
        shuffle="samples",
    )
    tokshard.shard_plan(plan)
    return directory


def rows(directory, to, path, width, **options):
    output = directory / f"out-{len(list(directory.iterdir()))}"
    tokshard.export(tokshard.ExportOptions(source=path, to=to, output=output, samples=True, **options))
    found = slow_exports.written(output)
    if to == "parquet":
        table = [row for name in sorted(found) for row in found[name]]
        assert [row["sample"] for row in table] == list(range(len(table)))
        return [row["input_ids"] for row in table], found
    suffix = {"olmo": ".npy", "datatrove": ".ds"}[to]
    content = b"".join(found[name] for name in sorted(found) if name.endswith(suffix))
    return np.frombuffer(content, "<u2").reshape(-1, width).tolist(), found


def blended(directory):
    """The samples of the blend in Megatron's order, by its own arrays."""
    loader = plan_for_one_rank(directory)
    batches = [loader.batch(step) for step in range(loader.steps)]
    return [[*row, last] for batch in batches for row, last in samples_of(batch)]


def plan_for_one_rank(directory):
    target = directory / "in-order"
    if not target.exists():
        options = tokshard.ShardPlanOptions(
            sources=(str(directory / "mix"),), output=target, data_parallel=1, global_batch_size=1
        )
        tokshard.shard_plan(options)
    return RankLoader.open(target, 0)


def samples_of(batch):
    return [
        (tokens, labels[-1])
        for tokens, labels in zip(batch["tokens"].tolist(), batch["labels"].tolist(), strict=True)
    ]


def test_a_blend_is_exported_in_its_order(place):
    expected = blended(place)
    found, files = rows(place, "parquet", place / "mix", LENGTH + 1, shard_tokens=20 * (LENGTH + 1))
    assert found == expected
    assert len(files) == -(-len(expected) // 20)
    assert rows(place, "datatrove", place / "mix", LENGTH + 1)[0] == expected
    without_labels = [row[:-1] for row in expected]
    found, files = rows(place, "olmo", place / "mix", LENGTH, shard_tokens=30 * LENGTH)
    assert found == without_labels
    assert files["part-0-00000.csv.gz"].splitlines()[1] == b"16,32,1,mix,2"
    assert all(len(files[name]) % (2 * LENGTH) == 0 for name in files if name.endswith(".npy"))


def test_a_plan_is_exported_in_the_order_of_its_global_batches(place):
    loaders = [RankLoader.open(place / "plan", rank) for rank in range(2)]
    expected = []
    for step in range(loaders[0].steps):
        for micro_batch in range(2):
            for loader in loaders:
                expected += [[*row, last] for row, last in samples_of(loader.batch(step, micro_batch))]
    assert len(expected) == 84
    assert rows(place, "parquet", place / "plan", LENGTH + 1)[0] == expected


def test_an_index_and_another_split_are_exported(place, tmp_path):
    prefix = place / "source0"
    options = tokshard.BuildIndicesOptions(
        prefixes=(str(prefix),),
        seq_length=(8,),
        split="8,2,0",
        epochs=(1,),
        cache_dir=tmp_path / "cache",
    )
    tokshard.build_indices(options)
    train, _ = rows(tmp_path, "parquet", tmp_path / "cache", 9)
    assert len(train) > 90
    assert {len(row) for row in train} == {9}
    valid, _ = rows(tmp_path, "parquet", place / "mix", LENGTH + 1, split="valid")
    assert len(valid) == 17
    assert not {tuple(row) for row in blended(place)} & {tuple(row) for row in valid}
    with pytest.raises(UsageError, match="--split must be one of train"):
        rows(tmp_path, "parquet", place / "plan", 9, split="test")


def test_padded_samples_require_a_padding_token(tmp_path):
    documents = [[5] * count for count in (3, 9, 2, 4, 7, 7, 8, 1)]
    write_documents(str(tmp_path), "docs", documents)
    options = tokshard.BuildIndicesOptions(
        prefixes=(str(tmp_path / "docs"),),
        seq_length=(8,),
        split="1,0,0",
        epochs=(1,),
        pack="best-fit",
        cache_dir=tmp_path / "cache",
    )
    tokshard.build_indices(options)
    with pytest.raises(UsageError, match="--pad-id is required"):
        rows(tmp_path, "parquet", tmp_path / "cache", 9)
    found, _ = rows(tmp_path, "parquet", tmp_path / "cache", 9, pad_id=9)
    assert {len(row) for row in found} == {9}
    assert {token for row in found for token in row} == {5, 9}


def test_samples_that_are_documents_are_refused(tmp_path):
    plan = plan_for(str(tmp_path), source=source_of(str(tmp_path), kind="documents"))
    with pytest.raises(UsageError, match="samples of a fixed length"):
        rows(tmp_path, "parquet", plan, 1)
