import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from support.blends import (
    build_blend,
    config_for,
    problems_of,
    write_dataset,
    write_sources,
)
from tokshard.samples.blend.recipe_files import parse_words


def words(sources, weights=(0.5, 0.2, 0.3)):
    return parse_words([word for pair in zip(map(str, weights), sources, strict=True) for word in pair])


@pytest.fixture
def made(tmp_path):
    sources = write_sources(tmp_path / "data")
    return sources, build_blend(words(sources), config_for(120, 10, 0), tmp_path / "mix", workers=1)


def rewrite(path, change):
    array = np.load(path)
    change(array)
    np.save(path, array)


def shorten(path):
    np.save(path, np.load(path)[1:])


def falsify(array):
    array[5] = (array[5] + 1) % 3


def test_what_was_changed_afterwards_is_found(made, tmp_path):
    report = made[1]
    split = report.blend.splits["train"]
    backup = tmp_path / "backup"
    shutil.copytree(tmp_path / "mix", backup)

    def after(change):
        change()
        found = problems_of(report.path)
        shutil.rmtree(tmp_path / "mix")
        shutil.copytree(backup, tmp_path / "mix")
        assert problems_of(report.path) == set()
        return found

    index, order = split.sources[1].index, split.order
    written, shorter = {"cache-digest", "cache-content"}, {"cache-array", "cache-shape", "cache-digest"}
    other = Path(report.blend.splits["valid"].order.description_path).read_bytes()
    assert after(lambda: rewrite(order.array_path("dataset_index"), falsify)) == written
    assert after(lambda: rewrite(order.array_path("dataset_sample_index"), falsify)) == written
    assert after(lambda: shorten(order.array_path("dataset_index"))) == shorter
    assert after(lambda: os.remove(order.array_path("dataset_index"))) == {"cache-incomplete"}
    assert after(lambda: Path(order.description_path).write_bytes(other)) == {"cache-name", "cache-shape"}
    assert after(lambda: Path(index.description_path).write_text("x")) == {"cache-description"}
    assert after(lambda: shorten(index.array_path("shuffle_index"))) == {*shorter, "blend-samples"}
    assert after(lambda: rewrite(index.array_path("shuffle_index"), lambda array: array.fill(0))) == written
    assert (
        after(lambda: rewrite(index.array_path("shuffle_index"), lambda array: array.fill(10**6))) == written
    )
    assert after(lambda: rewrite(index.array_path("document_index"), lambda array: array.fill(39))) == written


def test_a_rewritten_source_is_found(made, tmp_path):
    sources, report = made
    write_dataset(sources[0], [3] * 70)
    assert "blend-source-changed" in problems_of(report.path)
