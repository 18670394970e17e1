"""P61: shuffling against a slow twin that holds all documents, with runs and ranges of a few documents."""

from __future__ import annotations

import errno
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.plain_datasets import CODES, Plain, datasets, idx_bytes
from support.tokenize_runs import run_tokenize, write_jsonl
from tokshard import MergeOptions, VerifyOptions, merge, verify
from tokshard.checks.trace.options import parse_item
from tokshard.checks.trace.provenance import Provenance
from tokshard.core.keyed_orders import derive_key, mix, sorted_order
from tokshard.dataset import source
from tokshard.dataset.manifest import read_manifest
from tokshard.dataset.merge import (
    documents,
    job,
    options,
    scratch,
    shuffle,
    shuffled_output,
    token_stores,
)
from tokshard.dataset.pieces import read_pieces
from tokshard.errors import IntegrityError, OutputExistsError, StorageError, UsageError
from tokshard.storage import files, syscalls
from tokshard.storage.digest import content_digest

PIECE_BYTES = 12


@pytest.fixture(autouse=True)
def workshop(tmp_path, monkeypatch):
    """Everything happens after a few bytes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(options, "MIN_MEMORY_BYTES", 1)
    monkeypatch.setattr(shuffle, "CHECKPOINT_BYTES", 400)
    monkeypatch.setattr(shuffled_output, "PIECE_BYTES", PIECE_BYTES)
    monkeypatch.setattr(files, "FORCED_BYTES", 20)
    monkeypatch.setattr(documents, "CHUNK_BYTES", 10)


def order_of(count: int, seed: int) -> list[int]:
    """The documented order, one document at a time."""
    key = derive_key("tokshard.sorted/1:documents", seed, 0)

    def hashed(number: int) -> int:
        inner = mix(np.array([(number + 1) * 0x9E3779B97F4A7C15 % 2**64], np.uint64))
        return int(mix(np.array([(key + int(inner[0])) % 2**64], np.uint64))[0])

    return sorted(range(count), key=hashed)


def shuffled(plains: list[Plain], seed: int) -> tuple[Plain, list[int]]:
    """The slow twin."""
    whole = [document for plain in plains for document in plain.documents]
    order = order_of(len(whole), seed)
    modes = None
    if plains[0].modes is not None:
        left = iter([mode for plain in plains for mode in plain.modes])
        by_document = [[next(left) for _ in document] for document in whole]
        modes = [mode for number in order for mode in by_document[number]]
    return Plain(plains[0].dtype, [whole[number] for number in order], modes), order


def pair(prefix: str) -> tuple[bytes, bytes]:
    return Path(f"{prefix}.bin").read_bytes(), Path(f"{prefix}.idx").read_bytes()


def read_order(prefix: str) -> list[int]:
    return np.fromfile(f"{prefix}.tokshard/order.bin", "<i8").tolist()


def assert_pieces(prefix: str, plain: Plain) -> None:
    """Pieces end with the first document at whose end they are large enough, and have the right digests."""
    found = [
        (p.documents, p.sequences, p.tokens_xxh3_128) for p in read_pieces(prefix, read_manifest(prefix))
    ]
    wanted, piece = [], []
    for number, document in enumerate(plain.documents):
        piece.append(document)
        content = Plain(plain.dtype, piece).bin_bytes()
        if len(content) >= PIECE_BYTES or number == len(plain.documents) - 1:
            wanted.append((len(piece), sum(map(len, piece)), content_digest(content)))
            piece = []
    assert found == wanted


@st.composite
def lists_of_datasets(draw):
    first = draw(datasets(least=0))
    others = st.lists(datasets(first.dtype, first.modes is not None, least=0), max_size=3)
    return [first, *draw(others)]


LIMITS = [(1, 1), (600, 2), (1500, 4), (1 << 20, 1)]


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    lists_of_datasets(),
    st.integers(0, 2**63 - 1),
    st.lists(st.sampled_from(LIMITS), min_size=2, max_size=2, unique=True),
)
def test_a_shuffle_is_the_documented_order(plains, seed, limits):
    multimodal = plains[0].modes is not None
    names = [f"p{number}" for number in range(len(plains))]
    for name, plain in zip(names, plains, strict=True):
        plain.write(name)
    wanted, order = shuffled(plains, seed)
    found = []
    for memory, workers in limits:  # they determine nothing but how the output is made
        report = merge(
            MergeOptions(
                inputs=names,
                output="out",
                multimodal=multimodal,
                force=True,
                shuffle=seed,
                memory=memory,
                workers=workers,
            )
        )
        assert pair("out") == (wanted.bin_bytes(), wanted.idx_bytes())
        assert (report.options.shuffle.seed, report.output.dataset.documents) == (seed, len(order))
        assert not Path("out.tokshard/work").exists()
        found.append(read_manifest("out").files)
    assert found[0] == found[1]
    assert read_order("out") == order
    assert_pieces("out", wanted)


def write_corpora() -> list[str]:
    """Tokenize two inputs with rejected records in several units; the third has no manifest."""
    for name, count in (("a", 30), ("b", 17)):
        records = [{"text": "word " * (i % 5)} for i in range(count)]
        write_jsonl(Path(f"{name}.jsonl"), [*records[:7], {"text": 7}, *records[7:]])
        run_tokenize(f"{name}.jsonl", name, on_error="skip", workers=1, unit_size=300)
    return ["a", "b"]


def test_documents_keep_their_lines():
    names = write_corpora()
    plain = MergeOptions(inputs=names, output="plain")
    merge(plain)
    merge(MergeOptions(inputs=names, output="first", shuffle=3, memory=2000))
    # A shuffled dataset is merged with others, and shuffled again.
    merge(MergeOptions(inputs=["first", "a"], output="mixed"))
    merge(MergeOptions(inputs=["mixed", "b"], output="second", shuffle=4, memory=3000))
    merge(MergeOptions(inputs=["plain", "a", "b"], output="second-plain"))
    assert read_order("mixed") == [*read_order("first"), *range(47, 77)]
    chained = [*read_order("mixed"), *range(77, 94)]
    assert read_order("second") == [chained[number] for number in order_of(94, 4)]
    for prefix, unshuffled in (("first", "plain"), ("second", "second-plain")):
        order = np.array(read_order(prefix))
        found, expected = Provenance.open(prefix), Provenance.open(unshuffled)
        everything = np.arange(len(order))
        assert found.origins(everything) == expected.origins(order)
        for item in (parse_item("a.jsonl:5"), parse_item("b.jsonl@0")):
            matched = [match.document for match in found.matches(item)]
            lines = sorted(match.document for match in expected.matches(item))
            assert sorted(order[matched].tolist()) == lines
            assert lines
        assert found.matches(parse_item("a.jsonl:8"))[0].rejected
        report = verify(VerifyOptions(path=prefix, level="deep"))
        assert {finding.code for product in report.products for finding in product.findings} <= {
            "shuffled",
            "vocabulary-unknown",
        }


def test_inputs_without_a_manifest_get_the_digest_of_a_merge(monkeypatch):
    names = [f"p{number}" for number in range(3)]
    for number, name in enumerate(names):
        Plain("int32", [[list(range(i % 9))] for i in range(20 * (number != 1))]).write(name)
    merge(MergeOptions(inputs=names, output="plain"))
    monkeypatch.setattr(shuffle, "MAX_OPEN_INPUTS", 2)
    for prefix, memory in (("one", 1 << 20), ("many", 1500)):
        merge(MergeOptions(inputs=names, output=prefix, shuffle=1, memory=memory))
        for name in ("units.jsonl", "order.bin", "pieces.jsonl"):
            paths = [Path(f"{either}.tokshard/{name}") for either in ("one", prefix)]
            assert paths[0].read_bytes() == paths[1].read_bytes()
        assert (
            Path(f"{prefix}.tokshard/units.jsonl").read_bytes()
            == Path("plain.tokshard/units.jsonl").read_bytes()
        )


def failing(original, at: int):
    calls = iter(range(10**6))

    def call(*arguments, **more):
        if next(calls) == at:
            raise StorageError("write", "x", OSError(5, "Input/output error"))
        return original(*arguments, **more)

    return call


@pytest.mark.parametrize(("where", "at"), [("run", 6), ("range", 0), ("range", 5)])
def test_a_later_run_does_what_is_missing(monkeypatch, where, at):
    plain = Plain("uint16", [[[i] * 30] for i in range(60)])
    plain.write("p")
    wanted, _ = shuffled([plain], 9)
    asked = MergeOptions(inputs="p", output="out", shuffle=9, memory=3000)
    names = {"run": (scratch.RunWriter, "write"), "range": (shuffled_output.ShuffledOutput, "write")}
    owner, name = names[where]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, failing(getattr(owner, name), at))
        with pytest.raises(StorageError):
            merge(asked)
    layout = len(list(Path("out.tokshard/work").glob("shuffle-*.bin")))
    assert layout > 1
    runs, ranges = [], []
    with monkeypatch.context() as patch:
        run, loaded = scratch.RunWriter.write, scratch.RunReader.load
        patch.setattr(scratch.RunWriter, "write", lambda *these: (runs.append(1), run(*these)))
        patch.setattr(scratch.RunReader, "load", lambda *these: (ranges.append(these[1]), loaded(*these))[1])
        report = merge(asked)
    assert report.bytes_resumed > 0
    assert pair("out") == (wanted.bin_bytes(), wanted.idx_bytes())
    assert bool(runs) == (where == "run")
    assert min(ranges) > 0 if at == 5 else min(ranges) == 0
    assert len(runs) <= 6  # of 9


def test_a_run_in_one_pass_resumes(monkeypatch):
    plain = Plain("uint16", [[[i] * 30] for i in range(60)])
    plain.write("p")
    with monkeypatch.context() as patch:
        write = shuffled_output.ShuffledOutput.write
        patch.setattr(shuffled_output.ShuffledOutput, "write", failing(write, 4))
        with pytest.raises(StorageError):
            merge(MergeOptions(inputs="p", output="out", shuffle=9))
    report = merge(MergeOptions(inputs="p", output="out", shuffle=9))
    assert report.shuffle_sizes.passes == 1
    assert report.bytes_resumed >= 360
    wanted, _ = shuffled([plain], 9)
    assert pair("out") == (wanted.bin_bytes(), wanted.idx_bytes())


def test_without_a_memory_option_the_page_cache_may_hold_a_third_of_the_memory(monkeypatch):
    Plain("uint16", [[[i] * 30] for i in range(60)]).write("p")
    monkeypatch.setattr(options, "DEFAULT_MEMORY_BYTES", 9200)  # the tokens and their index need 12,720 bytes
    for available, passes in ((38_159, 2), (38_160, 1), (None, 2)):
        monkeypatch.setattr(options, "available_bytes", lambda known=available: known)
        assert (
            merge(MergeOptions(inputs="p", output="out", shuffle=9), dry_run=True).shuffle_sizes.passes
            == passes
        )
    monkeypatch.setattr(options, "available_bytes", lambda: 10**9)
    assert (
        merge(
            MergeOptions(inputs="p", output="out", shuffle=9, memory=12_719), dry_run=True
        ).shuffle_sizes.passes
        == 2
    )
    assert (
        merge(
            MergeOptions(inputs="p", output="out", shuffle=9, memory=12_720), dry_run=True
        ).shuffle_sizes.passes
        == 1
    )
    monkeypatch.setattr(options, "DEFAULT_MEMORY_BYTES", 9119)  # the index alone needs 9,120 bytes
    assert merge(MergeOptions(inputs="p", output="out", shuffle=9), dry_run=True).shuffle_sizes.passes == 2
    monkeypatch.setattr(options, "DEFAULT_MEMORY_BYTES", 9120)
    assert merge(MergeOptions(inputs="p", output="out", shuffle=9), dry_run=True).shuffle_sizes.passes == 1
    monkeypatch.setattr(shuffle, "MAX_OPEN_INPUTS", 0)
    assert merge(MergeOptions(inputs="p", output="out", shuffle=9), dry_run=True).shuffle_sizes.passes == 2


def test_a_run_from_the_page_cache_is_continued_by_one_with_less_memory(monkeypatch):
    plain = Plain("uint16", [[[i] * 30] for i in range(60)])
    plain.write("p")
    with monkeypatch.context() as patch:
        write = shuffled_output.ShuffledOutput.write
        patch.setattr(shuffled_output.ShuffledOutput, "write", failing(write, 4))
        with pytest.raises(StorageError):
            merge(MergeOptions(inputs="p", output="out", shuffle=9))
    report = merge(MergeOptions(inputs="p", output="out", shuffle=9, memory=10_000))
    assert report.bytes_resumed >= 360
    assert pair("out")[0] == shuffled([plain], 9)[0].bin_bytes()


@pytest.mark.parametrize("how", ["kernel", "no such call", "no memory mapping"])
def test_documents_are_read_in_place(monkeypatch, how):
    plains = [
        Plain("int32", [[list(range(i % 7 * n, i % 11 * n + 1))] for i in range(90)]) for n in (0, 1, 3)
    ]
    plains.insert(1, Plain("int32", []))
    for number, plain in enumerate(plains):
        plain.write(f"p{number}")
    monkeypatch.setattr(documents, "CHUNK_BYTES", 4000)
    monkeypatch.setattr(shuffled_output, "CACHED_BYTES", 500)
    if how == "no such call":
        monkeypatch.setattr(token_stores, "copy_mapped", lambda *_: 0)
    if how == "no memory mapping":

        def refuse(file):
            raise StorageError("map", file.path, OSError(errno.ENODEV, "No such device"))

        monkeypatch.setattr(source.InputFile, "map", refuse)
    for workers in (1, 3):
        merge(
            MergeOptions(
                inputs=[f"p{n}" for n in range(4)], output=f"out{workers}", shuffle=5, workers=workers
            )
        )
        assert pair(f"out{workers}")[0] == shuffled(plains, 5)[0].bin_bytes()


@pytest.mark.parametrize("memory", [20_000, 60_000, 1 << 20])
@pytest.mark.parametrize("checkpoint", [400, 40_000, 400_000])
def test_the_disk_space_is_known_before(monkeypatch, memory, checkpoint):
    monkeypatch.setattr(shuffle, "CHECKPOINT_BYTES", checkpoint)
    Plain("uint16", [[[i % 99] * 500] for i in range(400)]).write("p")
    asked = MergeOptions(inputs="p", output="out", shuffle=9, memory=memory)
    sizes, append = [], shuffled_output.ShuffledOutput._append

    def recorded(self, block):
        append(self, block)
        work = Path("out.tokshard/work")
        found = [*work.glob("0.*"), *work.glob("shuffle-*.bin")]  # segments are negligible if runs are large
        sizes.append(sum(path.stat().st_size for path in found))

    monkeypatch.setattr(shuffled_output.ShuffledOutput, "_append", recorded)
    merge(asked)
    assert max(sizes) <= merge(asked, dry_run=True).shuffle_sizes.disk_bytes


def test_less_memory_starts_over_and_another_seed_is_refused(monkeypatch):
    plain = Plain("uint16", [[[i] * 30] for i in range(60)])
    plain.write("p")
    with monkeypatch.context() as patch:
        patch.setattr(scratch.RunWriter, "write", failing(scratch.RunWriter.write, 2))
        with pytest.raises(StorageError):
            merge(MergeOptions(inputs="p", output="out", shuffle=9, memory=4000))
    report = merge(MergeOptions(inputs="p", output="out", shuffle=9, memory=1500))
    assert report.bytes_resumed == 0
    assert pair("out")[0] == shuffled([plain], 9)[0].bin_bytes()
    assert merge(MergeOptions(inputs="p", output="out", shuffle=9)).action == "found"
    with pytest.raises(OutputExistsError, match="--shuffle was 9 and is now 8"):
        merge(MergeOptions(inputs="p", output="out", shuffle=8))
    with pytest.raises(OutputExistsError, match="--shuffle was 9 and is now not set"):
        merge(MergeOptions(inputs="p", output="out"))


def test_a_dry_run_tells_passes_memory_and_disk_space(monkeypatch):
    Plain("uint16", [[[i] * 1000] for i in range(60)]).write("p")
    one = merge(MergeOptions(inputs="p", output="out", shuffle=9), dry_run=True).shuffle_sizes
    two = merge(MergeOptions(inputs="p", output="out", shuffle=9, memory=50_000), dry_run=True).shuffle_sizes
    assert (one.passes, one.scratch_bytes, two.passes, two.memory_bytes) == (1, 0, 2, 50_000)
    assert 120_000 < two.scratch_bytes < 125_000
    assert one.disk_bytes < two.disk_bytes
    monkeypatch.setattr(job, "free_bytes", lambda _: 100_000)
    with pytest.raises(StorageError, match=r"\d+ kB required, 100 kB free"):
        merge(MergeOptions(inputs="p", output="out", shuffle=9))
    assert not Path("out.tokshard").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"memory": 10**8}, "--memory requires --shuffle"),
        ({"workers": 2}, "--workers requires --shuffle"),
        ({"shuffle": -1}, "--shuffle must be at"),
        ({"shuffle": 2**63}, "--shuffle must be at"),
        ({"shuffle": 1, "memory": 0}, "--memory must be at least"),
        ({"shuffle": 1, "workers": 0}, "--workers must be at least 1"),
    ],
)
def test_options_are_checked(more, message):
    with pytest.raises(UsageError, match=message):
        MergeOptions(inputs="p", output="out", **more)


def test_an_input_that_is_truncated_meanwhile_is_an_error(monkeypatch):
    Plain("uint16", [[[i] * 30] for i in range(60)]).write("p")
    located = shuffle.MergedDocuments.locate

    def locate(self):
        found = located(self)
        with open("p.bin", "r+b") as file:
            file.truncate(99)
        return found

    monkeypatch.setattr(shuffle.MergedDocuments, "locate", locate)
    with pytest.raises(IntegrityError, match=r"p\.bin was truncated"):
        merge(MergeOptions(inputs="p", output="out", shuffle=1))


def test_memory_is_bounded(monkeypatch):
    for module, name in ((documents, "CHUNK_BYTES"), (files, "FORCED_BYTES")):
        monkeypatch.setattr(module, name, 1 << 20)
    monkeypatch.setattr(shuffled_output, "PIECE_BYTES", 4 << 20)
    monkeypatch.setattr(syscalls, "fsync", lambda *_: None)
    lengths = [2000] * 20_000
    with open("p.bin", "wb") as file:
        file.truncate(sum(lengths))
    Path("p.idx").write_bytes(idx_bytes(CODES["uint8"], lengths, [1] * len(lengths)))
    peaks, run = [], shuffle.ShuffledCopy.run

    def traced(self):
        tracemalloc.start()
        try:
            run(self)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()

    monkeypatch.setattr(shuffle.ShuffledCopy, "run", traced)
    assert (
        merge(
            MergeOptions(inputs="p", output="out", shuffle=1, memory=8 << 20, workers=2)
        ).shuffle_sizes.passes
        == 2
    )
    assert peaks[0] < 16 << 20


def test_the_order_never_changes():
    key = derive_key("tokshard.sorted/1:documents", 7, 0)
    assert key == 7489068882388832534
    assert order_of(10, 7) == sorted_order(10, key).tolist() == [2, 9, 4, 1, 6, 0, 5, 8, 3, 7]


def test_every_position_is_equally_likely():
    # The statistics are fixed by the seeds: they would be exceeded by chance once in 1,000 times.
    count, seeds = 8, range(6000)
    places = np.zeros((count, count))
    orders: dict[tuple[int, ...], int] = {}
    for seed in seeds:
        key = derive_key("tokshard.sorted/1:documents", seed, 0)
        places[np.arange(count), sorted_order(count, key)] += 1
        few = tuple(sorted_order(4, key).tolist())
        orders[few] = orders.get(few, 0) + 1
    expected = len(seeds) / count
    assert ((places - expected) ** 2 / expected).sum() < 85.4  # 49 degrees of freedom
    expected = len(seeds) / 24
    assert len(orders) == 24
    assert sum((found - expected) ** 2 / expected for found in orders.values()) < 49.7  # 23
