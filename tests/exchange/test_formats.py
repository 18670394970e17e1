"""Exports of random datasets, compared with files that plain Python writes from the formats' descriptions."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokshard
from support import slow_exports
from support.plain_datasets import Plain
from tokshard.exchange import records
from tokshard.exchange.datatrove import metadata_text

EOD = 7
NAMES = itertools.count()


@st.composite
def datasets(draw):
    """Documents of sequences, some empty, most of which end with the EOD token."""
    dtype = draw(st.sampled_from(["uint16", "int32", "uint8"]))
    token = st.integers(0, 9)
    sequence = st.lists(token, max_size=6)
    documents = draw(st.lists(st.lists(sequence, max_size=3), max_size=12))
    all_end = draw(st.booleans())
    for document in documents:
        if all_end or draw(st.integers(0, 3)):
            document.append([*draw(sequence), EOD])
    return Plain(dtype, documents)


def flat(plain):
    return [[token for sequence in document for token in sequence] for document in plain.documents]


def exported(directory, plain, to, **options):
    name = f"d{next(NAMES)}"
    plain.write(directory / name)
    output = directory / f"{name}-out"
    report = tokshard.export(tokshard.ExportOptions(source=directory / name, to=to, output=output, **options))
    found = slow_exports.written(output)
    assert report.files == len(found)
    again = tokshard.export(tokshard.ExportOptions(source=directory / name, to=to, output=output, **options))
    assert again.action == "found"
    assert slow_exports.written(output) == found
    return name, found


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Let blocks and chunks be so small that a few documents have several."""
    monkeypatch.setattr("tokshard.exchange.records.BLOCK_BYTES", 20)
    monkeypatch.setattr("tokshard.exchange.nanogpt._BLOCK_TOKENS", 8)
    for module in ("records", "nanogpt", "parquet"):
        monkeypatch.setattr(f"tokshard.exchange.{module}.CHUNK_RECORDS", 32)
    monkeypatch.setattr("tokshard.exchange.records._NEAR_RECORDS", 2)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("exports")


few = settings(max_examples=40, deadline=None)


@few
@given(plain=datasets(), limit=st.integers(1, 25), dtype=st.sampled_from(["uint8", "uint32"]))
def test_olmo_files_are_those_of_the_description(place, plain, limit, dtype):
    name, found = exported(place, plain, "olmo", shard_tokens=limit, dtype=dtype)
    assert found == slow_exports.olmo(flat(plain), dtype=dtype, limit=limit, source=name)


@few
@given(
    plain=datasets(),
    limit=st.integers(1, 25),
    wide=st.booleans(),
    bos=st.sampled_from([EOD, 3]),
    val_shards=st.integers(0, 2),
)
def test_nanogpt_files_are_those_of_the_description(place, plain, limit, wide, bos, val_shards):
    dtype, header = ("uint32", "automodel") if wide else ("uint16", "fineweb")
    name, found = exported(
        place,
        plain,
        "nanogpt",
        shard_tokens=limit,
        dtype=dtype,
        bos_id=bos,
        eod_id=EOD,
        val_shards=val_shards,
    )
    assert found == slow_exports.nanogpt(
        flat(plain),
        dtype=dtype,
        limit=limit,
        name=name,
        bos=bos,
        eod=EOD,
        val_shards=val_shards,
        header=header,
    )


@few
@given(plain=datasets(), limit=st.integers(1, 25), dtype=st.sampled_from(["uint16", "uint32"]))
def test_datatrove_files_are_those_of_the_description(place, plain, limit, dtype):
    name, found = exported(place, plain, "datatrove", shard_tokens=limit, dtype=dtype, tokenizer_name="gpt2")

    def people(tokens):
        return f"{tokens}.00 T" if tokens < 10 else f"{tokens}.0 T" if tokens < 100 else f"{tokens} T"

    assert found == slow_exports.datatrove(
        flat(plain), dtype=dtype, limit=limit, name=name, tokenizer="gpt2", people=people
    )


@settings(max_examples=25, deadline=None)
@given(plain=datasets(), limit=st.integers(1, 25), dtype=st.sampled_from(["int32", "int64"]))
def test_parquet_rows_are_the_documents(place, plain, limit, dtype):
    _, found = exported(place, plain, "parquet", shard_tokens=limit, dtype=dtype)
    assert found == slow_exports.parquet(flat(plain), limit=limit)


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (0, "0.00 T"),
        (9, "9.00 T"),
        (99, "99.0 T"),
        (999, "999 T"),
        (1000, "1.00 kT"),
        (9_995, "9.99 kT"),
        (9_999, "10.0 kT"),
        (999_499, "999 kT"),
        (999_500, "1.00 MT"),
        (123_456_789, "123 MT"),
        (999_999_999_999, "1.00 TT"),
        (10**15, "1.00 PT"),
    ],
)
def test_the_number_for_people_is_that_of_humanize(tokens, text):
    assert metadata_text("x", 2, tokens).split("\n")[2] == text


def test_boundaries_are_found_by_value(tmp_path):
    Plain("uint16", [[[1, 2]], [], [[3]], [[4, 5], [6]]]).write(tmp_path / "d")
    found = records.DatasetRecords(str(tmp_path / "d"))
    assert found.ends(0, 4).tolist() == [2, 2, 3, 6]
    assert [found.first_end_at(value) for value in range(8)] == [0, 0, 0, 2, 3, 3, 3, 4]
    assert [found.first_end_above(value) for value in range(7)] == [0, 0, 2, 3, 3, 3, 4]
