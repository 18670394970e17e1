"""Conversions of random files, compared with their documents a token at a time; resumes; exports and back."""

import gzip
import itertools
import json
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokshard
from support import slow_conversions
from support.command_line import SAMPLE
from support.plain_datasets import Plain
from tokshard import ConvertOptions, ExportOptions, VerifyOptions, convert, verify
from tokshard.dataset.plan import TokenFormat
from tokshard.errors import StorageError
from tokshard.exchange.conversion import content, conversion, options
from tokshard.exchange.conversion.conversion import JOURNAL_NAME

EOD, BOS = 7, 3
NAMES = itertools.count()


@pytest.fixture(autouse=True)
def small_units(monkeypatch):
    """Let a few tokens have several blocks, units and checkpoints."""
    monkeypatch.setattr(content, "UNIT_BYTES", 32)
    monkeypatch.setattr(content, "BLOCK_BYTES", 8)
    monkeypatch.setattr(conversion, "CHECKPOINT_BYTES", 1)
    monkeypatch.setattr("tokshard.exchange.conversion.boundaries._CHUNK_ENTRIES", 3)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("conversions")


token = st.integers(0, 9)
tokens = st.lists(token, max_size=50)
documents = st.lists(st.one_of(st.just([]), st.lists(token, max_size=9), tokens), max_size=8)
dtypes = st.sampled_from(["uint16", "uint32"])


@st.composite
def nanogpt(draw):
    treatment, eod = draw(st.sampled_from(["move", "keep", "drop"])), draw(st.sampled_from([EOD, BOS]))
    shards = draw(st.lists(tokens, min_size=1, max_size=4))
    if draw(st.booleans()):
        shards[0] = [BOS, *shards[0]]
    source = slow_conversions.nanogpt(shards, dtype=draw(dtypes), bos=BOS, eod=eod, treatment=treatment)
    return source, "nanogpt", {"bos_id": BOS, "eod_id": eod, "bos": treatment, "split": "all"}


@st.composite
def olmo(draw):
    dtype = draw(st.sampled_from(["uint8", "uint16", "uint32", "uint64"]))
    shards = draw(st.lists(documents, min_size=1, max_size=3))
    is_known = any(document for shard in shards for document in shard)
    compress = draw(
        st.sampled_from([gzip.compress, lambda rows: b"".join(map(gzip.compress, rows.splitlines(True)))])
    )
    options = {} if is_known else {"source_dtype": dtype}
    if draw(st.booleans()):
        options |= {"eod_id": EOD}
    return slow_conversions.olmo(shards, dtype=dtype, compress=compress), "olmo", options


@st.composite
def datatrove(draw):
    dtype, shards = draw(dtypes), draw(st.lists(documents, min_size=1, max_size=3))
    metadata = draw(st.booleans()) or not any(document for shard in shards for document in shard)
    return slow_conversions.datatrove(shards, dtype=dtype, metadata=metadata), "datatrove", {}


@st.composite
def ended(draw):
    dtype, shards = draw(dtypes), draw(st.lists(tokens, min_size=1, max_size=3))
    source = slow_conversions.ended(shards, dtype=dtype, eod=EOD)
    return source, "olmo", {"eod_id": EOD, "source_dtype": dtype}


def plain_of(dtype, source):
    return Plain(dtype, [[document] if document else [] for document in source.documents])


def written(prefix):
    return [Path(f"{prefix}{suffix}").read_bytes() for suffix in (".bin", ".idx")]


class StopError(Exception):
    """The end of a run that is interrupted."""


class StopAfter:
    """A progress listener that interrupts the run after some updates."""

    def __init__(self, updates):
        self._left = updates

    def start(self, activity, bytes_total=None, bytes_resumed=0):
        self.resumed = bytes_resumed

    def update(self, state):
        self._left -= 1
        if self._left < 0:
            raise StopError

    def message(self, text):
        pass

    def finish(self):
        pass


def is_sound(prefix):
    report = verify(VerifyOptions(prefix, level="deep"))
    assert report.is_sound, [finding.message for finding in report.findings]
    return {finding.code for finding in report.findings} <= {"vocabulary-unknown"}


@settings(max_examples=35, deadline=None)
@given(case=st.one_of(nanogpt(), olmo(), datatrove(), ended()), stops=st.lists(st.integers(0, 9), max_size=4))
def test_documents_are_those_of_the_description_also_after_interruptions(place, case, stops):
    source, form, options = case
    directory = source.write(place / f"s{next(NAMES)}")
    output = f"{directory}-out"
    for updates in stops:
        try:
            convert(ConvertOptions(directory, form, output, **options), progress=StopAfter(updates))
            break
        except StopError:
            pass
    report = convert(ConvertOptions(directory, form, output, **options))
    expected = plain_of(report.dtype, source)
    assert written(output) == [expected.bin_bytes(), expected.idx_bytes()]
    assert (report.documents, report.sequences) == (len(source.documents), len(expected.sequences))
    assert is_sound(output)
    if report.eod_id is not None and report.sequences:
        assert report.append_eod == all(
            document[-1] == report.eod_id for document in filter(None, source.documents)
        )
        in_text = sum(document[:-1].count(report.eod_id) for document in source.documents if document)
        manifest = json.loads(Path(f"{output}.tokshard/manifest.json").read_text())
        assert manifest["dataset"]["eod_in_text"] == in_text
    assert convert(ConvertOptions(directory, form, output, **options)).up_to_date


def test_a_resumed_run_reads_only_what_is_left(tmp_path):
    shards = [[[number % 5] * 6 for number in range(40)]] * 3
    source = slow_conversions.datatrove(shards, dtype="uint16", metadata=True).write(tmp_path / "in")
    options = ConvertOptions(source, "datatrove", tmp_path / "out")
    with pytest.raises(StopError):
        convert(options, progress=StopAfter(90))
    journal = (tmp_path / f"out.tokshard/work/{JOURNAL_NAME}").read_bytes()
    progress = StopAfter(1 << 20)
    report = convert(options, progress=progress)
    whole = 3 * 40 * 6 * 2
    assert whole / 3 < report.bytes_resumed < whole
    assert journal.count(b'"checkpoint"') > 10
    again = tmp_path / "undisturbed"
    convert(ConvertOptions(source, "datatrove", again))
    assert written(again) == written(tmp_path / "out")
    units = [Path(f"{prefix}.tokshard/units.jsonl").read_bytes() for prefix in (again, tmp_path / "out")]
    assert units[0] == units[1]


def test_other_options_start_over(tmp_path):
    source = slow_conversions.nanogpt([[BOS, 1] * 60], dtype="uint16", bos=BOS, eod=EOD, treatment="move")
    directory = source.write(tmp_path / "in")
    with pytest.raises(StopError):
        convert(
            ConvertOptions(directory, "nanogpt", tmp_path / "out", bos_id=BOS, split="val"),
            progress=StopAfter(20),
        )
    report = convert(
        ConvertOptions(directory, "nanogpt", tmp_path / "out", bos_id=BOS, split="val", bos="keep")
    )
    assert report.bytes_resumed == 0
    assert np.array_equal(tokshard.IndexedDataset(tmp_path / "out")[59], [BOS, 1])
    with pytest.raises(tokshard.errors.OutputExistsError, match="--bos was 'keep' and is now 'move'"):
        convert(ConvertOptions(directory, "nanogpt", tmp_path / "out", bos_id=BOS, split="val"))
    assert convert(
        ConvertOptions(directory, "nanogpt", tmp_path / "out", bos_id=BOS, split="val", force=True)
    ).append_eod


@settings(max_examples=12, deadline=None)
@given(
    texts=st.lists(st.lists(st.sampled_from([0, 1, 2, 9]), max_size=12), max_size=9),
    limit=st.integers(1, 30),
    dtype=st.sampled_from(["uint16", "int32"]),
    form=st.sampled_from(["nanogpt", "olmo", "datatrove"]),
)
def test_an_export_is_converted_back_to_the_same_bytes(place, texts, limit, dtype, form):
    plain = Plain(dtype, [[[*text, EOD]] for text in texts])
    name = f"e{next(NAMES)}"
    plain.write(place / name)
    ids = {"eod_id": EOD, "bos_id": BOS} if form == "nanogpt" else {}
    tokshard.export(ExportOptions(place / name, form, place / f"{name}-x", shard_tokens=limit, **ids))
    if not texts and form != "datatrove":
        return  # there are no files
    back = place / f"{name}-back"
    report = convert(ConvertOptions(place / f"{name}-x", form, back, dtype=dtype))
    assert written(back) == written(place / name), report


def test_an_export_tells_its_tokenizer(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tokenizer = str(SAMPLE / "tokenizer.json")
    Path("in.jsonl").write_text("".join(f'{{"text": "story {number}"}}\n' for number in range(9)))
    tokshard.tokenize(tokshard.TokenizeOptions("in.jsonl", "web", tokenizer=tokenizer, workers=1))
    for form in ("nanogpt", "olmo", "datatrove"):
        tokshard.export(ExportOptions("web", form, form))
        report = convert(ConvertOptions(form, form, f"{form}-back"))
        assert written(f"{form}-back") == written("web")
        assert report.tokenizer == tokshard.tokenizer_identity(tokenizer)
        assert report.append_eod
        assert report.warnings == ()
        with pytest.raises(tokshard.errors.TokenizerMismatchError, match="is not the tokenizer of"):
            convert(ConvertOptions(form, form, "other", tokenizer="null:9000"))
    merged = tokshard.merge(tokshard.MergeOptions(["web", "olmo-back"], "both"))
    assert merged.provenance
    assert is_sound("both")
    origin = tokshard.trace(tokshard.TraceOptions(dataset="olmo-back", document=5)).to_json()
    assert "part-0-00000.npy" in json.dumps(origin)


def test_a_directory_of_nanogpt_is_read_in_the_order_of_its_numbers(tmp_path):
    shards = [[BOS, 1], [BOS, 2], [BOS, 4], [5]]
    source = slow_conversions.nanogpt(shards, dtype="uint16", bos=BOS, eod=BOS, treatment="move")
    directory = source.write(tmp_path / "in")

    def read(source, **options):
        report = convert(
            ConvertOptions(source, "nanogpt", tmp_path / "out", bos_id=BOS, force=True, **options)
        )
        dataset = tokshard.IndexedDataset(tmp_path / "out")
        return [dataset[number].tolist() for number in range(len(dataset))], report.warnings

    assert read(directory, split="all")[0] == [[1, BOS], [2, BOS], [4, 5, BOS]]
    assert read(directory / "x_*.bin")[0] == [[1, BOS], [2, BOS], [4, 5, BOS]]
    found, warnings = read(directory)
    assert found == [[2, BOS], [4, 5, BOS]]
    assert "1 of 4 files are not train files and were skipped" in warnings[0]
    assert read(directory, split="val")[0] == [[1, BOS]]
    assert read([directory / "x_train_000003.bin", directory / "x_train_000001.bin"])[0] == [
        [5, BOS],
        [2, BOS],
    ]


def test_the_dtype_follows_megatron_where_the_vocabulary_is_known(tmp_path):
    shards = [[[1, 2, 500]]]
    wide = slow_conversions.datatrove(shards, dtype="uint32", metadata=False).write(tmp_path / "wide")
    narrow = slow_conversions.datatrove(shards, dtype="uint16", metadata=False).write(tmp_path / "narrow")

    def dtype(source, **options):
        report = convert(ConvertOptions(source, "datatrove", tmp_path / "out", force=True, **options))
        assert tokshard.IndexedDataset(tmp_path / "out")[0].tolist() == [1, 2, 500]
        return report.dtype

    assert dtype(wide) == "int32"
    assert dtype(narrow) == "uint16"
    assert dtype(wide, vocab_size=65499) == "uint16"
    assert dtype(narrow, vocab_size=65500) == "int32"
    assert dtype(wide, dtype="uint16") == "uint16"


def nano(tokens=(BOS, 1, 2), **changes):
    head = list(np.frombuffer(slow_conversions.header("uint16", len(tokens)), "<i4"))
    for place, value in changes.items():
        head[int(place[1:])] = value
    return np.array(head, "<i4").tobytes() + np.array(tokens, "<u2").tobytes()


def bad(files, form, message, *, code=6, **options):
    return pytest.param(files, form, options, code, message)


WIDE = np.array([5, 6, 7], "<u4").tobytes()
BAD = {
    "short header": bad(
        {"x.bin": nano()[:100]}, "nanogpt", "x.bin must have a header of 1024 bytes, got 100", bos_id=3
    ),
    "empty file": bad({"x.bin": b""}, "nanogpt", "x.bin must have a header of 1024 bytes, got 0", bos_id=3),
    "magic": bad(
        {"x.bin": nano(h0=7)}, "nanogpt", "x.bin must begin with the magic number .*, got 7", bos_id=3
    ),
    "version": bad({"x.bin": nano(h1=2)}, "nanogpt", "x.bin: version must be 1, got 2", bos_id=3),
    "item size": bad(
        {"x.bin": nano(h0=278895051, h3=3)}, "nanogpt", "item bytes must be 2 or 4, got 3", bos_id=3
    ),
    "count": bad(
        {"x.bin": nano(h2=9)},
        "nanogpt",
        r"must have 1042 bytes by its header \(9 tokens of uint16\), got 1030",
        bos_id=3,
    ),
    "truncated": bad({"x.bin": nano()[:-1]}, "nanogpt", "must have 1030 bytes .*, got 1029", bos_id=3),
    "negative count": bad({"x.bin": nano(h2=-1)}, "nanogpt", "tokens must not be negative, got -1", bos_id=3),
    "no bos": bad({"x.bin": nano()}, "nanogpt", "--bos-id is required", code=2),
    "id": bad(
        {"x.bin": nano((1, 0, 2))},
        "nanogpt",
        "x.bin at byte 1028: the id of token 2 must be at most 1, got 2",
        code=3,
        bos_id=1,
        vocab_size=2,
    ),
    "bos": bad(
        {"x.bin": nano()},
        "nanogpt",
        "--bos-id must be at most 2, the largest id, got 3",
        code=2,
        bos_id=3,
        vocab_size=3,
    ),
    "int32": bad(
        {"x.ds": b"\xff" * 4},
        "datatrove",
        "x.ds at byte 0: .* must be at most 2147483647",
        code=3,
        source_dtype="uint32",
        eod_id=1,
    ),
    "numpy": bad({"x.npy": b"\x93NUMPY\x01\x00"}, "olmo", "has the header of numpy.save", code=3, eod_id=1),
    "no dtype": bad({"x.npy": WIDE}, "olmo", "the dtype of the tokens of .* is unknown", code=3, eod_id=1),
    "no ends": bad(
        {"x.npy": WIDE},
        "olmo",
        "--eod-id is required: .*x.npy has no boundaries",
        code=2,
        source_dtype="uint32",
    ),
    "odd size": bad(
        {"x.npy": WIDE[:-1]},
        "olmo",
        r"must have 4 bytes for each token \(uint32\), got 11",
        source_dtype="uint32",
        eod_id=1,
    ),
    "odd boundaries": bad(
        {"x.npy": WIDE, "x.csv.gz": gzip.compress(b"0,5\r\n")},
        "olmo",
        "has 12 bytes, which are not tokens of 1 or 2 or 4 or 8 bytes: .* ends at token 5",
    ),
    "too far": bad(
        {"x.npy": WIDE, "x.csv.gz": gzip.compress(b"0,2\r\n2,4\r\n")},
        "olmo",
        "row 2: the end of the document must be from 2, its start, to 3, .* got 4",
        source_dtype="uint32",
    ),
    "too near": bad(
        {"x.npy": WIDE, "x.csv.gz": gzip.compress(b"0,2\r\n")},
        "olmo",
        "the last document must end at token 3, .* got 2",
        source_dtype="uint32",
    ),
    "gap": bad(
        {"x.npy": WIDE, "x.csv.gz": gzip.compress(b"0,1\r\n2,3\r\n")},
        "olmo",
        "row 2: the document must start at token 1, where the last one ended, got 2",
    ),
    "order": bad(
        {"x.npy": WIDE, "x.csv.gz": gzip.compress(b"0,2\r\n2,1\r\n1,3\r\n")},
        "olmo",
        "row 2: the end of the document must be from 2",
    ),
    "words": bad(
        {"x.npy": WIDE, "x.csv.gz": gzip.compress(b"start,end\r\n0,3\r\n")},
        "olmo",
        "row 1: it must begin with START,END in tokens, got 'start,end'",
    ),
    "utf-8": bad(
        {"x.npy": WIDE, "x.csv.gz": gzip.compress(b"0,3,\xff\r\n")}, "olmo", "row 1: it is not valid CSV"
    ),
    "gzip": bad({"x.npy": WIDE, "x.csv.gz": gzip.compress(b"0,3\r\n")[:-4]}, "olmo", "x.csv.gz at byte .*"),
    "index size": bad(
        {"x.ds": WIDE, "x.ds.index": b"\0" * 9},
        "datatrove",
        "must have 8 bytes for each document, got 9 bytes",
        source_dtype="uint32",
    ),
    "index order": bad(
        {"x.ds": WIDE, "x.ds.index": np.array([2, 1, 3], "<u8").tobytes()},
        "datatrove",
        "byte 8: the end of the document must be from 2, its start, to 3, .* got 1",
    ),
    "index range": bad(
        {"x.ds": WIDE, "x.ds.index": np.array([2**64 - 1, 3], "<u8").tobytes()},
        "datatrove",
        "byte 0: the end of the document must be from 0",
    ),
    "index end": bad(
        {"x.ds": WIDE, "x.ds.index": np.array([2], "<u8").tobytes()},
        "datatrove",
        "has 12 bytes, which are not tokens of 2 or 4 bytes",
    ),
    "metadata": bad(
        {"x.ds": WIDE, "x.ds.metadata": b"gpt2|4\n4\n4 T"},
        "datatrove",
        "must have 4 tokens of 4 bytes by its metadata, got 3 tokens of 4 bytes",
        eod_id=1,
    ),
    "metadata lines": bad(
        {"x.ds": WIDE, "x.ds.metadata": b"gpt2"},
        "datatrove",
        "must have the lines NAME.2 or NAME.4",
        eod_id=1,
    ),
    "no file": bad({"x.txt": b""}, "olmo", "no olmo file .* in", code=3),
}


@pytest.mark.parametrize(("files", "form", "options", "code", "message"), BAD.values(), ids=BAD)
def test_bad_sources_are_named_with_the_place(tmp_path, files, form, options, code, message):
    source = slow_conversions.Source(files, []).write(tmp_path / "in")
    with pytest.raises(tokshard.errors.TokshardError, match=message) as caught:
        convert(ConvertOptions(source, form, tmp_path / "out", **options))
    assert caught.value.exit_code == code
    assert caught.value.hint or code == 6
    assert not (tmp_path / "out.bin").exists()


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("--from must be nanogpt, olmo or datatrove, got 'npz'", {"format": "npz"}),
        ("--bos-id requires --from nanogpt", {"bos_id": 3}),
        ("--split requires --from nanogpt", {"split": "train"}),
        ("--bos requires --from nanogpt", {"bos": "keep"}),
        ("--source-dtype does not apply to nanogpt", {"format": "nanogpt", "source_dtype": "uint16"}),
        ("--source-dtype must be uint16 or uint32", {"format": "datatrove", "source_dtype": "uint8"}),
        ("--vocab-size must be at least 1, got 0", {"vocab_size": 0}),
        ("--tokenizer and --vocab-size exclude each other", {"vocab_size": 5, "tokenizer": "null:5"}),
        ("at least one source is required", {"sources": ()}),
        ("convert writes to a file system, got the URL", {"output": "s3://bucket/x"}),
    ],
)
def test_options_that_cannot_be_meant_are_refused(message, options):
    with pytest.raises(tokshard.errors.UsageError, match=message):
        ConvertOptions(**({"sources": ["x"], "format": "olmo", "output": "out"} | options))


def test_the_formats_are_those_of_manifests():
    assert get_args(TokenFormat) == options._FORMATS


def test_missing_and_changed_files_are_named(tmp_path, monkeypatch):
    with pytest.raises(tokshard.errors.MissingFileError, match=r"file not found: .*nothing\.bin"):
        convert(ConvertOptions(tmp_path / "nothing.bin", "nanogpt", tmp_path / "out", bos_id=BOS))
    with pytest.raises(tokshard.errors.InputError, match=r"no nanogpt file .* matches"):
        convert(ConvertOptions(tmp_path / "*.bin", "nanogpt", tmp_path / "out", bos_id=BOS))
    (tmp_path / "x.bin").write_bytes(nano())

    class Appending(StopAfter):
        def update(self, state):
            with open(tmp_path / "x.bin", "ab") as file:
                file.write(b"..")

    with pytest.raises(tokshard.errors.InputError, match=r"x\.bin changed during the conversion"):
        convert(
            ConvertOptions(tmp_path / "x.bin", "nanogpt", tmp_path / "out", bos_id=BOS), progress=Appending(0)
        )
    (tmp_path / "x.bin").write_bytes(nano())
    with pytest.raises(tokshard.errors.UsageError, match="would replace the source"):
        convert(ConvertOptions(tmp_path / "x.bin", "nanogpt", tmp_path / "x", bos_id=BOS))


def test_a_changed_source_is_found_by_verify(tmp_path):
    shards = [[[number % 5] * 6 for number in range(40)]] * 2
    source = slow_conversions.olmo(shards, dtype="uint16", compress=gzip.compress).write(tmp_path / "in")
    convert(ConvertOptions(source, "olmo", tmp_path / "out", eod_id=EOD))
    content = bytearray((source / "part-1.npy").read_bytes())
    content[100] ^= 1
    (source / "part-1.npy").write_bytes(content)
    report = verify(VerifyOptions(tmp_path / "out", level="deep"))
    found = [finding.message for finding in report.findings if finding.code == "input-changed"]
    assert len(found) == 1
    assert "part-1.npy: its bytes 96 to 128 have changed" in found[0]


def test_a_full_disk_keeps_what_was_converted(tmp_path, monkeypatch):
    shards = [[[1] * 6] * 40]
    source = slow_conversions.datatrove(shards, dtype="uint16", metadata=True).write(tmp_path / "in")
    options = ConvertOptions(source, "datatrove", tmp_path / "out")
    original, left = tokshard.storage.syscalls.write, [120]

    def write(descriptor, buffer, path):
        left[0] -= 1
        if left[0] < 0:
            raise StorageError("write", path, OSError(28, "No space left on device"))
        original(descriptor, buffer, path)

    with monkeypatch.context() as patch:
        patch.setattr("tokshard.storage.syscalls.write", write)
        with pytest.raises(StorageError, match="No space left"):
            convert(options)
    report = convert(options)
    assert report.bytes_resumed > 100
    assert report.tokens == 240
