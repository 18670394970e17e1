"""P61: shuffling against a slow twin that holds all documents, with chunks and buckets of a few documents."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress
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
from tokshard.dataset.concatenate import Concatenation
from tokshard.dataset.manifest import read_manifest
from tokshard.dataset.merge import job, options, shuffle
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
    monkeypatch.setattr(shuffle, "PIECE_BYTES", PIECE_BYTES)
    monkeypatch.setattr(shuffle, "CHUNK_BYTES", 10)
    monkeypatch.setattr(files, "FORCED_BYTES", 20)


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


LIMITS = [1, 600, 1500, 1 << 20]


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
    for memory in limits:  # it determines nothing but how the output is made
        report = merge(
            MergeOptions(
                inputs=names,
                output="out",
                multimodal=multimodal,
                force=True,
                shuffle=seed,
                memory=memory,
            )
        )
        assert pair("out") == (wanted.bin_bytes(), wanted.idx_bytes())
        assert (report.options.shuffle.seed, report.output.counts.documents) == (seed, len(order))
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


def test_inputs_without_a_manifest_get_the_digest_of_a_merge():
    names = [f"p{number}" for number in range(3)]
    for number, name in enumerate(names):
        Plain("int32", [[list(range(i % 9))] for i in range(20 * (number != 1))]).write(name)
    merge(MergeOptions(inputs=names, output="plain"))
    for prefix, memory in (("one", 1 << 20), ("many", 1500)):
        merge(MergeOptions(inputs=names, output=prefix, shuffle=1, memory=memory))
        for name in ("units.jsonl", "order.bin", "pieces.jsonl"):
            paths = [Path(f"{either}.tokshard/{name}") for either in ("one", prefix)]
            assert paths[0].read_bytes() == paths[1].read_bytes()
        assert (
            Path(f"{prefix}.tokshard/units.jsonl").read_bytes()
            == Path("plain.tokshard/units.jsonl").read_bytes()
        )


@pytest.mark.parametrize(("step", "at"), [("write", 0), ("write", 9), ("read", 0), ("read", 3)])
def test_an_interrupted_shuffle_leaves_nothing_and_starts_again(monkeypatch, step, at):
    plain = Plain("uint16", [[[i] * 30] for i in range(60)])
    plain.write("p")
    asked = MergeOptions(inputs="p", output="out", shuffle=9, memory=3000)
    calls = iter(range(10**6))

    def failing(original):
        def wrapped(*arguments):
            if next(calls) == at:
                assert list(Path("out.tokshard/work").glob("shuffle-*.bin"))
                raise StorageError("write", "x", OSError(5, "Input/output error"))
            return original(*arguments)

        return wrapped

    steps = {"write": (shuffle.SortedDocuments, "write"), "read": (shuffle.ShuffledDocuments, "_read")}
    owner, name = steps[step]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, failing(getattr(owner, name)))
        with pytest.raises(StorageError):
            merge(asked)
    assert sorted(path.name for path in Path().iterdir()) == ["p.bin", "p.idx"]
    merge(asked)
    wanted, _ = shuffled([plain], 9)
    assert pair("out") == (wanted.bin_bytes(), wanted.idx_bytes())


def test_one_pass_needs_tokens_and_index_in_memory(monkeypatch):
    Plain("uint16", [[[i] * 30] for i in range(60)]).write("p")  # they need 12,720 bytes

    def passes(memory=None):
        asked = MergeOptions(inputs="p", output="out", shuffle=9, memory=memory)
        return merge(asked, dry_run=True).shuffle_sizes.passes

    assert (passes(12_719), passes(12_720)) == (2, 1)
    monkeypatch.setattr(options, "DEFAULT_MEMORY_BYTES", 9200)
    for available, wanted in ((38_159, 2), (38_160, 1), (None, 2)):  # a third of the available memory
        monkeypatch.setattr(options, "available_bytes", lambda known=available: known)
        assert passes() == wanted
    monkeypatch.setattr(options, "DEFAULT_MEMORY_BYTES", 12_720)
    assert passes() == 1


def test_documents_of_all_sizes_are_shuffled(monkeypatch):
    """Short documents are copied by their numbers, large ones directly from the inputs."""
    plains = [
        Plain("int32", [[list(range(i % 7 * n, i % 11 * n + 1))] for i in range(90)]) for n in (0, 1, 3)
    ]
    plains.insert(1, Plain("int32", []))
    plains.append(Plain("int32", [[], [[7] * 5000], [[1], [2]]]))
    for number, plain in enumerate(plains):
        plain.write(f"p{number}")
    monkeypatch.setattr(shuffle, "CHUNK_BYTES", 4000)
    for memory in (20_000, 1 << 20):
        merge(
            MergeOptions(inputs=[f"p{n}" for n in range(5)], output=f"out{memory}", shuffle=5, memory=memory)
        )
        assert pair(f"out{memory}")[0] == shuffled(plains, 5)[0].bin_bytes()


@pytest.mark.parametrize("memory", [60_000, 200_000, 1 << 20])
def test_the_disk_space_is_known_before(monkeypatch, memory):
    monkeypatch.setattr(shuffle, "PIECE_BYTES", 100_000)
    Plain("uint16", [[[i % 99] * 500] for i in range(400)]).write("p")
    asked = MergeOptions(inputs="p", output="out", shuffle=9, memory=memory)
    sizes, write = [], syscalls.write

    def recorded(*arguments):
        write(*arguments)
        with suppress(FileNotFoundError):  # buckets are removed in another thread
            sizes.append(sum(path.stat().st_size for path in Path("out.tokshard/work").glob("*")))

    monkeypatch.setattr(syscalls, "write", recorded)
    merge(asked)
    assert max(sizes) <= merge(asked, dry_run=True).shuffle_sizes.disk_bytes


def test_another_seed_is_refused():
    Plain("uint16", [[[i] * 30] for i in range(60)]).write("p")
    merge(MergeOptions(inputs="p", output="out", shuffle=9, memory=1500))
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
    assert 120_000 < one.disk_bytes == two.disk_bytes < 125_000
    monkeypatch.setattr(job, "free_bytes", lambda _: 100_000)
    with pytest.raises(StorageError, match=r"\d+ kB required, 100 kB free"):
        merge(MergeOptions(inputs="p", output="out", shuffle=9))
    assert not Path("out.tokshard").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"memory": 10**8}, "--memory requires --shuffle"),
        ({"shuffle": -1}, "--shuffle must be at"),
        ({"shuffle": 2**63}, "--shuffle must be at"),
        ({"shuffle": 1, "memory": 0}, "--memory must be at least"),
    ],
)
def test_options_are_checked(more, message):
    with pytest.raises(UsageError, match=message):
        MergeOptions(inputs="p", output="out", **more)


@pytest.mark.parametrize("memory", [3000, 1 << 20])
def test_an_input_that_is_truncated_meanwhile_is_an_error(monkeypatch, memory):
    Plain("uint16", [[[i] * 30] for i in range(60)]).write("p")
    load = shuffle.ShuffledDocuments._load

    def truncated(*arguments):
        with open("p.bin", "r+b") as file:
            file.truncate(99)
        return load(*arguments)

    monkeypatch.setattr(shuffle.ShuffledDocuments, "_load", truncated)
    with pytest.raises(IntegrityError, match=r"p\.bin was truncated"):
        merge(MergeOptions(inputs="p", output="out", shuffle=1, memory=memory))


def test_memory_is_bounded(monkeypatch):
    for module, name in ((shuffle, "CHUNK_BYTES"), (files, "FORCED_BYTES")):
        monkeypatch.setattr(module, name, 1 << 20)
    monkeypatch.setattr(shuffle, "PIECE_BYTES", 4 << 20)
    monkeypatch.setattr(syscalls, "fsync", lambda *_: None)
    lengths = [2000] * 20_000
    with open("p.bin", "wb") as file:
        file.truncate(sum(lengths))
    Path("p.idx").write_bytes(idx_bytes(CODES["uint8"], lengths, [1] * len(lengths)))
    peaks = []

    def traced(original):
        def wrapped(*arguments):
            tracemalloc.start()
            try:
                original(*arguments)
                peaks.append(tracemalloc.get_traced_memory()[1])
            finally:
                tracemalloc.stop()

        return wrapped

    for owner, name in ((shuffle.ShuffledDocuments, "scatter"), (Concatenation, "append")):
        monkeypatch.setattr(owner, name, traced(getattr(owner, name)))
    report = merge(MergeOptions(inputs="p", output="out", shuffle=1, memory=8 << 20))
    assert report.shuffle_sizes.passes == 2
    assert len(peaks) == 3
    assert max(peaks) < 10 << 20


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
