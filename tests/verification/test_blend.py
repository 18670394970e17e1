import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from support.blends import (
    config_for,
    write_dataset,
    write_sources,
)
from tokshard.blending.job import build_blend
from tokshard.blending.recipe_files import parse_words
from tokshard.verification.blend import recheck


def words(sources, weights=(0.5, 0.2, 0.3)):
    return parse_words([word for pair in zip(map(str, weights), sources, strict=True) for word in pair])


@pytest.fixture
def made(tmp_path):
    sources = write_sources(tmp_path / "data")
    return sources, build_blend(words(sources), config_for(120, 10, 0), tmp_path / "mix", workers=1)


def codes(document):
    return {(finding.code, finding.field) for finding in recheck(document)}


def rewrite(path, change):
    array = np.load(path)
    change(array)
    np.save(path, array)


def falsify(array):
    array[5] = (array[5] + 1) % 3


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
        ("blend-order", "splits.train.order")
    }
    assert after(lambda: rewrite(split.order.dataset_sample_index, falsify)) == {
        ("blend-order", "splits.train.order")
    }
    assert after(lambda: np.save(split.order.dataset_index, np.load(split.order.dataset_index)[1:])) == {
        ("blend-order", "splits.train.order")
    }
    assert after(lambda: os.remove(split.order.dataset_index)) == {("unreadable", "splits.train.order")}
    assert after(
        lambda: Path(split.order.description).write_bytes(
            Path(report.document.splits["valid"].order.description).read_bytes()
        )
    ) == {("blend-hash", "splits.train.order")}
    assert after(lambda: Path(source.description).write_text("x")) == {("unreadable", where)}
    assert after(lambda: np.save(source.shuffle_index, np.load(source.shuffle_index)[1:])) == {
        ("blend-order", where)
    }
    assert after(lambda: rewrite(source.shuffle_index, lambda array: array.fill(0))) == {
        ("blend-certificate", "splits.train.certificate")
    }
    assert after(lambda: rewrite(source.shuffle_index, lambda array: array.fill(10**6))) == {
        ("unreadable", "splits.train.certificate")
    }
    assert after(lambda: rewrite(source.document_index, lambda array: array.fill(39))) != set()


def test_a_rewritten_source_is_found(made, tmp_path):
    sources, report = made
    write_dataset(sources[0], [3] * 70)
    assert ("blend-source-changed", "splits.train.sources[0]") in codes(report.document)
