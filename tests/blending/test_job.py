import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from support.blending.support import (
    config_for,
    covered,
    deviations,
    exhaustive,
    greedy,
    snapshot,
    write_dataset,
    write_sources,
)
from tokshard.blending import job
from tokshard.blending.document import BlendDocument
from tokshard.blending.job import build_blend
from tokshard.blending.recheck import recheck
from tokshard.blending.recipe import BlendRecipe, Mixture, Source
from tokshard.blending.recipe_files import parse_per_split_words, parse_words, read_recipe
from tokshard.dataset.reader import IndexedDataset
from tokshard.errors import IntegrityError, MissingFileError, OutputExistsError, TokshardError
from tokshard.gpt_index.sizes import Sizes
from tokshard.index_cache.description import read_description


def words(sources, weights=(0.5, 0.2, 0.3)):
    return parse_words([word for pair in zip(map(str, weights), sources, strict=True) for word in pair])


@pytest.fixture
def made(tmp_path):
    sources = write_sources(tmp_path / "data")
    return sources, build_blend(words(sources), config_for(120, 10, 0), tmp_path / "mix", workers=1)


def test_the_files_are_the_orders_of_the_definitions_under_the_hashes_of_their_descriptions(tmp_path):
    sources = write_sources(tmp_path / "data")
    weighted = build_blend(words(sources), config_for(120, 10, 5), tmp_path / "weighted").document
    every = build_blend(parse_words(sources), config_for(None, 9, 5), tmp_path / "every").document
    for document, name, right in (
        (weighted, "train", lambda split: greedy(list(split.order.weights), split.order.size)),
        (weighted, "test", lambda split: greedy(list(split.order.weights), split.order.size)),
        (every, "train", lambda split: exhaustive([int(size) for size in split.order.weights])),
        (every, "valid", lambda split: greedy(list(split.order.weights), split.order.size)),
    ):
        split = document.splits[name]
        arrays = [np.load(split.order.dataset_index), np.load(split.order.dataset_sample_index)]
        assert [array.tolist() for array in arrays] == list(right(split))
        assert [array.dtype for array in arrays] == [np.int16, np.int64]
        description = read_description(split.order.description)
        assert (
            os.path.basename(split.order.dataset_index)
            == f"{description.hash()}-BlendedDataset-{name}-dataset_index.npy"
        )
        assert [one.hash() for one in description.datasets] == [source.hash for source in split.sources]
        assert recheck(document) == []


def test_the_certificate_says_what_counting_one_by_one_says(made, tmp_path):
    sources, report = made
    split = report.document.splits["train"]
    order = np.load(split.order.dataset_index).tolist()
    lag, lead = deviations(order, split.order.weights)
    certificate = split.certificate
    assert certificate.weight_error == pytest.approx(max(*lag, *lead))
    assert (certificate.samples, certificate.draws_out_of_range) == (len(order), 0)
    lengths = {
        prefix: [1 + (7 * i + n) % 40 for i in range(count)]
        for n, (prefix, count) in enumerate(zip(sources, (60, 40, 50), strict=True))
    }
    for place, (source, one) in enumerate(zip(split.sources, certificate.sources, strict=True)):
        index = [np.load(path).tolist() for path in (source.document_index, source.shuffle_index)]
        right = covered(lengths[sources[place]], *index, order.count(place), 16)
        assert {name: getattr(one, name) for name in right} == right
        assert (one.samples, one.available) == (order.count(place), source.samples)
        assert one.share == order.count(place) / len(order)
        assert (one.largest_lag, one.largest_lead) == (pytest.approx(lag[place]), pytest.approx(lead[place]))


def test_a_second_run_finds_everything_and_writes_the_same_document(made, tmp_path):
    sources = made[0]
    before = snapshot(tmp_path / "mix" / "cache")
    document = (tmp_path / "mix" / "blend.json").read_bytes()
    again = build_blend(words(sources), config_for(120, 10, 0), tmp_path / "mix")
    assert [(entry.split, entry.action) for entry in again.entries] == [
        (split, "found") for split in ("train", "valid", "test") for _ in (*sources, "the order")
    ]
    assert snapshot(tmp_path / "mix" / "cache") == before
    assert (tmp_path / "mix" / "blend.json").read_bytes() == document


def test_another_blend_is_not_replaced_unless_told(made, tmp_path):
    sources, report = made
    with pytest.raises(OutputExistsError, match="another blend"):
        build_blend(words(sources, (1, 1, 1)), config_for(120, 10, 0), tmp_path / "mix")
    assert BlendDocument.read(str(tmp_path / "mix")).id == report.document.id
    other = build_blend(words(sources, (1, 1, 1)), config_for(120, 10, 0), tmp_path / "mix", force=True)
    assert BlendDocument.read(str(tmp_path / "mix")).id == other.document.id != report.document.id
    (tmp_path / "mix" / "blend.json").write_text("{}")
    with pytest.raises(OutputExistsError):
        build_blend(words(sources), config_for(120, 10, 0), tmp_path / "mix")


def test_the_document_is_read_back_and_moves_with_its_directory(made, tmp_path):
    report = made[1]
    read = BlendDocument.read(str(tmp_path / "mix"))
    assert read == report.document
    assert BlendDocument.read(str(tmp_path / "mix" / "blend.json")) == read
    assert (read.sequence_length, read.seed, read.extra_token) == (16, 1234, True)
    shutil.move(tmp_path / "mix", tmp_path / "moved")
    moved = BlendDocument.read(str(tmp_path / "moved"))
    assert moved.id == read.id
    assert recheck(moved) == []
    assert moved.splits["train"].order.dataset_index.startswith(str(tmp_path / "moved"))


def test_all_kinds_of_splits_are_documented(tmp_path):
    sources = write_sources(tmp_path / "mix" / "data")
    recipe = parse_per_split_words(
        ["2", sources[0], "1", sources[1]], sources[1:], [sources[0]], multiple_validation_sets=True
    )
    document = build_blend(
        recipe, config_for(50, 3, 4), tmp_path / "mix", cache_directory=tmp_path / "elsewhere"
    ).document
    read = BlendDocument.read(str(tmp_path / "mix"))
    assert read == document
    assert list(read.splits) == ["train", "valid.0", "valid.1", "test"]
    assert [split.order is None for split in read.splits.values()] == [False, True, True, True]
    assert read.splits["test"].sources[0].draws == read.splits["test"].samples
    stored = json.loads((tmp_path / "mix" / "blend.json").read_text())
    assert stored["splits"]["test"]["sources"][0]["prefix"] == "data/source0"
    assert stored["cache_directory"] == str(tmp_path / "elsewhere")
    assert recheck(read) == []


def codes(document):
    return {(finding.code, finding.field) for finding in recheck(document)}


def rewrite(path, change):
    array = np.load(path)
    change(array)
    np.save(path, array)


def orders(report):
    """Return what was done about the order of each split."""
    return {entry.split: entry.action for entry in report.entries if entry.prefix is None}


def falsify(array):
    array[5] = (array[5] + 1) % 3


def turn_round(array):
    array[:] = array[::-1].copy()


def test_what_was_changed_afterwards_is_found(made, tmp_path):
    report = made[1]
    split = report.document.splits["train"]
    backup = tmp_path / "backup"
    shutil.copytree(tmp_path / "mix", backup)

    def after(change):
        change()
        found = codes(report.document)
        shutil.rmtree(tmp_path / "mix")
        shutil.copytree(backup, tmp_path / "mix")
        assert recheck(report.document) == []
        return found

    source, where = split.sources[1], "splits.train.sources[1]"
    assert after(lambda: rewrite(split.order.dataset_index, falsify)) == {
        ("wrong-order", "splits.train.order")
    }
    assert after(lambda: rewrite(split.order.dataset_sample_index, falsify)) == {
        ("wrong-order", "splits.train.order")
    }
    assert after(lambda: np.save(split.order.dataset_index, np.load(split.order.dataset_index)[1:])) == {
        ("wrong-order", "splits.train.order")
    }
    assert after(lambda: os.remove(split.order.dataset_index)) == {("unreadable", "splits.train.order")}
    assert after(
        lambda: Path(split.order.description).write_bytes(
            Path(report.document.splits["valid"].order.description).read_bytes()
        )
    ) == {("wrong-hash", "splits.train.order")}
    assert after(lambda: Path(source.description).write_text("x")) == {("unreadable", where)}
    assert after(lambda: np.save(source.shuffle_index, np.load(source.shuffle_index)[1:])) == {
        ("wrong-order", where)
    }
    assert after(lambda: rewrite(source.shuffle_index, lambda array: array.fill(0))) == {
        ("wrong-certificate", "splits.train.certificate")
    }
    assert after(lambda: rewrite(source.shuffle_index, lambda array: array.fill(10**6))) == {
        ("unreadable", "splits.train.certificate")
    }
    assert after(lambda: rewrite(source.document_index, lambda array: array.fill(39))) != set()


def test_a_source_written_anew_is_found(made, tmp_path):
    sources, report = made
    write_dataset(sources[0], [3] * 70)
    assert ("source-changed", "splits.train.sources[0]") in codes(report.document)


def test_a_source_written_anew_while_it_is_blended_gets_no_certificate(tmp_path, monkeypatch):
    sources = write_sources(tmp_path / "data")
    order = job.order_of

    def meanwhile(split):
        write_dataset(sources[0], IndexedDataset(sources[0]).sequence_lengths[::-1].tolist())
        return order(split)

    monkeypatch.setattr(job, "order_of", meanwhile)
    with pytest.raises(IntegrityError, match="has changed while its indexes were built"):
        build_blend(words(sources), config_for(120, 10, 0), tmp_path / "mix", workers=1)
    assert not (tmp_path / "mix" / "blend.json").exists()


def test_a_document_changed_by_hand_is_refused(made, tmp_path):
    path = tmp_path / "mix" / "blend.json"
    value = json.loads(path.read_text())

    def changes(at):
        if isinstance(at, dict):
            for name, inner in list(at.items()):
                del at[name]
                yield name
                at[name] = inner
                if name not in {"weight", "tool", "tokenizer", "fingerprint"}:
                    yield from changes(inner)
        elif isinstance(at, list) and at and isinstance(at[0], dict):
            yield from changes(at[0])

    count = 0
    for _ in changes(value):
        path.write_text(json.dumps(value))
        with pytest.raises(IntegrityError, match=r"blend\.json"):
            BlendDocument.read(str(path))
        count += 1
    assert count > 60


@pytest.mark.parametrize(
    ("place", "wrong"),
    [
        (("schema",), "tokshard.blend/2"),
        (("id",), "0" * 64),
        (("builder", "sequence_length"), 0),
        (("builder", "seed"), "1"),
        (("splits", "train", "kind"), "single"),
        (("splits", "train", "kind"), "other"),
        (("splits", "train", "split"), "test"),
        (("splits", "train", "samples"), 5),
        (("splits", "train", "sources", 0, "draws"), -1),
        (("splits", "train", "sources", 0, "draws"), True),
        (("splits", "train", "sources", 0, "index"), "../../x"),
        (("splits", "train", "sources", 0, "index"), f"../{'0' * 32}-GPTDataset-train"),
        (("splits", "train", "sources", 0, "index"), f"{'0' * 32}-GPTDataset-valid"),
        (("splits", "train", "sources", 0, "prefix"), "a\0b"),
        (("splits", "train", "sources", 0, "index"), "../../etc/passwd"),
        (("splits", "train", "order", "weights"), [1.0]),
        (("splits", "train", "order", "size"), -1),
        (("splits", "train", "order", "index"), "/etc/passwd"),
        (("splits", "train", "order"), None),
        (("splits", "train", "certificate", "tokens"), "many"),
        (("splits", "train", "certificate", "weight_error_curve"), [None]),
        (("splits", "train", "certificate", "sources", 0, "epochs"), "2"),
    ],
)
def test_values_that_cannot_be_are_refused(made, tmp_path, place, wrong):
    path = tmp_path / "mix" / "blend.json"
    value = json.loads(path.read_text())
    at = value
    for step in place[:-1]:
        at = at[step]
    at[place[-1]] = wrong
    path.write_text(json.dumps(value))
    with pytest.raises(IntegrityError, match=r"blend\.json"):
        BlendDocument.read(str(path))


def test_a_document_that_is_not_there_is_said_to_be(tmp_path):
    with pytest.raises(MissingFileError, match="no blend"):
        BlendDocument.read(str(tmp_path))


def test_a_blend_of_megatrons_own_is_compared_and_taken_over(made, tmp_path):
    sources, report = made
    split = report.document.splits["train"]
    sidecar = split.order.description.replace("description.txt", "tokshard.json")
    os.remove(sidecar)
    again = build_blend(words(sources), config_for(120, 10, 0), tmp_path / "mix")
    assert orders(again) == {"train": "verified", "valid": "found", "test": "found"}
    rewrite(split.order.dataset_index, falsify)
    for _ in range(2):
        with pytest.raises(TokshardError, match="train blend"):
            build_blend(words(sources), config_for(120, 10, 0), tmp_path / "mix")
        if os.path.exists(sidecar):
            os.remove(sidecar)
    again = build_blend(words(sources), config_for(120, 10, 0), tmp_path / "mix", rebuild=True)
    assert orders(again)["train"] == "rebuilt"
    assert recheck(again.document) == []


def test_a_cap_of_whole_epochs_is_one_for_every_token(tmp_path):
    sources = write_sources(tmp_path / "data")
    mixture = Mixture(
        (Source(sources[0], 0.5, max_epochs=2), Source(sources[1], 0.3), Source(sources[2], 0.2))
    )
    document = build_blend(BlendRecipe(mixture), config_for(500, 5, 5), tmp_path / "mix").document
    capped, *others = document.splits["train"].certificate.sources
    assert (capped.token_most, capped.document_most) == (2, 2)
    assert 1.9 < capped.epochs <= 2
    assert capped.share < capped.available / 500
    shares = [one.weight for one in others]
    assert shares[0] / shares[1] == pytest.approx(1.5)
    assert recheck(document) == []


def test_the_recipe_of_the_sample_data_is_one():
    path = Path(__file__).parents[2] / "sample_data" / "recipe.toml"
    recipe = read_recipe(str(path))
    assert [os.path.basename(source.prefix) for source in recipe.mixture.sources] == ["stories", "manuals"]
    assert recipe.defaults.num_samples == Sizes(8000, 100, 0)


def test_a_blend_that_was_changed_is_refused_and_rebuilt_on_request(made, tmp_path):
    sources, report = made
    split = report.document.splits["train"]
    right = Path(split.order.dataset_index).read_bytes()
    rewrite(split.order.dataset_index, falsify)
    with pytest.raises(IntegrityError, match="train blend"):
        build_blend(words(sources), config_for(120, 10, 0), tmp_path / "mix")
    again = build_blend(words(sources), config_for(120, 10, 0), tmp_path / "mix", rebuild=True)
    assert orders(again) == {"train": "rebuilt", "valid": "found", "test": "found"}
    assert Path(split.order.dataset_index).read_bytes() == right
    assert recheck(again.document) == []


def test_a_source_index_that_was_changed_is_never_certified(made, tmp_path):
    sources, report = made
    certified = Path(report.document.path).read_bytes()
    index = report.document.splits["train"].sources[0].shuffle_index
    right = Path(index).read_bytes()
    rewrite(index, turn_round)
    with pytest.raises(IntegrityError, match=r"the train index of .* does not have the digest"):
        build_blend(words(sources), config_for(120, 10, 0), tmp_path / "mix")
    assert Path(report.document.path).read_bytes() == certified
    again = build_blend(words(sources), config_for(120, 10, 0), tmp_path / "mix", rebuild=True)
    assert Path(index).read_bytes() == right
    assert again.document.id == report.document.id


def test_another_blend_is_refused_before_anything_is_built(made, tmp_path):
    sources, report = made
    before = snapshot(tmp_path / "mix")
    for other in (words(sources, (0.5, 0.3, 0.2)), words(sources[:2], (0.5, 0.5))):
        with pytest.raises(OutputExistsError, match="another blend"):
            build_blend(other, config_for(120, 10, 0), tmp_path / "mix")
    assert snapshot(tmp_path / "mix") == before
    forced = build_blend(
        words(sources, (0.5, 0.3, 0.2)), config_for(120, 10, 0), tmp_path / "mix", force=True
    )
    assert forced.document.id != report.document.id


def test_a_run_that_was_ended_anywhere_is_gone_on_with(tmp_path):
    sources = write_sources(tmp_path / "data")
    whole = build_blend(words(sources), config_for(120, 10, 0), tmp_path / "whole").document
    right = {name: content for name, (content, _) in snapshot(whole.cache_directory).items()}
    for number, name in enumerate(sorted(right)):
        if name.endswith(".lock"):
            continue
        mix = tmp_path / f"mix{number}"
        shutil.copytree(tmp_path / "whole", mix)
        os.remove(mix / "blend.json")
        os.remove(mix / "cache" / os.path.basename(name))
        again = build_blend(words(sources), config_for(120, 10, 0), mix)
        assert again.document.id == whole.id
        found = {os.path.basename(path): content for path, (content, _) in snapshot(mix / "cache").items()}
        assert found == {os.path.basename(path): content for path, content in right.items()}
