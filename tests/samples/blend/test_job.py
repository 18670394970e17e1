import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from support.blends import (
    build_blend,
    config_for,
    covered,
    deviations,
    exhaustive,
    greedy,
    problems_of,
    recipe_of,
    snapshot,
    write_dataset,
    write_sources,
)
from tokshard import VerifyOptions, verify
from tokshard.dataset.builder import IndexedDatasetBuilder
from tokshard.dataset.fingerprint import FileFingerprint
from tokshard.dataset.reader import IndexedDataset
from tokshard.errors import IntegrityError, OutputExistsError
from tokshard.samples.blend import document as document_module
from tokshard.samples.blend import job
from tokshard.samples.blend.document import BlendDocument
from tokshard.samples.blend.recipe import Source
from tokshard.samples.blend.recipe_files import parse_words, read_arguments
from tokshard.samples.index.description import read_description
from tokshard.samples.index.sizes import Sizes
from tokshard.storage.files import temporary_path


def words(sources, weights=(0.5, 0.2, 0.3)):
    return parse_words([word for pair in zip(map(str, weights), sources, strict=True) for word in pair])


@pytest.fixture
def made(tmp_path):
    sources = write_sources(tmp_path / "data")
    return sources, build_blend(words(sources), config_for(120, 10, 0), tmp_path / "mix", workers=1)


def test_the_files_are_the_orders_of_the_definitions_under_the_hashes_of_their_descriptions(tmp_path):
    sources = write_sources(tmp_path / "data")
    weighted = build_blend(words(sources), config_for(120, 10, 5), tmp_path / "weighted").blend
    every = build_blend(parse_words(sources), config_for(None, 9, 5), tmp_path / "every").blend
    for document, name, right in (
        (weighted, "train", lambda split: greedy(list(split.weights), split.size)),
        (weighted, "test", lambda split: greedy(list(split.weights), split.size)),
        (every, "train", lambda split: exhaustive([int(size) for size in split.weights])),
        (every, "valid", lambda split: greedy(list(split.weights), split.size)),
    ):
        split = document.splits[name]
        arrays = [np.load(path) for path in split.order.fingerprints]
        assert [array.tolist() for array in arrays] == list(right(split))
        assert [array.dtype for array in arrays] == [np.int16, np.int64]
        description = read_description(split.order.description_path)
        assert (
            os.path.basename(split.order.array_path("dataset_index"))
            == f"{description.hash()}-BlendedDataset-{name}-dataset_index.npy"
        )
        assert [dataset.hash() for dataset in description.datasets] == [
            source.index.hash for source in split.sources
        ]
    assert problems_of(tmp_path / "weighted") == problems_of(tmp_path / "every") == set()


def test_the_certificate_says_what_counting_one_by_one_says(made, tmp_path):
    sources, report = made
    split = report.blend.splits["train"]
    order = np.load(split.order.array_path("dataset_index")).tolist()
    errors = deviations(order, split.weights)
    certificate = report.blend.certificates["train"]
    assert certificate.weight_error == pytest.approx(max(errors))
    assert certificate.samples == len(order)
    lengths = {
        prefix: [1 + (7 * i + n) % 40 for i in range(count)]
        for n, (prefix, count) in enumerate(zip(sources, (60, 40, 50), strict=True))
    }
    for place, (source, certified) in enumerate(zip(split.sources, certificate.sources, strict=True)):
        names = ("document_index", "shuffle_index")
        index = [np.load(source.index.array_path(name)).tolist() for name in names]
        right = covered(lengths[sources[place]], *index, order.count(place), 16)
        assert {name: getattr(certified, name) for name in right} == right
        assert (certified.samples, certified.available) == (order.count(place), source.epochs.samples)
        assert certified.share == order.count(place) / len(order)
        assert certified.weight_error == pytest.approx(errors[place])


def test_a_second_run_finds_everything_and_writes_the_same_document(made, tmp_path):
    sources = made[0]
    before = snapshot(tmp_path / "mix" / "cache")
    document = (tmp_path / "mix" / "blend.json").read_bytes()
    again = build_blend(words(sources), config_for(120, 10, 0), tmp_path / "mix")
    stems = {os.path.basename(name).rpartition("-")[0] for name in before if name.endswith(".npy")}
    assert len(stems) == 3 * (len(sources) + 1)
    assert again.actions == dict.fromkeys(stems, "found")
    assert snapshot(tmp_path / "mix" / "cache") == before
    assert (tmp_path / "mix" / "blend.json").read_bytes() == document


def test_the_fingerprints_are_those_of_the_files_also_of_indexes_that_are_rebuilt(made, tmp_path):
    sources, report = made
    again = build_blend(words(sources), config_for(120, 10, 0), tmp_path / "mix", rebuild=True, force=True)
    assert again.blend == report.blend
    for split in report.blend.splits.values():
        files = dict(split.order.fingerprints)
        for source in split.sources:
            files |= source.index.fingerprints
            files |= {f"{source.path_prefix}.bin": source.bin, f"{source.path_prefix}.idx": source.idx}
            assert len(np.load(source.index.array_path("shuffle_index"))) == source.epochs.samples
        assert files == {path: FileFingerprint.of(path) for path in files}
        assert len(files) == 17


def test_a_multimodal_dataset_is_refused(tmp_path):
    with IndexedDatasetBuilder(tmp_path / "images.bin", "int32", multimodal=True) as builder:
        for mode in range(40):
            builder.add_document(np.arange(20), [20], [mode % 2])
        builder.finalize(tmp_path / "images.idx")
    prefix = str(tmp_path / "images")
    verify(VerifyOptions(path=prefix, adopt=True))  # its manifest says that it has modes
    with pytest.raises(IntegrityError, match="must be a text index, got a multimodal index"):
        build_blend(parse_words([prefix]), config_for(30, 0, 0, split="1"), tmp_path / "mix")


def test_another_blend_is_not_replaced_unless_told(made, tmp_path):
    sources, report = made
    with pytest.raises(OutputExistsError, match="another blend"):
        build_blend(words(sources, (1, 1, 1)), config_for(120, 10, 0), tmp_path / "mix")
    assert BlendDocument.read(str(tmp_path / "mix")).id == report.blend.id
    other = build_blend(words(sources, (1, 1, 1)), config_for(120, 10, 0), tmp_path / "mix", force=True)
    assert BlendDocument.read(str(tmp_path / "mix")).id == other.blend.id != report.blend.id
    path = tmp_path / "mix" / "blend.json"
    path.write_text("{}")
    with pytest.raises(OutputExistsError):
        build_blend(words(sources), config_for(120, 10, 0), tmp_path / "mix")
    path.unlink()
    path.symlink_to("nowhere")
    with pytest.raises(OutputExistsError, match="another blend"):
        build_blend(words(sources), config_for(120, 10, 0), tmp_path / "mix")
    path.unlink()
    path.mkdir()
    for force in (False, True):
        with pytest.raises(OutputExistsError, match="a directory exists") as caught:
            build_blend(words(sources), config_for(120, 10, 0), tmp_path / "mix", force=force)
        assert caught.value.hint == "remove it, or pass another --output"


def rewrite(path, change):
    array = np.load(path)
    change(array)
    np.save(path, array)


def orders(report):
    """Return what was done about the order of each split."""
    names = {stem.split("-")[2]: stem for stem in report.actions if "BlendedDataset" in stem}
    return {split: report.actions[stem] for split, stem in names.items()}


def falsify(array):
    array[5] = (array[5] + 1) % 3


def turn_round(array):
    array[:] = array[::-1].copy()


def test_a_source_rewritten_while_it_is_blended_gets_no_certificate(tmp_path, monkeypatch):
    sources = write_sources(tmp_path / "data")
    order = job.order_of

    def meanwhile(split):
        write_dataset(sources[0], IndexedDataset(sources[0]).sequence_lengths[::-1].tolist())
        return order(split)

    monkeypatch.setattr(job, "order_of", meanwhile)
    with pytest.raises(IntegrityError, match="changed while its indexes were built"):
        build_blend(words(sources), config_for(120, 10, 0), tmp_path / "mix", workers=1)
    assert not (tmp_path / "mix" / "blend.json").exists()


def test_an_order_of_megatrons_own_is_left_alone_and_rebuilt_on_request(made, tmp_path):
    sources, report = made
    split = report.blend.splits["train"]
    os.remove(split.order.description_path.replace("description.txt", "tokshard.json"))
    with pytest.raises(OutputExistsError, match=r"the train blend .* was not built by tokshard") as caught:
        build_blend(words(sources), config_for(120, 10, 0), tmp_path / "mix")
    assert "pass --rebuild to replace it" in caught.value.hint
    again = build_blend(words(sources), config_for(120, 10, 0), tmp_path / "mix", rebuild=True)
    assert orders(again) == {"train": "rebuilt", "valid": "found", "test": "found"}
    assert problems_of(again.path) == set()


def test_a_cap_of_whole_epochs_is_one_for_every_document(tmp_path):
    sources = write_sources(tmp_path / "data")
    recipe = recipe_of(
        Source(sources[0], 0.5, max_epochs=2), Source(sources[1], 0.3), Source(sources[2], 0.2)
    )
    document = build_blend(recipe, config_for(500, 5, 5), tmp_path / "mix").blend
    capped, *others = document.certificates["train"].sources
    assert capped.document_most == 2
    assert 1.9 < capped.epochs <= 2
    assert capped.share < capped.available / 500
    shares = [source.weight for source in others]
    assert shares[0] / shares[1] == pytest.approx(1.5)
    assert problems_of(tmp_path / "mix") == set()


def test_the_recipe_of_the_sample_data_is_one():
    path = Path(__file__).parents[3] / "sample_data" / "recipe.toml"
    recipe, options = read_arguments([str(path)])
    assert [os.path.basename(source.prefix) for source in recipe.sources] == ["stories", "manuals"]
    assert options["num_samples"] == Sizes(8000, 100, 0)


def test_a_blend_that_was_changed_is_refused_and_rebuilt_on_request(made, tmp_path):
    sources, report = made
    split = report.blend.splits["train"]
    right = Path(split.order.array_path("dataset_index")).read_bytes()
    rewrite(split.order.array_path("dataset_index"), falsify)
    with pytest.raises(IntegrityError, match="train blend"):
        build_blend(words(sources), config_for(120, 10, 0), tmp_path / "mix")
    again = build_blend(words(sources), config_for(120, 10, 0), tmp_path / "mix", rebuild=True)
    assert orders(again) == {"train": "rebuilt", "valid": "found", "test": "found"}
    assert Path(split.order.array_path("dataset_index")).read_bytes() == right
    assert problems_of(again.path) == set()


def test_a_source_index_that_was_changed_is_never_certified(made, tmp_path):
    sources, report = made
    certified = Path(report.path).read_bytes()
    index = report.blend.splits["train"].sources[0].index.array_path("shuffle_index")
    right = Path(index).read_bytes()
    rewrite(index, turn_round)
    with pytest.raises(IntegrityError, match=r"the train index of .* does not match its recorded digest"):
        build_blend(words(sources), config_for(120, 10, 0), tmp_path / "mix")
    assert Path(report.path).read_bytes() == certified
    again = build_blend(words(sources), config_for(120, 10, 0), tmp_path / "mix", rebuild=True)
    assert Path(index).read_bytes() == right
    assert again.blend.id == report.blend.id


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
    assert forced.blend.id != report.blend.id


def test_a_run_that_stopped_before_any_of_its_files_is_resumed(tmp_path):
    sources = write_sources(tmp_path / "data")
    whole = build_blend(words(sources), config_for(120, 10, 0), tmp_path / "whole").blend
    right = {name: content for name, (content, _) in snapshot(whole.cache_directory).items()}
    for number, name in enumerate(sorted(right)):
        if name.endswith(".lock"):
            continue
        mix = tmp_path / f"mix{number}"
        shutil.copytree(tmp_path / "whole", mix)
        os.remove(mix / "blend.json")
        os.remove(mix / "cache" / os.path.basename(name))
        # No stopped run leaves a description without its sidecar: such files are taken for Megatron's own.
        rebuild = name.endswith("-tokshard.json")
        again = build_blend(words(sources), config_for(120, 10, 0), mix, rebuild=rebuild)
        assert again.blend.id == whole.id
        found = {os.path.basename(path): content for path, (content, _) in snapshot(mix / "cache").items()}
        assert found == {os.path.basename(path): content for path, content in right.items()}


def test_what_a_killed_run_left_of_a_document_is_removed(made, tmp_path):
    sources, report = made
    for name in ("blend.json", "other.json"):
        Path(temporary_path(str(tmp_path / "mix" / name))).touch()
    os.remove(report.path)
    build_blend(words(sources), config_for(120, 10, 0), tmp_path / "mix")
    hidden = [name for name in os.listdir(tmp_path / "mix") if name.startswith(".")]
    assert [name.split(".")[1] for name in hidden] == ["other"]


def test_a_blend_that_another_process_finishes_meanwhile_is_found(made, tmp_path, monkeypatch):
    sources, report = made
    content = Path(report.path).read_bytes()
    os.remove(report.path)
    original = document_module.syscalls.make_directory

    def other_process_first(path):
        original(path)
        Path(report.path).write_bytes(content)

    monkeypatch.setattr(document_module.syscalls, "make_directory", other_process_first)
    again = build_blend(words(sources), config_for(120, 10, 0), tmp_path / "mix")
    assert again.blend.id == report.blend.id
    assert sorted(os.listdir(tmp_path / "mix")) == ["blend.json", "cache"]
