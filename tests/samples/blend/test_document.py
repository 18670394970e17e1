import json
import os
import shutil
from pathlib import Path

import pytest

from support.blends import build_blend, config_for, problems_of, write_sources
from tokshard.errors import IntegrityError, MissingFileError
from tokshard.samples.blend.document import BlendDocument
from tokshard.samples.blend.recipe_files import parse_words
from tokshard.samples.index.packing import Packing


def words(sources, weights=(0.5, 0.2, 0.3)):
    return parse_words([word for pair in zip(map(str, weights), sources, strict=True) for word in pair])


@pytest.fixture
def made(tmp_path):
    sources = write_sources(tmp_path / "data")
    return sources, build_blend(words(sources), config_for(120, 10, 0), tmp_path / "mix", workers=1)


GOLDEN = Path(__file__).parents[2] / "golden/formats/blend-2.json"
WITH_TOKENIZERS = GOLDEN.with_name("blend-2-tokenizers.json")


@pytest.mark.parametrize("golden", [GOLDEN, WITH_TOKENIZERS])
def test_the_golden_document_is_read_and_written_byte_for_byte(golden, tmp_path):
    shutil.copy(golden, tmp_path / "blend.json")
    document = BlendDocument.read(str(tmp_path))
    train = document.splits["train"]
    assert train.sources[1].index.array_path("document_index") == str(
        tmp_path / "cache/98b2d70b15f8ac7672f1024826757f79-GPTDataset-train-document_index.npy"
    )
    assert (train.shares, document.splits["valid"].shares) == ((0.7, 0.3), (1.0,))
    (tmp_path / "blend.json").unlink()
    document.write(str(tmp_path))
    assert (tmp_path / "blend.json").read_bytes() == golden.read_bytes()


def test_the_golden_document_of_a_packed_source_is_read_and_written_byte_for_byte(tmp_path):
    golden = GOLDEN.with_name("blend-2-packed.json")
    shutil.copy(golden, tmp_path / "blend.json")
    document = BlendDocument.read(str(tmp_path))
    packing = Packing(max_documents=8, pad_multiple=4)
    assert [source.packing for source in document.splits["train"].sources] == [packing, None]
    assert document.builder.packing == packing
    (tmp_path / "blend.json").unlink()
    document.write(str(tmp_path))
    assert (tmp_path / "blend.json").read_bytes() == golden.read_bytes()


def test_the_tokenizers_of_the_sources_are_known(tmp_path):
    shutil.copy(WITH_TOKENIZERS, tmp_path / "blend.json")
    document = BlendDocument.read(str(tmp_path))
    sizes = [document.tokenizer_of(source).identity.vocab_size for source in document.splits["train"].sources]
    assert sizes == [4096, 8192]


def test_a_source_names_a_tokenizer_of_the_list():
    value = json.loads(WITH_TOKENIZERS.read_text())
    BlendDocument.from_json(value, "blend.json")
    for source in value["splits"]["train"]["sources"]:
        source["tokenizer"] = 0
    for source in value["splits"]["valid"]["sources"]:
        source["tokenizer"] = 0
    with pytest.raises(IntegrityError, match="contradicts tokenizers"):
        BlendDocument.from_json({**value, "tokenizers": []}, "blend.json")


def test_the_document_is_read_back_and_moves_with_its_directory(made, tmp_path):
    report = made[1]
    read = BlendDocument.read(str(tmp_path / "mix"))
    assert read == report.blend
    assert BlendDocument.read(str(tmp_path / "mix" / "blend.json")) == read
    shutil.move(tmp_path / "mix", tmp_path / "moved")
    moved = BlendDocument.read(str(tmp_path / "moved"))
    assert moved.id == read.id
    assert problems_of(tmp_path / "moved") == set()
    assert moved.splits["train"].order.array_path("dataset_index").startswith(str(tmp_path / "moved"))


def test_all_kinds_of_splits_are_documented(tmp_path):
    sources = write_sources(tmp_path / "mix" / "data")
    recipe = parse_words(
        ["2", sources[0], "1", sources[1]], sources[1:], [sources[0]], multiple_validation_sets=True
    )
    document = build_blend(
        recipe, config_for(50, 3, 4), tmp_path / "mix", cache_directory=tmp_path / "elsewhere"
    ).blend
    read = BlendDocument.read(str(tmp_path / "mix"))
    assert read == document
    assert list(read.splits) == ["train", "valid.0", "valid.1", "test"]
    assert [split.order is None for split in read.splits.values()] == [False, True, True, True]
    assert read.splits["test"].sources[0].draws == read.splits["test"].samples
    stored = json.loads((tmp_path / "mix" / "blend.json").read_text())
    (source,) = stored["splits"]["test"]["sources"]
    assert source["path_prefix"] == "data/source0"
    assert os.path.dirname(source["index"]["path_prefix"]) == str(tmp_path / "elsewhere")
    assert read.cache_directory == str(tmp_path / "elsewhere")
    assert problems_of(tmp_path / "mix") == set()


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
        (("schema",), "tokshard.blend/3"),
        (("id",), "0" * 64),
        (("builder", "sequence_length"), 0),
        (("builder", "seed"), "1"),
        (("splits", "train", "kind"), "single"),
        (("splits", "train", "kind"), "other"),
        (("splits", "train", "split"), "test"),
        (("splits", "train", "samples"), 5),
        (("splits", "train", "sources", 0, "draws"), -1),
        (("splits", "train", "sources", 0, "draws"), True),
        (("splits", "train", "sources", 0, "index", "path_prefix"), "../../x"),
        (("splits", "train", "sources", 0, "index", "path_prefix"), f"{'0' * 32}-GPTDataset-train"),
        (("splits", "train", "sources", 0, "index", "path_prefix"), f"{'0' * 32}-GPTDataset-valid"),
        (("splits", "train", "sources", 0, "index", "path_prefix"), f"{'0' * 32}-BlendedDataset-train"),
        (("splits", "train", "sources", 0, "path_prefix"), "a\0b"),
        (("splits", "train", "sources", 0, "index", "path_prefix"), "../../etc/passwd"),
        (("splits", "train", "weights"), [1.0]),
        (("splits", "train", "weights"), None),
        (("splits", "train", "weights"), [0.0, 0.5, 0.5]),
        (("splits", "train", "weights"), [2.0, 0.5, 0.5]),
        (("splits", "train", "size"), -1),
        (("splits", "train", "order", "path_prefix"), "/etc/passwd"),
        (("splits", "train", "order"), None),
        (("certificates", "train", "tokens"), "many"),
        (("certificates", "train", "sources", 0, "epochs"), "2"),
        (("certificates", "train", "sources"), []),
        (("certificates",), {}),
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
    with pytest.raises(MissingFileError, match="blend not found"):
        BlendDocument.read(str(tmp_path))
