"""Conversions of random files, compared with their documents a token at a time; exports and back."""

import gzip
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokshard
from support import slow_conversions
from support.command_line import SAMPLE
from support.plain_datasets import Plain
from tokshard import ConvertOptions, ExportOptions, VerifyOptions, convert, verify
from tokshard.errors import StorageError
from tokshard.exchange import documents as converted_documents
from tokshard.storage.digest import content_digest
from tokshard.text.tokenizer.definition import tokenizer_identity

EOD, BOS = 7, 3
NAMES = itertools.count()


@pytest.fixture(autouse=True)
def small_units(monkeypatch):
    """Let a few tokens have several blocks and units."""
    monkeypatch.setattr(converted_documents, "UNIT_BYTES", 32)
    monkeypatch.setattr(converted_documents, "BLOCK_BYTES", 8)
    monkeypatch.setattr("tokshard.exchange.datatrove._CHUNK_ENTRIES", 3)
    monkeypatch.setattr("tokshard.exchange.olmo._CHUNK_BYTES", 7)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("conversions")


# Files in which every second token is 0 are refused.
token = st.integers(1, 9)
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
    form = draw(st.sampled_from(["olmo", "datatrove"]))
    if form == "datatrove":
        source.files = {name.replace(".npy", ".ds"): content for name, content in source.files.items()}
    return source, form, {"eod_id": EOD, "source_dtype": dtype}


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
        pass

    def update(self, state):
        self._left -= 1
        if self._left < 0:
            raise StopError

    def message(self, text):
        pass

    def finish(self):
        pass


def sound(prefix):
    report = verify(VerifyOptions(path=prefix, level="deep"))
    assert report.sound, [finding.message for finding in report.findings]
    return {finding.code for finding in report.findings} <= {"vocabulary-unknown"}


@settings(max_examples=35, deadline=None)
@given(case=st.one_of(nanogpt(), olmo(), datatrove(), ended()), stops=st.lists(st.integers(0, 9), max_size=4))
def test_documents_are_those_of_the_description_also_after_interruptions(place, case, stops):
    source, form, options = case
    directory = source.write(place / f"s{next(NAMES)}")
    output = f"{directory}-out"
    for updates in stops:
        try:
            convert(
                ConvertOptions(sources=directory, format=form, output=output, **options),
                progress=StopAfter(updates),
            )
            break
        except StopError:
            pass
    report = convert(ConvertOptions(sources=directory, format=form, output=output, **options))
    data, made_with = report.output.counts, report.options
    expected = plain_of(report.output.dataset.dtype, source)
    assert written(output) == [expected.bin_bytes(), expected.idx_bytes()]
    assert (data.documents, data.sequences) == (len(source.documents), len(expected.sequences))
    assert sound(output)
    if made_with.eod_id is not None and data.sequences:
        assert made_with.append_eod == all(
            document[-1] == made_with.eod_id for document in filter(None, source.documents)
        )
        in_text = sum(document[:-1].count(made_with.eod_id) for document in source.documents if document)
        manifest = json.loads(Path(f"{output}.tokshard/manifest.json").read_text())
        assert manifest["counts"]["eod_in_text"] == in_text
    assert convert(ConvertOptions(sources=directory, format=form, output=output, **options)).action == "found"


@settings(max_examples=25, deadline=None)
@given(shards=st.lists(tokens, min_size=1, max_size=4), form=st.sampled_from(["nanogpt", "datatrove"]))
def test_a_unit_has_the_documents_that_begin_in_it(place, shards, form):
    """With units of 32 bytes: 16 tokens of uint16."""
    if form == "nanogpt":
        shards[0] = [BOS, *shards[0]]
        source = slow_conversions.nanogpt(shards, dtype="uint16", bos=BOS, eod=BOS, treatment="keep")
        begins = [[at for at, token in enumerate(shard) if token == BOS] for shard in shards]
    else:  # documents of 0, 1, 2, ... tokens
        parts = [[shard[n * (n - 1) // 2 :][:n] for n in range(9)] for shard in shards]
        source = slow_conversions.datatrove(parts, dtype="uint16", metadata=True)
        begins = [[0, *itertools.accumulate(map(len, part[:-1]))] for part in parts]
        shards = [list(itertools.chain(*part)) for part in parts]
    directory = source.write(place / f"u{next(NAMES)}")
    options = {"bos_id": BOS, "bos": "keep", "split": "all"} if form == "nanogpt" else {}
    output = f"{directory}-out"
    convert(ConvertOptions(sources=directory, format=form, output=output, **options))
    units = [json.loads(line) for line in Path(f"{output}.tokshard/units.jsonl").read_text().splitlines()]
    of_token_files = [unit for unit in units if form == "nanogpt" or unit["input"] % 2 == 0]
    expected, rows = [], []
    for shard, positions in zip(shards, begins, strict=True):
        count = max(1, -(-len(shard) // 16))
        numbers = [min(position // 16, count - 1) for position in positions]
        expected += [numbers.count(unit) for unit in range(count)]
        rows += range(len(positions))
    assert [unit["counts"]["documents"] for unit in of_token_files] == expected
    assert np.fromfile(f"{output}.tokshard/provenance.bin", "<i8")[::2].tolist() == rows
    assert np.fromfile(f"{output}.tokshard/provenance.bin", "<i8")[1::2].tolist() == [row + 1 for row in rows]
    first = 0
    tokens_of_output = np.fromfile(f"{output}.bin", "<u2")
    for unit in units:
        end = first + unit["counts"]["tokens"]
        assert unit["tokens_xxh3_128"] == content_digest(tokens_of_output[first:end].tobytes())
        first = end
    assert first == len(tokens_of_output)


def test_an_output_of_other_options_is_kept(tmp_path):
    source = slow_conversions.nanogpt([[BOS, 1] * 60], dtype="uint16", bos=BOS, eod=EOD, treatment="move")
    directory = source.write(tmp_path / "in")
    convert(
        ConvertOptions(
            sources=directory, format="nanogpt", output=tmp_path / "out", bos_id=BOS, split="val", bos="keep"
        )
    )
    assert np.array_equal(tokshard.IndexedDataset(tmp_path / "out")[59], [BOS, 1])
    with pytest.raises(tokshard.errors.OutputExistsError, match="--bos was 'keep' and is now 'move'"):
        convert(
            ConvertOptions(
                sources=directory, format="nanogpt", output=tmp_path / "out", bos_id=BOS, split="val"
            )
        )
    assert convert(
        ConvertOptions(
            sources=directory, format="nanogpt", output=tmp_path / "out", bos_id=BOS, split="val", force=True
        )
    ).options.append_eod


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
    tokshard.export(
        ExportOptions(source=place / name, to=form, output=place / f"{name}-x", shard_tokens=limit, **ids)
    )
    if not texts and form != "datatrove":
        return  # there are no files
    back = place / f"{name}-back"
    report = convert(ConvertOptions(sources=place / f"{name}-x", format=form, output=back, dtype=dtype))
    assert written(back) == written(place / name), report


def test_an_export_tells_its_tokenizer(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tokenizer = str(SAMPLE / "tokenizer.json")
    Path("in.jsonl").write_text("".join(f'{{"text": "story {number}"}}\n' for number in range(9)))
    tokshard.tokenize(
        tokshard.TokenizeOptions(inputs="in.jsonl", output="web", tokenizer=tokenizer, workers=1)
    )
    for form in ("nanogpt", "olmo", "datatrove"):
        tokshard.export(ExportOptions(source="web", to=form, output=form))
        report = convert(ConvertOptions(sources=form, format=form, output=f"{form}-back"))
        assert written(f"{form}-back") == written("web")
        assert report.output.tokenizer == tokenizer_identity(tokenizer)
        assert report.options.append_eod
        assert report.warnings == ()
        with pytest.raises(tokshard.errors.TokenizerMismatchError, match="is not the tokenizer of"):
            convert(ConvertOptions(sources=form, format=form, output="other", tokenizer="null:9000"))
    merged = tokshard.merge(tokshard.MergeOptions(inputs=["web", "olmo-back"], output="both"))
    assert merged.output.files.provenance
    assert sound("both")
    origin = tokshard.trace(tokshard.TraceOptions(path="olmo-back", document=5)).to_json()
    assert "part-0-00000.npy" in json.dumps(origin)


def test_a_directory_of_nanogpt_is_read_in_the_order_of_its_numbers(tmp_path):
    shards = [[BOS, 1], [BOS, 2], [BOS, 4], [5]]
    source = slow_conversions.nanogpt(shards, dtype="uint16", bos=BOS, eod=BOS, treatment="move")
    directory = source.write(tmp_path / "in")

    def read(source, **options):
        report = convert(
            ConvertOptions(
                sources=source, format="nanogpt", output=tmp_path / "out", bos_id=BOS, force=True, **options
            )
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
        report = convert(
            ConvertOptions(sources=source, format="datatrove", output=tmp_path / "out", force=True, **options)
        )
        assert tokshard.IndexedDataset(tmp_path / "out")[0].tolist() == [1, 2, 500]
        return report.output.dataset.dtype

    assert dtype(wide) == "int32"
    assert dtype(narrow) == "uint16"
    assert dtype(wide, vocab_size=65499) == "uint16"
    assert dtype(narrow, vocab_size=65500) == "int32"
    assert dtype(wide, dtype="uint16") == "uint16"


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_bytes_are_converted_or_refused_with_an_error_of_ours(place, data):
    source, form, options = data.draw(st.one_of(nanogpt(), olmo(), datatrove(), ended()))
    name = data.draw(st.sampled_from([*source.files]))
    content = source.files[name]
    if name.endswith(".gz") and data.draw(st.booleans()):
        content = gzip.decompress(content)
    at = data.draw(st.integers(0, len(content)))
    content = content[:at] + data.draw(st.binary(max_size=4)) + content[at + data.draw(st.integers(0, 4)) :]
    if name.endswith(".gz") and data.draw(st.booleans()):
        content = gzip.compress(content)
    source.files[name] = content
    directory = source.write(place / f"f{next(NAMES)}")
    try:
        convert(ConvertOptions(sources=directory, format=form, output=f"{directory}-out", **options))
    except tokshard.errors.TokshardError as error:
        found = error.exit_code
    else:
        found = 0 if sound(f"{directory}-out") else 1
    assert found in {0, 2, 3, 6}
    assert Path(f"{directory}-out.idx").exists() == (found == 0)


def test_a_dry_run_writes_nothing(tmp_path):
    source = slow_conversions.olmo([[[1, 2], [3]]], dtype="uint32", compress=gzip.compress).write(
        tmp_path / "in"
    )
    plan = convert(
        ConvertOptions(sources=source, format="olmo", output=tmp_path / "out"), dry_run=True
    ).to_json()
    assert plan["state"] == "new"
    (file,) = plan["files"]
    assert (file["tokens"], file["dtype"]) == (3, "uint32")
    assert file["boundaries"]["path"].endswith("part-0.csv.gz")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]
    convert(ConvertOptions(sources=source, format="olmo", output=tmp_path / "out"))
    again = convert(ConvertOptions(sources=source, format="olmo", output=tmp_path / "out"), dry_run=True)
    assert (again.action, again.state) == ("planned", "up-to-date")


def test_a_changed_source_is_found_by_verify(tmp_path):
    shards = [[[number % 5] * 6 for number in range(40)]] * 2
    source = slow_conversions.olmo(shards, dtype="uint16", compress=gzip.compress).write(tmp_path / "in")
    convert(ConvertOptions(sources=source, format="olmo", output=tmp_path / "out", eod_id=EOD))
    content = bytearray((source / "part-1.npy").read_bytes())
    content[100] ^= 1
    (source / "part-1.npy").write_bytes(content)
    report = verify(VerifyOptions(path=tmp_path / "out", level="deep"))
    found = [finding.message for finding in report.findings if finding.code == "input-changed"]
    assert len(found) == 1
    assert "part-1.npy: its size is still 480 bytes, but its modification time has changed" in found[0]


def test_a_full_disk_leaves_nothing_and_the_next_run_starts_again(tmp_path, monkeypatch):
    shards = [[[1] * 6] * 40]
    source = slow_conversions.datatrove(shards, dtype="uint16", metadata=True).write(tmp_path / "in")
    options = ConvertOptions(sources=source, format="datatrove", output=tmp_path / "out")
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
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]
    assert convert(options).output.tokens == 240


def test_what_a_killed_run_left_is_swept(tmp_path):
    source = slow_conversions.datatrove([[[1] * 6]], dtype="uint16", metadata=True).write(tmp_path / "in")
    work = tmp_path / "out.tokshard/work"
    work.mkdir(parents=True)
    (work / "0.bin").write_bytes(b"of a killed run")
    report = convert(ConvertOptions(sources=source, format="datatrove", output=tmp_path / "out"))
    assert (report.action, report.output.tokens) == ("written", 6)
    assert sorted(path.name for path in work.parent.iterdir()) == [
        "manifest.json",
        "provenance.bin",
        "units.jsonl",
    ]
