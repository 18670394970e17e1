"""What sample ids mean, found again on disk, and refused where the disk has changed."""

import shutil
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.index_caches import write_dataset
from support.interleaving import interleaved
from support.mixture_data import run, write_mixture
from support.sample_sources import blend_directory, blend_sources, document_source, index_source
from tokshard.core.path_mapping import PathMapping
from tokshard.dataset.reader import IndexedDataset
from tokshard.errors import InputError, IntegrityError, MissingFileError, UsageError
from tokshard.ranks.discovery import RequestedSamples, open_sources
from tokshard.ranks.locator import Locator, open_sort_key
from tokshard.ranks.sources import PathResolver, SampleSource
from tokshard.samples.index.best_fit import EpochPacks
from tokshard.samples.index.description import read_description
from tokshard.samples.index.entry import CacheEntry
from tokshard.samples.index.index import GPTDatasetIndex
from tokshard.samples.index.packing import Packing
from tokshard.samples.index.samples import GPTSamples


def all_ids(source):
    return np.arange(source.total, dtype=np.int64)


def document_prefixes(directory):
    write_mixture(directory)
    return [str(directory / "data/web"), str(directory / "data/code")]


def built_index(directory, *arguments):
    prefix = document_prefixes(directory)[0]
    done = run("build-indices", prefix, "--seq-length", 8, "--split", "90,10", *arguments)
    assert done.returncode == 0, done.stderr
    return prefix


@given(sizes=st.lists(st.integers(0, 20), min_size=1, max_size=8), first=st.integers(0, 5))
def test_documents_are_numbered_through_the_datasets(sizes, first):
    if not sum(sizes):
        return
    source = document_source(sizes, firsts=[first] * len(sizes))
    datasets, documents = Locator(source).locate(all_ids(source))
    slow = [(number, first + document) for number, size in enumerate(sizes) for document in range(size)]
    assert list(zip(datasets.tolist(), documents.tolist(), strict=True)) == slow
    ends = list(accumulate(sizes))
    assert source.bounds.tolist() == [0, *ends]
    assert datasets.tolist() == [bisect_right(ends, sample_id) for sample_id in range(source.total)]


@pytest.mark.parametrize("ids", [[-1], [5], [0, 5], [2**40]])
def test_ids_outside_the_source_are_refused(ids):
    with pytest.raises(IndexError, match="0 to 4"):
        Locator(document_source([2, 3])).locate(np.array(ids))


def test_a_blend_is_located_by_its_arrays(tmp_path):
    source = blend_sources(tmp_path)["train"]
    arrays = source.order.open()
    datasets, samples = Locator(source).locate(all_ids(source))
    assert datasets.dtype == np.int16
    np.testing.assert_array_equal(datasets, arrays["dataset_index"])
    np.testing.assert_array_equal(samples, arrays["dataset_sample_index"])
    assert set(datasets.tolist()) == {0, 1}


def test_a_sample_of_a_blend_that_no_dataset_has_is_an_error(tmp_path):
    source = blend_sources(tmp_path)["train"]
    fewer = tuple(
        type(dataset)(**{**{name: getattr(dataset, name) for name in dataset.__slots__}, "samples": 3})
        for dataset in source.datasets
    )
    damaged = SampleSource("blend", "train", source.total, fewer, source.order)
    with pytest.raises(IntegrityError, match=r"is sample 3 of dataset"):
        Locator(damaged).locate(all_ids(damaged))


@pytest.mark.parametrize("packing", [None, Packing(max_documents=3)])
def test_samples_read_through_a_reference_are_those_of_a_rebuilt_index(tmp_path, packing):
    cache = ["--cache-dir", tmp_path / "cache"]
    pack = ["--pack", "best-fit", "--max-documents-per-sample", packing.max_documents] if packing else []
    prefix = built_index(tmp_path, "--epochs", 2, *cache, *pack)
    source = open_sources([str(tmp_path / "cache")], RequestedSamples(split="train"))["train"]
    reference = source.datasets[0]
    ours = GPTSamples(reference.open_dataset(), reference.open_index())
    dataset = IndexedDataset(prefix)
    epochs = reference.epochs
    index = GPTDatasetIndex.build(
        dataset.sequence_lengths,
        range(54),
        sequence_length=8,
        seed=1234,
        num_samples=epochs.num_samples,
        packing=packing,
    )
    theirs = GPTSamples(dataset, index)
    assert len(ours) == len(theirs) == source.total > 100
    np.testing.assert_array_equal(ours.read_batch(range(len(ours))), theirs.read_batch(range(len(theirs))))


def test_several_indexes_are_numbered_through(tmp_path):
    prefixes = document_prefixes(tmp_path)
    for prefix in prefixes:
        assert run("build-indices", prefix, "--seq-length", 8, "--split", "1", "--epochs", 1).returncode == 0
    source = open_sources(prefixes, RequestedSamples())["train"]
    sizes = [dataset.samples for dataset in source.datasets]
    assert (source.kind, source.total) == ("index", sum(sizes))
    datasets, samples = Locator(source).locate(all_ids(source))
    assert samples.tolist() == [sample for size in sizes for sample in range(size)]
    assert np.bincount(datasets).tolist() == sizes


def test_sort_keys_are_what_the_samples_turn_out_to_be(tmp_path):
    prefixes = document_prefixes(tmp_path)
    documents = open_sources(prefixes, RequestedSamples(documents=True))["train"]
    datasets = [IndexedDataset(prefix) for prefix in prefixes]
    lengths = [len(dataset.document_tokens(k)) for dataset in datasets for k in range(dataset.document_count)]
    assert open_sort_key(documents, "length")(all_ids(documents)).tolist() == lengths
    assert set(open_sort_key(documents, "sequences")(all_ids(documents)).tolist()) == {1}
    blend = blend_sources(tmp_path)["train"]
    readers = [GPTSamples(dataset.open_dataset(), dataset.open_index()) for dataset in blend.datasets]
    where = zip(*Locator(blend).locate(all_ids(blend)), strict=True)
    pieces = [len(readers[dataset].read(int(sample)).lengths) for dataset, sample in where]
    assert open_sort_key(blend, "pieces")(all_ids(blend)).tolist() == pieces
    assert len(set(pieces)) > 1
    with pytest.raises(UsageError, match="do not support the sort key 'length'"):
        open_sort_key(blend, "length")


@pytest.mark.parametrize("extra_token", [True, False])
def test_a_packed_index_is_found_and_the_pieces_of_its_samples_are_their_documents(tmp_path, extra_token):
    prefix = document_prefixes(tmp_path)[0]
    options = ["--epochs", 2, "--split", "1", "--pack", "best-fit", "--cache-dir", tmp_path / "packed"]
    options += [] if extra_token else ["--no-add-extra-token"]
    done = run("build-indices", prefix, "--seq-length", 8, *options)
    assert done.returncode == 0, done.stderr
    source = open_sources([str(tmp_path / "packed")], RequestedSamples())["train"]
    (reference,) = source.datasets
    table, epochs = reference.open_dataset().index, reference.epochs
    packs = EpochPacks.of(table.sequence_lengths, range(table.sequence_count), 8, Packing())
    assert (epochs.packed, source.total) == (packs.size.packed, 2 * packs.size.packed.samples)
    samples = GPTSamples(reference.open_dataset(), reference.open_index())
    documents = [np.count_nonzero(samples.read(number).lengths) for number in range(source.total)]
    assert open_sort_key(source, "pieces")(all_ids(source)).tolist() == documents
    full_samples = [1] * (packs.size.packed.samples - packs.packs)
    pack_sizes = np.bincount(packs.pack_of_documents()).tolist()
    assert sorted(documents) == sorted(2 * (full_samples + pack_sizes))


def test_the_id_of_a_source_says_what_is_read_and_not_where_it_lies(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    write_mixture(first)
    shutil.copytree(first, second)

    def source(directory):
        return open_sources([str(directory / "data/web")], RequestedSamples(documents=True))["train"]

    assert source(first).id == source(second).id
    other = open_sources([str(first / "data/code")], RequestedSamples(documents=True))["train"]
    assert other.id != source(first).id
    rest = open_sources([str(first / "data/web")], RequestedSamples(documents=True, split="50,50"))
    assert len({stream.id for stream in [*rest.values(), source(first)]}) == 3


def test_shares_of_documents_are_disjoint_and_complete(tmp_path):
    prefixes = document_prefixes(tmp_path)
    sources = open_sources(prefixes, RequestedSamples(documents=True, split="80,15,5"))
    assert list(sources) == ["train", "valid", "test"]
    seen = [
        pair
        for source in sources.values()
        for pair in zip(*map(np.ndarray.tolist, Locator(source).locate(all_ids(source))), strict=True)
    ]
    assert sorted(seen) == [(0, k) for k in range(60)] + [(1, k) for k in range(48)]


def test_named_splits_choose_streams(tmp_path):
    mix = str(blend_directory(tmp_path))
    assert list(open_sources([mix], RequestedSamples())) == ["train", "valid", "test"]
    assert list(open_sources([mix], RequestedSamples(split="test,train"))) == ["train", "test"]
    documents = open_sources(document_prefixes(tmp_path), RequestedSamples(documents=True, split="valid"))
    assert [(name, source.total) for name, source in documents.items()] == [("valid", 108)]
    with pytest.raises(UsageError, match="got 'tarin'"):
        open_sources([mix], RequestedSamples(split="tarin"))
    with pytest.raises(UsageError, match="requires --documents"):
        open_sources([mix], RequestedSamples(split="90,10"))


@pytest.mark.parametrize("documents", [True, False])
def test_a_dataset_that_is_named_twice_is_refused(tmp_path, documents):
    prefix = built_index(tmp_path, "--num-samples", "50")
    (tmp_path / "link.idx").symlink_to(f"{prefix}.idx")
    (tmp_path / "link.bin").symlink_to(f"{prefix}.bin")
    paths = [[prefix, prefix]] + ([[prefix, str(tmp_path / "link")]] if documents else [])
    for both in paths:
        with pytest.raises(UsageError, match="is passed twice"):
            open_sources(both, RequestedSamples(documents=documents))


def test_a_description_and_a_cache_name_an_index_too(tmp_path):
    prefix = built_index(tmp_path, "--num-samples", "50,8")
    cache = tmp_path / "data/web/cache/GPTDataset_indices"
    by_prefix = open_sources([prefix], RequestedSamples())
    assert list(by_prefix) == ["train", "valid"]
    assert open_sources([str(cache)], RequestedSamples()) == by_prefix
    file = next(cache.glob("*-valid-description.txt"))
    assert open_sources([str(file)], RequestedSamples()) == {"valid": by_prefix["valid"]}


def test_two_indexes_of_a_split_in_one_cache_must_be_told_apart(tmp_path):
    prefix = built_index(tmp_path, "--num-samples", "50")
    built_index(tmp_path, "--num-samples", "70")
    with pytest.raises(UsageError, match="several train indexes"):
        open_sources([prefix], RequestedSamples())


def test_data_that_a_job_names_otherwise_is_found_by_path_as(tmp_path):
    prefix = built_index(tmp_path, "--num-samples", "50", "--path-as", f"{tmp_path}/data=/job/data")
    file = next((tmp_path / "data/web/cache/GPTDataset_indices").glob("*-train-description.txt"))
    assert "/job/data/web" in file.read_text()
    with pytest.raises(MissingFileError, match="/job/data/web"):
        open_sources([str(file)], RequestedSamples())
    found = open_sources([str(file)], RequestedSamples(path_as=((f"{tmp_path}/data", "/job/data"),)))
    assert found["train"].datasets[0].path_prefix == prefix


def test_an_index_of_other_data_is_refused(tmp_path):
    prefix = built_index(tmp_path, "--num-samples", "50")
    lengths = IndexedDataset(prefix).sequence_lengths.tolist()
    write_dataset(prefix, list(reversed(lengths)))
    with pytest.raises(IntegrityError, match=r"built from other content .* idx_xxh3_128"):
        open_sources([prefix], RequestedSamples())
    write_dataset(prefix, [*lengths, 4])
    for digests in (True, False):
        with pytest.raises(IntegrityError, match=r"built from other content .* bin_bytes"):
            open_sources([prefix], RequestedSamples(digests=digests))


def test_without_digests_the_same_is_found(tmp_path):
    prefix = built_index(tmp_path, "--num-samples", "50")
    quick, slow = (open_sources([prefix], RequestedSamples(digests=digests)) for digests in (False, True))
    assert {name: source.id for name, source in quick.items()} == {
        name: source.id for name, source in slow.items()
    }
    documents = [
        open_sources([prefix], RequestedSamples(documents=True, digests=digests))["train"]
        for digests in (False, True)
    ]
    assert documents[0].id == documents[1].id
    assert documents[0].total == 60


@pytest.mark.parametrize("change", ["no-sidecar", "other-shape", "cut", "other-counts", "gone"])
def test_a_damaged_index_is_refused(tmp_path, change):
    prefix = built_index(tmp_path, "--num-samples", "50")
    cache = tmp_path / "data/web/cache/GPTDataset_indices"
    array = next(cache.glob("*-train-shuffle_index.npy"))
    sidecar = next(cache.glob("*-train-tokshard.json"))
    if change == "no-sidecar":
        sidecar.unlink()
    elif change == "other-shape":
        shutil.copy(next(cache.glob("*-train-document_index.npy")), array)
    elif change == "cut":
        array.write_bytes(array.read_bytes()[:-1])
    elif change == "other-counts":
        sidecar.write_text(sidecar.read_text().replace('"samples": ', '"samples": 1'))
    else:
        array.unlink()
    with pytest.raises((IntegrityError, MissingFileError)) as caught:
        open_sources([prefix], RequestedSamples(split="train"))
    assert caught.value.hint or change in {"cut", "gone", "other-counts"}
    assert str(cache) in str(caught.value)


@pytest.mark.parametrize(("path", "error"), [("nothing", MissingFileError), ("empty", MissingFileError)])
def test_what_is_nothing_to_read_is_said_with_a_hint(tmp_path, path, error):
    (tmp_path / "empty").mkdir()
    with pytest.raises((error, InputError)) as caught:
        open_sources([str(tmp_path / path)], RequestedSamples())
    assert "tokshard b" in caught.value.hint


def test_a_changed_file_is_noticed_when_it_is_opened(tmp_path):
    source = blend_sources(tmp_path)["train"]
    reference = source.datasets[0]
    reference.open_dataset()
    path = tmp_path / "data/web.bin"
    content = path.read_bytes()
    path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    with pytest.raises(IntegrityError, match=r"web\.bin has changed .* its content differs"):
        reference.open_dataset()
    path.write_bytes(content + b"\0\0")
    with pytest.raises(IntegrityError, match=r"had 1540 bytes and now has 1542"):
        reference.open_dataset()
    path.unlink()
    with pytest.raises(MissingFileError, match="file of the plan not found") as caught:
        reference.open_dataset()
    assert "roots" in caught.value.hint


@pytest.mark.parametrize("name", ["dataset_index", "dataset_sample_index"])
def test_a_changed_array_is_noticed_when_it_is_opened(tmp_path, name):
    source = blend_sources(tmp_path)["train"]
    path = Path(source.order.array_path(name))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(IntegrityError, match=f"{name}.npy has changed"):
        Locator(source).locate(np.array([0]))


HOSTILE = [
    *("", "..", "../web", "a/../../web", "a/..", "~", "~root/web", "~/web", "a\\b", "..\\web", "C:\\web"),
    *(
        "a\0b",
        "a\nb",
        "a\tb",
        "a\x1b[31mb",
        "\u202eweb",
        "a\u200bb",
        "/data/../etc/web",
        "/..",
        "a\x7fb",
        "\ud800",
    ),
]


@pytest.mark.parametrize("stored", HOSTILE)
def test_paths_that_a_plan_does_not_store_are_refused(stored):
    with pytest.raises(UsageError, match="invalid path in a plan"):
        PathResolver("/runs/plan").opened(stored)


@pytest.mark.parametrize("name", ["a\\b", "a\nb", "a\x1b[31mb", "a\u00a0b", "\u202eweb"])
def test_what_could_not_be_opened_again_is_not_stored(name):
    for path in (f"/data/{name}", f"/runs/plan/{name}"):
        with pytest.raises(UsageError, match="a plan cannot name the path"):
            PathResolver("/runs/plan").stored(path)
    with pytest.raises(UsageError, match="begins with ~"):
        PathResolver("/runs/plan").stored("/runs/plan/~web")


@given(st.text())
def test_a_relative_path_stays_in_the_directory_of_the_plan(stored):
    try:
        opened = PathResolver("/runs/plan").opened(stored)
    except UsageError:
        return
    assert stored.startswith("/") or opened == "/runs/plan" or opened.startswith("/runs/plan/")


@given(st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=4), st.booleans())
def test_stored_paths_open_again(parts, inside):
    path = "/runs/plan/" * inside + "/".join(["" if not inside else ".", *parts])
    places = PathResolver("/runs/plan")
    stored = places.stored(path)
    assert stored.startswith("/") is not inside
    assert places.opened(stored) == path.replace("/./", "/").replace("//", "/")


def test_the_longest_root_decides_and_only_whole_names_count():
    places = PathResolver("/p", PathMapping((("/data", "/mnt"), ("/data/web/", "/fast/web/"))))
    found = [places.opened(path) for path in ("/data/web/x", "/data/code", "/database/x", "/data", "rel")]
    assert found == ["/fast/web/x", "/mnt/code", "/database/x", "/mnt", "/p/rel"]


def test_a_source_whose_parts_do_not_fit_is_refused():
    whole = index_source(100)
    with pytest.raises(UsageError, match="must be the sum"):
        SampleSource("index", "train", 99, whole.datasets)
    with pytest.raises(UsageError, match="does not fit a source of kind documents"):
        SampleSource("documents", "train", 100, whole.datasets)
    with pytest.raises(UsageError, match="same length"):
        SampleSource("index", "train", 200, whole.datasets + index_source(100, sequence_length=8).datasets)
    with pytest.raises(UsageError, match="1 to 32767"):
        SampleSource("index", "train", 0, ())


def test_arrays_map_as_the_cache_loads_them(tmp_path):
    source = blend_sources(tmp_path)["train"]
    reference = source.datasets[0]
    index = reference.open_index()
    [path] = (tmp_path / "mix/cache").glob(f"{reference.index.stem}-description.txt")
    description = read_description(str(path))
    arrays = CacheEntry.of(description, str(tmp_path / "mix/cache")).load()
    for name, array in arrays.items():
        np.testing.assert_array_equal(getattr(index, name), array)


def test_what_replaces_a_file_while_it_is_opened_is_never_read(tmp_path):
    reference = blend_sources(tmp_path)["train"].datasets[0]
    path = tmp_path / "data/web.bin"
    content = path.read_bytes()
    other = bytes([content[0] ^ 1]) + content[1:]

    def put(content):
        (tmp_path / "new").write_bytes(content)
        (tmp_path / "new").rename(path)

    def read():
        try:
            return bytes(reference.open_dataset()[0][:1])
        except IntegrityError:
            return None

    found = [
        *interleaved(
            read,
            lambda: put(other),
            inside=("ranks/sources.py", "dataset/reader.py", "dataset/source.py"),
            prepare=lambda: put(content),
        )
    ]
    assert set(found) == {content[:2], None}
    assert len(found) > 50
