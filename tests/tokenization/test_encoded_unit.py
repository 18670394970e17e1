"""Encoded units: held, placed or committed whole, and nothing is left of one that is given up."""

from __future__ import annotations

import os
from functools import partial
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.tokenize_runs import TOKENIZER, job_of, write_jsonl
from tokshard.corpus.records import read_documents
from tokshard.corpus.units import LineUnit
from tokshard.errors import IntegrityError, StorageError
from tokshard.tokenization import encoded_unit
from tokshard.tokenization import encoder as encoder_module
from tokshard.tokenization.encoded_unit import HeldUnit, Placement, Placements
from tokshard.tokenization.encoder import Task, UnitEncoder
from tokshard.tokenization.part import PartReader, UnitKey

FIELDS = ("text", "title")


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Encode a unit of two fields, in several batches."""
    records = [{"text": f"{k} " + "word " * (k % 7), "title": f"t{k}"} for k in range(60)]
    source = write_jsonl(tmp_path / "corpus.jsonl", records)
    parts = tmp_path / "parts"
    parts.mkdir()
    options = {"tokenizer": TOKENIZER, "encoder": "reference", "fields": FIELDS}
    encoder = UnitEncoder(job_of(source, str(tmp_path / "x"), **options).encoding, str(parts))
    monkeypatch.setattr(encoder_module, "read_documents", partial(read_documents, batch_bytes=300))
    unit = LineUnit(0, 0, True, source, 0, os.path.getsize(source))
    return lambda: list(encoder.encode(Task(unit, source, 0)))[-1]


def part_of(folder: Path) -> PartReader:
    return PartReader(str(folder / "parts/000000-000000000.part"))


def streams_of(folder: Path) -> dict[str, bytes]:
    names = [f"{kind}.{k}" for kind in ("tokens", "lengths", "sequences") for k in range(2)]
    with part_of(folder) as part:
        part.verify()
        streams = {}
        for name in [*names, "offsets", "rejected"]:
            place = part.placed(name)
            if place is None:
                streams[name] = part.read(name)
            else:
                streams[name] = (folder / f"{name[-1]}.bin").read_bytes()[place.start : place.stop]
            assert part.digest(name)
        return streams


def place_in(folder: Path, *offsets: int) -> Placement:
    paths = tuple(str(folder / f"{k}.bin") for k in range(2))
    for path in paths:
        Path(path).touch()
    return Placement(UnitKey(0, 0), paths, offsets)


def test_placed_and_whole_and_written_as_it_comes_are_the_same(tmp_path, make, monkeypatch):
    unit = make()
    sizes = unit.held.sizes
    unit.commit()
    expected = streams_of(tmp_path)
    assert sizes == (len(expected["tokens.0"]), len(expected["tokens.1"]))
    unit = make()
    assert unit.is_held
    assert unit.held_bytes == sum(sizes)
    unit.commit(place_in(tmp_path, 7, 0))
    assert streams_of(tmp_path) == expected
    with part_of(tmp_path) as part:
        assert part.placed("tokens.0") == range(7, 7 + sizes[0])
        assert part.token_bytes == sizes
    monkeypatch.setattr(encoded_unit, "HELD_BYTES", 100)
    unit = make()
    assert not unit.is_held
    assert unit.held_bytes == 0
    assert unit.held.sizes == sizes
    unit.commit()
    assert streams_of(tmp_path) == expected


def test_every_flipped_byte_of_placed_tokens_is_seen(tmp_path, make):
    make().commit(place_in(tmp_path, 3, 0))
    path = tmp_path / "0.bin"
    whole = path.read_bytes()
    with part_of(tmp_path) as part:
        for position in range(len(whole)):
            damaged = bytearray(whole)
            damaged[position] ^= 0x20
            path.write_bytes(damaged)
            if position < 3:
                part.verify()  # that is another unit's
            else:
                with pytest.raises(IntegrityError, match=r"the stream tokens\.0 is damaged"):
                    part.verify()
        for size in (0, 3, len(whole) - 1):
            path.write_bytes(whole[:size])
            with pytest.raises(IntegrityError, match="damaged"):
                part.verify()
        path.unlink()
        with pytest.raises(IntegrityError, match="cannot be read"):
            part.verify()
        path.symlink_to(tmp_path / "1.bin")
        with pytest.raises(IntegrityError, match="cannot be read"):
            part.verify()


def test_a_file_of_tokens_that_is_not_there_is_not_made(tmp_path, make):
    unit = make()
    place = place_in(tmp_path, 0, 0)
    os.unlink(place.paths[0])
    with pytest.raises(StorageError, match=r"cannot open .*0\.bin"):
        unit.commit(place)
    assert not os.path.exists(place.paths[0])
    assert not os.listdir(tmp_path / "parts")


@pytest.mark.parametrize("held_bytes", [100, 1 << 20])
def test_nothing_is_left_of_a_unit_that_fails(tmp_path, make, monkeypatch, held_bytes):
    monkeypatch.setattr(encoded_unit, "HELD_BYTES", held_bytes)
    seen = []

    def fail(*_: object) -> None:
        seen.append(1)
        if len(seen) == 4:
            raise ZeroDivisionError

    monkeypatch.setattr(encoded_unit.EncodedUnit, "add", lambda *_: fail())
    with pytest.raises(ZeroDivisionError):
        make()
    assert not os.listdir(tmp_path / "parts")


# Positions

UNIT_SIZES = st.lists(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=4), max_size=4
)


@given(files=UNIT_SIZES, begin=st.tuples(st.integers(0, 9), st.integers(0, 9)), data=st.data())
def test_positions_are_running_sums(files, begin, data):
    units = [
        HeldUnit(UnitKey(number, index), index == len(sizes) - 1, size)
        for number, sizes in enumerate(files)
        for index, size in enumerate(sizes)
    ]
    paths = ("0.bin", "1.bin")
    columns = [accumulate([unit.sizes[k] for unit in units], initial=begin[k]) for k in range(2)]
    expected = [
        Placement(unit.key, paths, offsets)
        for unit, offsets in zip(units, zip(*columns, strict=True), strict=False)
    ]
    placement = Placements(UnitKey(0, 0), paths, begin)
    found, known = [], set()
    for unit in data.draw(st.permutations(units)):
        found += placement.locate(unit)
        known.add(unit.key)
        # As many as are known from the beginning without a gap, and no more.
        first_gap = next((n for n, unit in enumerate(units) if unit.key not in known), len(units))
        assert found == expected[:first_gap]
    assert found == expected
