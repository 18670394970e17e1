import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.index_caches import (
    LENGTHS,
    TOKENIZER,
    build_requests,
    conditions,
    contents,
    entry_for,
    entry_of,
    request_for,
    saved,
    slow_arrays,
    write_as_megatron,
    write_dataset,
    written,
)
from tokshard.core.progress import SilentProgress
from tokshard.dataset.fingerprint import FingerprintedIndex, dataset_fingerprint
from tokshard.errors import (
    InputError,
    IntegrityError,
    MissingFileError,
    OutputExistsError,
    UsageError,
)
from tokshard.samples.index import build
from tokshard.samples.index.splits import parse_split, whole_split
from tokshard.storage import syscalls
from tokshard.storage.lock import WriterLock


@pytest.fixture
def prefix(tmp_path):
    return write_dataset(str(tmp_path / "data" / "wéb"))


@pytest.fixture
def directory(tmp_path):
    return str(tmp_path / "cache")


def splits_of(prefix, **changes):
    split = changes.pop("split", parse_split("60,30,10"))
    names = ("train", "valid", "test")
    return [request_for(prefix, split=split, split_name=name, **changes) for name in names]


def actions(reports):
    return [report.action for report in reports]


def states(requests, directory):
    return list(conditions(requests, cache_directory=directory).values())


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 30), min_size=4, max_size=12).filter(lambda found: all(found[:2])),
    name=TEXTS,
    tokenizer=st.dictionaries(TEXTS, TEXTS, max_size=3),
    split=st.sampled_from(["1", "50,50", "100,0,0"]),
    num_samples=st.none() | st.integers(0, 60),
    sequence_length=st.integers(1, 9),
    seed=st.integers(0, 2**32 - 1),
    extra_token=st.booleans(),
)
def test_names_and_bytes_are_those_of_the_slow_twin(
    tmp_path_factory, *, lengths, name, tokenizer, split, num_samples, sequence_length, seed, extra_token
):
    here = tmp_path_factory.mktemp("job")
    request = request_for(
        write_dataset(str(here / "web"), lengths),
        training_path=name,
        tokenizer=tokenizer,
        split=parse_split(split),
        num_samples=num_samples,
        sequence_length=sequence_length,
        seed=seed,
        extra_token=extra_token,
    )
    description = {
        "class": "GPTDataset",
        "dataset_path": name,
        "num_samples": num_samples,
        "index_split": "train",
        "random_seed": seed,
        "sequence_length": sequence_length,
        "split": split,
        "split_matrix": {
            "1": [[0, 1.0], None, None],
            "50,50": [[0, 0.5], [0.5, 1.0], None],
            "100,0,0": [[0, 1.0], None, None],
        }[split],
        "tokenizer": tokenizer,
    }
    arrays = slow_arrays(request, lengths)
    if num_samples is None and not len(arrays["shuffle_index"]):
        with pytest.raises(UsageError, match="has no samples"):
            build_requests([request], cache_directory=str(here / "cache"))
        return
    (report,) = build_requests([request], cache_directory=str(here / "cache"), workers=1)
    text = written(description)
    stem = f"{hashlib.md5(text.encode()).hexdigest()}-GPTDataset-train-"
    found = contents(here / "cache")
    found.pop(f"{stem}tokshard.json")
    assert found == {
        f"{stem}description.txt": text.encode(),
        **{f"{stem}{name}.npy": saved(array) for name, array in arrays.items()},
    }
    assert report.plan.samples == len(arrays["shuffle_index"])


def test_all_splits_are_built_and_then_found(prefix, directory, monkeypatch):
    requests = splits_of(prefix)
    reports = build_requests(requests, cache_directory=directory)
    assert actions(reports) == ["built"] * 3
    assert [report.description for report in reports] == [request.description() for request in requests]
    for report, request in zip(reports, requests, strict=True):
        for name, array in slow_arrays(request, LENGTHS).items():
            assert Path(entry_of(report).array_path(name)).read_bytes() == saved(array)
    before = contents(directory)
    assert states(requests, directory) == ["fresh"] * 3
    with monkeypatch.context() as patch:
        for name in ("create", "open_for_append", "replace", "unlink", "make_directory"):
            patch.setattr(syscalls, name, lambda *_: pytest.fail("a write"))
        assert actions(build_requests(requests, cache_directory=directory)) == ["found"] * 3
    assert contents(directory) == before


def test_the_default_directory_is_megatrons(prefix):
    (report,) = build_requests([request_for(prefix)])
    assert entry_of(report).directory == f"{prefix}/cache/GPTDataset_indices"
    assert states([request_for(prefix)], None) == ["fresh"]


def test_splits_without_a_share_are_left_out(prefix, directory):
    requests = splits_of(prefix, split=parse_split("90,0,10"))
    reports = build_requests(requests, cache_directory=directory)
    assert [report.description.index_split for report in reports] == ["train", "test"]
    per_split = splits_of(prefix, split=whole_split("valid"))
    assert [entry.stem.rpartition("-")[2] for entry in conditions(per_split)] == ["valid"]


def test_a_share_that_rounds_to_nothing_is_refused_before_anything_is_built(prefix, directory):
    requests = splits_of(prefix, split=parse_split("969, 30, 1"))
    with pytest.raises(
        InputError, match=r"the (valid|test) index of .*'969, 30, 1' has none of the 12"
    ) as caught:
        build_requests(requests, cache_directory=directory)
    assert caught.value.hint
    assert not os.path.exists(directory)


def test_a_split_of_empty_sequences_is_refused_by_name(tmp_path):
    prefix = write_dataset(str(tmp_path / "web"), [0, 0, 0])
    with pytest.raises(InputError, match=r"the train index of .*web.* have no tokens"):
        build_requests([request_for(prefix, split=parse_split("1"))])


def test_a_dataset_that_is_not_there_is_named(tmp_path):
    with pytest.raises(MissingFileError, match="dataset not found: "):
        build_requests([request_for(str(tmp_path / "none"))])


def test_the_same_request_twice_is_built_once(prefix, directory):
    requests = [request_for(prefix), request_for(prefix), request_for(prefix, drop_last_partial=False)]
    reports = build_requests(requests, cache_directory=directory)
    assert actions(reports) == ["built"] * 3
    assert len({entry_of(report).stem for report in reports}) == 1


@pytest.mark.parametrize("difference", ["prefix", "option"])
def test_two_contents_under_one_name_are_refused(prefix, directory, tmp_path, difference):
    other = write_dataset(str(tmp_path / "other"))
    changes = {"prefix": other} if difference == "prefix" else {"extra_token": False}
    requests = [request_for(prefix), request_for(**{"prefix": prefix, **changes})]
    with pytest.raises(UsageError, match="have the same names"):
        build_requests(requests, cache_directory=directory)
    if difference == "prefix":
        assert actions(build_requests(requests)) == ["built", "built"]


def test_each_dataset_is_opened_once(prefix, directory, tmp_path, monkeypatch):
    opened = []
    original = FingerprintedIndex.open
    monkeypatch.setattr(
        FingerprintedIndex, "open", classmethod(lambda _, path: (opened.append(path), original(path))[1])
    )
    other = write_dataset(str(tmp_path / "other"))
    requests = [
        request
        for length in (4, 8, 16)
        for path in (prefix, other)
        for request in splits_of(path, training_path=path, sequence_length=length)
    ]
    assert set(actions(build_requests(requests, cache_directory=directory, workers=4))) == {"built"}
    assert sorted(opened) == sorted([prefix, other])


def test_many_datasets_are_not_all_held_open(tmp_path, directory, monkeypatch):
    monkeypatch.setattr(build, "_OPEN_DATASETS", 2)
    prefixes = [write_dataset(str(tmp_path / f"d{i}"), LENGTHS[i:] + LENGTHS[:i]) for i in range(7)]
    requests = [request_for(path, training_path=path) for path in prefixes]
    assert set(actions(build_requests(requests, cache_directory=directory))) == {"built"}
    assert set(states(requests, directory)) == {"fresh"}


def test_a_rewritten_dataset_makes_the_cache_stale(prefix, directory):
    requests = splits_of(prefix)
    build_requests(requests, cache_directory=directory)
    before = contents(directory)
    write_dataset(prefix, LENGTHS[::-1])
    assert states(requests, directory) == ["differs"] * 3
    with pytest.raises(OutputExistsError, match=r"idx_xxh3_128 was .* and is ") as caught:
        build_requests(requests, cache_directory=directory)
    assert "--rebuild" in caught.value.hint
    assert contents(directory) == before
    assert actions(build_requests(requests, cache_directory=directory, rebuild=True)) == ["rebuilt"] * 3
    assert states(requests, directory) == ["fresh"] * 3


def test_one_stale_index_keeps_all_others_from_being_built(prefix, directory):
    train, valid, test = splits_of(prefix)
    build_requests([test], cache_directory=directory)
    write_dataset(prefix, LENGTHS[::-1])
    before = contents(directory)
    with pytest.raises(OutputExistsError):
        build_requests([train, valid, test], cache_directory=directory)
    assert contents(directory) == before


def test_a_flipped_bit_is_seen_by_digests_and_only_by_them(prefix, directory):
    (report,) = build_requests([request_for(prefix)], cache_directory=directory)
    path = Path(entry_of(report).array_path("document_index"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    for digests, state in ((False, "fresh"), (True, "damaged")):
        found = conditions([request_for(prefix)], cache_directory=directory, digests=digests)
        assert list(found.values()) == [state]


def test_a_rebuild_repairs_damage_that_only_digests_detect(prefix, directory):
    request = request_for(prefix)
    build_requests([request], cache_directory=directory)
    path = Path(entry_for(request, directory).array_path("document_index"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert [report.action for report in build_requests([request], cache_directory=directory)] == ["found"]
    assert [
        report.action for report in build_requests([request], cache_directory=directory, rebuild=True)
    ] == ["rebuilt"]
    assert path.read_bytes() == whole


def test_options_outside_the_hash_make_the_cache_stale(prefix, directory):
    requests = splits_of(prefix)
    build_requests(requests, cache_directory=directory)
    assert states(splits_of(prefix, drop_last_partial=False), directory) == ["fresh", "differs", "fresh"]
    assert states(splits_of(prefix, extra_token=False), directory) == ["differs"] * 3


def test_a_cache_of_megatrons_is_refused_and_rebuilt_on_request(prefix, directory):
    request = request_for(prefix)
    write_as_megatron(request, LENGTHS, directory)
    write_dataset(prefix, LENGTHS[1:])
    assert states([request], directory) == ["differs"]
    with pytest.raises(OutputExistsError, match="does not fit the current dataset"):
        build_requests([request], cache_directory=directory)
    swapped = [LENGTHS[2], LENGTHS[0], LENGTHS[1], *LENGTHS[3:]]
    write_dataset(prefix, swapped)
    assert states([request], directory) == ["differs"]
    before = contents(directory)
    with pytest.raises(OutputExistsError, match="was not built by tokshard: its content is") as caught:
        build_requests([request], cache_directory=directory)
    assert "pass --rebuild to replace it" in caught.value.hint
    assert contents(directory) == before
    (report,) = build_requests([request], cache_directory=directory, rebuild=True)
    for name, array in slow_arrays(request, swapped).items():
        assert Path(entry_of(report).array_path(name)).read_bytes() == saved(array)


def test_a_dataset_that_changes_while_it_is_used_is_noticed(prefix, directory, monkeypatch):
    monkeypatch.setattr(build, "_OPEN_DATASETS", 0)
    original = build.build_or_reuse

    def later(*arguments, **options):
        write_dataset(prefix, LENGTHS[::-1])
        return original(*arguments, **options)

    monkeypatch.setattr(build, "build_or_reuse", later)
    with pytest.raises(IntegrityError, match="changed while its indexes were built"):
        build_requests([request_for(prefix)], cache_directory=directory)
    assert states([request_for(prefix)], directory) == ["missing"]


class Listener(SilentProgress):
    def __init__(self):
        self.totals, self.updates, self.threads, self.finished = [], [], set(), 0

    def start(self, activity, bytes_total=None, bytes_resumed=0):
        self.totals.append(bytes_total)

    def update(self, state):
        self.threads.add(threading.get_ident())
        self.updates.append(state)

    def finish(self):
        self.finished += 1


def test_progress_ends_at_its_total_and_comes_from_the_calling_thread(prefix, directory):
    requests = splits_of(prefix)
    listener = Listener()
    reports = build_requests(requests, cache_directory=directory, progress=listener)
    entries = [entry_of(report) for report in reports]
    size = sum(os.path.getsize(entry.array_path(name)) for entry in entries for name in entry.arrays)
    assert [total for total in listener.totals if total is not None] == [size]
    assert listener.updates[-1].bytes_done == size
    assert listener.updates[-1].documents == sum(report.plan.documents for report in reports)
    assert listener.threads == {threading.get_ident()}
    assert listener.finished == len(listener.totals)


def test_fingerprints_know_the_manifest_only_if_it_is_of_these_files(tmp_path):
    from support.tokenize_runs import run_tokenize

    prefix = str(tmp_path / "web")
    (tmp_path / "web.jsonl").write_text('{"text": "one"}\n{"text": "three"}\n')
    run_tokenize(str(tmp_path / "web.jsonl"), prefix, workers=1)
    known = dataset_fingerprint(prefix)
    assert None not in (known.manifest_fingerprint, known.bin_pieces_xxh3_128)
    assert known.bin_bytes == os.path.getsize(f"{prefix}.bin")
    write_dataset(prefix)
    found = dataset_fingerprint(prefix)
    assert (found.manifest_fingerprint, found.bin_pieces_xxh3_128) == (None, None)
    assert found.idx_xxh3_128 is not None


def test_a_wait_for_another_process_is_told_of_once(prefix, directory):
    entry = entry_for(request_for(prefix), directory)
    other = WriterLock(entry.lock_path)
    other.__enter__()
    heard = []

    class Releasing(SilentProgress):
        def message(self, text):
            heard.append(text)
            time.sleep(0.3)
            other.__exit__(None, None, None)

    reports = build_requests([request_for(prefix)], cache_directory=directory, progress=Releasing())
    assert actions(reports) == ["built"]
    assert heard == [f"another process is building the train index of {prefix}: waiting for it"]


BUILDER = """
import json, os, sys, time
from tokshard.samples.index.build import plan_indexes
from tokshard.samples.index.options import IndexRequest
from tokshard.samples.index.splits import parse_split
wanted = json.loads(sys.argv[1])
requests = [
    IndexRequest(prefix=wanted["prefix"], training_path="p", split_name=name, split=parse_split("60,30,10"),
                 num_samples=wanted["num_samples"], sequence_length=8, tokenizer=wanted["tokenizer"])
    for name in ("train", "valid", "test")
]
print("ready", flush=True)
while not os.path.exists(wanted["go"]):
    time.sleep(0.001)
planned = plan_indexes(requests, cache_directory=wanted["directory"], workers=2)
reports = planned.build(rebuild=wanted["rebuild"])
print(json.dumps([report.action for report in reports]))
"""


def builders(count, prefix, directory, go, *, num_samples=20_000, rebuild=False):
    """Start processes that begin to build the same indexes at the same moment."""
    wanted = {"prefix": prefix, "directory": directory, "go": str(go), "num_samples": num_samples}
    argument = json.dumps({**wanted, "tokenizer": TOKENIZER, "rebuild": rebuild})
    command = [sys.executable, "-c", BUILDER, argument]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    for process in running:
        assert process.stdout.readline() == "ready\n", process.communicate()
    go.write_text("")
    return running


@pytest.mark.parametrize("rebuild", [False, True])
def test_processes_that_build_the_same_build_it_once(prefix, directory, tmp_path, rebuild):
    requests = splits_of(prefix, training_path="p", num_samples=20_000)
    if rebuild:
        build_requests(requests, cache_directory=directory)
        write_dataset(prefix, LENGTHS[::-1])
    running = builders(3, prefix, directory, tmp_path / "go", rebuild=rebuild)
    answers = [process.communicate(timeout=240) for process in running]
    assert [process.returncode for process in running] == [0, 0, 0], answers
    done = [json.loads(out) for out, _ in answers]
    for split in range(3):
        wanted = ["found", "found", "rebuilt" if rebuild else "built"]
        assert sorted(actions_of_splits[split] for actions_of_splits in done) == sorted(wanted)
    assert states(requests, directory) == ["fresh"] * 3
    assert not [name for name in os.listdir(directory) if name.startswith(".") or name.endswith(".lock")]


def test_a_builder_that_is_killed_leaves_nothing_that_looks_whole_and_no_lock(prefix, directory, tmp_path):
    requests = splits_of(prefix, training_path="p", num_samples=300_000)
    (process,) = builders(1, prefix, directory, tmp_path / "go", num_samples=300_000)
    while not os.path.isdir(directory) or not os.listdir(directory):
        assert process.poll() is None, process.communicate()
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert set(states(requests, directory)) <= {"missing", "fresh"}
    reports = build_requests(requests, cache_directory=directory, wait_seconds=0.0)
    assert set(actions(reports)) <= {"built", "found"}
    assert states(requests, directory) == ["fresh"] * 3
    assert not [name for name in os.listdir(directory) if name.startswith(".") or name.endswith(".lock")]
    assert np.array_equal(
        np.load(entry_for(requests[0], directory).array_path("shuffle_index")),
        np.load(entry_of(reports[0]).array_path("shuffle_index")),
    )
