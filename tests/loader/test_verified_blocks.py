"""Tokens that change under a loader, and ``verify="blocks"``: no batch has other tokens than recorded."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from support.loader_plans import open_plan, plan_for, same, source_of
from tokshard import VerifyOptions, verify
from tokshard.dataset.fingerprint import dataset_fingerprint
from tokshard.dataset.reader import IndexedDataset
from tokshard.errors import IntegrityError, UsageError
from tokshard.verification import adoption

BLOCK_BYTES = 96


def touch(path, seconds=7):
    """Change the modification time of a file, as a later write does."""
    status = os.stat(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + seconds * 10**9))


def write_at(path, place, content):
    """Write a file in place."""
    with open(path, "r+b") as file:
        file.seek(place)
        file.write(content)
    touch(path)


def flip(path, place):
    write_at(path, place, bytes([Path(path).read_bytes()[place] ^ 1]))


@pytest.fixture(params=["index", "documents"])
def plan(request, tmp_path, monkeypatch):
    """A plan over two adopted datasets of many blocks."""
    monkeypatch.setattr(adoption, "PIECE_BYTES", BLOCK_BYTES)
    source = source_of(tmp_path, datasets=2, documents=60, kind=request.param)
    for dataset in source.datasets:
        assert verify(VerifyOptions(dataset.prefix, adopt=True)).is_sound
    # The plan samples eight blocks of 4 KiB of each file, which is all of small ones.
    monkeypatch.setattr("tokshard.sharding.sources.FileFingerprint.check", lambda self, path: None)
    return plan_for(tmp_path, source=source)


def batches(loader):
    """Return each micro-batch, or the message of the error that it is."""
    found = []
    for number in range(len(loader)):
        try:
            found.append(loader[number])
        except IntegrityError as error:
            found.append(str(error))
    return found


@pytest.mark.parametrize("mmap", [True, False])
def test_sound_blocks_change_no_batch(plan, mmap):
    expected = batches(open_plan(plan))
    loader = open_plan(plan, verify="blocks", mmap=mmap)
    assert all(map(same, batches(loader), expected))
    loader.close()
    assert all(map(same, batches(loader), expected))


@pytest.mark.parametrize("mmap", [True, False])
def test_a_flipped_byte_stops_the_batches_that_read_its_block_and_no_others(plan, tmp_path, mmap):
    path = str(tmp_path / "data0.bin")
    expected, size = batches(open_plan(plan)), os.path.getsize(path)
    for place in range(0, size, max(1, size // 9)):
        flip(path, place)
        found = batches(open_plan(plan, verify="blocks", mmap=mmap))
        flip(path, place)
        damaged = [entry for entry in found if isinstance(entry, str)]
        assert damaged
        for message in damaged:
            first, last = map(
                int, re.search(r"data0\.bin: block \d+ \(bytes (\d+) to (\d+)\)", message).groups()
            )
            assert first <= place <= last
        for entry, right in zip(found, expected, strict=True):
            assert isinstance(entry, str) or same(entry, right)


@pytest.mark.parametrize("verified", [None, "blocks"])
@pytest.mark.parametrize("mmap", [True, False])
def test_a_file_that_is_rewritten_while_it_is_open_is_noticed(plan, tmp_path, mmap, verified):
    path = str(tmp_path / "data0.bin")
    loader = open_plan(plan, verify=verified, mmap=mmap)
    expected = batches(loader)
    write_at(path, 0, bytes(len(Path(path).read_bytes())))
    found = batches(loader)
    assert any(isinstance(entry, str) and "data0.bin: block" in entry for entry in found)
    for entry, right in zip(found, expected, strict=True):
        assert isinstance(entry, str) or same(entry, right)


def test_a_file_that_was_only_touched_stops_nothing(plan, tmp_path):
    """As scripts do on file systems that remove old files."""
    loader = open_plan(plan)
    expected = batches(loader)
    touch(tmp_path / "data0.bin")
    assert all(map(same, batches(loader), expected))


def test_a_file_without_digests_that_changes_while_it_is_open_is_an_error(tmp_path):
    source = source_of(tmp_path)
    loader = open_plan(plan_for(tmp_path, source=source))
    assert not any(isinstance(entry, str) for entry in batches(loader))
    touch(tmp_path / "data0.bin")
    with pytest.raises(IntegrityError, match=r"data0\.bin changed while it was open: .* it has no manifest"):
        loader[0]


def test_an_index_that_is_rewritten_while_it_is_open_is_noticed(tmp_path):
    source = source_of(tmp_path)
    prefix = source.datasets[0].prefix
    known = [replace(source.datasets[0], fingerprint=dataset_fingerprint(prefix))]
    loader = open_plan(plan_for(tmp_path, source=replace(source, datasets=tuple(known))))
    expected = batches(loader)
    touch(f"{prefix}.idx")
    assert all(map(same, batches(loader), expected))
    flip(f"{prefix}.idx", os.path.getsize(f"{prefix}.idx") - 5)
    with pytest.raises(IntegrityError, match=r"data0\.idx changed while it was open: the plan requires"):
        loader[0]


def test_a_file_that_changes_twice_is_compared_again(plan, tmp_path):
    loader = open_plan(plan)
    expected = batches(loader)
    touch(tmp_path / "data0.bin")
    assert all(map(same, batches(loader), expected))
    loader.close()
    write_at(str(tmp_path / "data0.bin"), 0, bytes(os.path.getsize(tmp_path / "data0.bin")))
    assert any(isinstance(entry, str) and "data0.bin: block" in entry for entry in batches(loader))


def test_a_file_that_is_replaced_while_it_is_open_is_read_as_it_was(plan, tmp_path):
    loader = open_plan(plan, verify="blocks")
    expected = batches(loader)
    (tmp_path / "other").write_bytes(bytes(os.path.getsize(tmp_path / "data0.bin")))
    os.replace(tmp_path / "other", tmp_path / "data0.bin")
    assert all(map(same, batches(loader), expected))


def test_a_dataset_without_a_manifest_cannot_be_verified(tmp_path):
    loader = open_plan(plan_for(tmp_path, source=source_of(tmp_path)), verify="blocks")
    with pytest.raises(UsageError, match=r"cannot verify the tokens of .*data0: it has no manifest"):
        loader[0]


def test_units_of_another_dataset_are_refused(plan, tmp_path):
    units = tmp_path / "data0.tokshard/units.jsonl"
    units.write_bytes((tmp_path / "data1.tokshard/units.jsonl").read_bytes())
    with pytest.raises(IntegrityError, match=r"units\.jsonl must describe"):
        list(open_plan(plan, verify="blocks"))


def test_an_unknown_value_is_refused(plan):
    with pytest.raises(UsageError, match='verify must be "blocks" or None'):
        open_plan(plan, verify="all")


def test_each_worker_of_a_data_loader_checks_what_it_reads(plan, tmp_path):
    pytest.importorskip("torch")
    from tokshard.loader.torch import data_loader

    expected = [batch["tokens"] for batch in batches(open_plan(plan))]
    loader = data_loader(open_plan(plan, verify="blocks"), num_workers=2)
    assert all(np.array_equal(batch["tokens"], right) for batch, right in zip(loader, expected, strict=True))
    for place in (0, os.path.getsize(tmp_path / "data0.bin") - 1):
        flip(str(tmp_path / "data0.bin"), place)
    with pytest.raises(IntegrityError, match=r"data0\.bin: block \d+"):
        list(data_loader(open_plan(plan, verify="blocks"), num_workers=2))


def test_verifying_needs_xxhash(plan, monkeypatch):
    monkeypatch.setitem(sys.modules, "xxhash", None)
    with pytest.raises(UsageError, match="verifying tokens requires the package xxhash"):
        open_plan(plan, verify="blocks")[0]


def test_blocks_are_read_once(plan, monkeypatch):
    from tokshard.dataset.blocks import TokenBlocks

    original, compared = TokenBlocks._compare, []

    def compare(self, block):
        compared.append((self._file.path, block))
        original(self, block)

    monkeypatch.setattr(TokenBlocks, "_compare", compare)
    loader = open_plan(plan, verify="blocks", max_open_files=1)
    batches(loader)
    batches(loader)
    assert len(compared) == len(set(compared))
    assert IndexedDataset(compared[0][0].removesuffix(".bin")).index.token_count > 0
