"""P58: exports of sources that change or are in the way, and numbers that no file can hold."""

import os

import pytest

import tokshard
from support.plain_datasets import Plain
from tokshard import ConvertOptions, ExportOptions, TokenizeOptions, VerifyOptions
from tokshard.errors import InputError, IntegrityError, UsageError

OLD, NEW = (Plain("uint16", [[[value, value + 1, 0]] for _ in range(50)]) for value in (1, 7))


class Listener:
    """A progress listener that calls a function at one update."""

    def __init__(self, at, call):
        self._left, self._call = at, call

    def start(self, activity, bytes_total=None, bytes_resumed=0):
        pass

    def update(self, state):
        self._left -= 1
        if not self._left:
            self._call()

    def message(self, text):
        pass

    def finish(self):
        pass


class StopError(BaseException):
    pass


def stop():
    raise StopError


def test_a_source_that_changes_during_the_export_is_not_published(tmp_path):
    OLD.write(tmp_path / "d")
    options = ExportOptions(
        source=tmp_path / "d", to="olmo", output=tmp_path / "x", shard_tokens=30, dtype="uint16"
    )

    def change():
        NEW.write(tmp_path / "new")
        for suffix in (".bin", ".idx"):
            os.replace(tmp_path / f"new{suffix}", tmp_path / f"d{suffix}")

    with pytest.raises(InputError, match="changed while it was read"):
        tokshard.export(options, progress=Listener(3, change))
    assert not list(tmp_path.glob("x/*.npy"))
    tokshard.export(options)  # as the hint says: run the same command again
    assert b"".join(path.read_bytes() for path in sorted(tmp_path.glob("x/*.npy"))) == NEW.bin_bytes()


def test_no_file_of_the_source_is_replaced(tmp_path):
    OLD.write(tmp_path / "d_val_000000")
    options = {"name": "d", "eod_id": 0, "force": True}
    with pytest.raises(UsageError, match="would replace the source") as caught:
        tokshard.export(
            ExportOptions(source=tmp_path / "d_val_000000", to="nanogpt", output=tmp_path, **options)
        )
    assert caught.value.hint == "pass another --output or --name"
    assert (tmp_path / "d_val_000000.bin").read_bytes() == OLD.bin_bytes()
    assert sorted(os.listdir(tmp_path)) == ["d_val_000000.bin", "d_val_000000.idx"]


def test_an_export_with_a_damaged_manifest_is_replaced_as_the_hint_says(tmp_path):
    OLD.write(tmp_path / "d")
    tokshard.export(ExportOptions(source=tmp_path / "d", to="olmo", output=tmp_path / "x"))
    (tmp_path / "x/.tokshard/export.json").write_text("[]")
    with pytest.raises(IntegrityError) as caught:
        tokshard.export(ExportOptions(source=tmp_path / "d", to="olmo", output=tmp_path / "x"))
    assert caught.value.hint == "export again with --force"
    tokshard.export(ExportOptions(source=tmp_path / "d", to="olmo", output=tmp_path / "x", force=True))
    assert tokshard.verify(VerifyOptions(path=tmp_path / "x")).sound


@pytest.mark.parametrize(
    ("option", "call"),
    [
        (
            "--pad-id",
            lambda number: ExportOptions(source="d", to="parquet", output="x", samples=True, pad_id=number),
        ),
        (
            "--shard-tokens",
            lambda number: ExportOptions(source="d", to="olmo", output="x", shard_tokens=number),
        ),
        ("--bos-id", lambda number: ConvertOptions(sources="x", format="nanogpt", output="d", bos_id=number)),
        ("--limit", lambda number: TokenizeOptions(inputs="in.jsonl", output="d", limit=number)),
        ("--max-tokens", lambda number: TokenizeOptions(inputs="in.jsonl", output="d", max_tokens=number)),
    ],
)
def test_numbers_have_64_bits(option, call):
    call(2**63 - 1)
    with pytest.raises(UsageError, match=f"{option} must be at most {2**63 - 1}, got {2**63}"):
        call(2**63)
