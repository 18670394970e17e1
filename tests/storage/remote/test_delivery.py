"""Outputs in a store: complete under their manifest or not there, whatever happens on the way."""

import gzip
import itertools
import json
import os
import signal
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from support.command_line import SAMPLE, tokshard
from support.object_store import (
    SLOW_DOWN,
    STALLED,
    UNHEARD,
    Bucket,
    Fault,
    Request,
    always,
    each,
    first,
)
from support.schemas import defects_of
from support.tokenize_runs import dry_run, run_tokenize
from tokshard.core.progress import ProgressUpdate, SilentProgress
from tokshard.dataset.merge.job import MergeOptions, merge
from tokshard.errors import InputError, OutputExistsError, StorageError, UsageError
from tokshard.storage.lock import WriterLock
from tokshard.storage.remote import objects
from tokshard.text.tokenize.report import TokenizeReport
from tokshard.text.tokenize.workers.executor import InlineExecutor

PART_BYTES = 100_000
UNIT_BYTES = 50_000
WRITES = [
    "POST .bin uploads",
    *["PUT .bin partNumber"] * 5,
    "POST .bin",
    "PUT .idx",
    "PUT .tokshard/units.jsonl",
    "PUT .tokshard/provenance.bin",
    "PUT .tokshard/manifest.json",
]
COMPLETE, MANIFEST = WRITES.index("POST .bin"), len(WRITES) - 1


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKSHARD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(objects, "PART_BYTES", PART_BYTES)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A corpus whose tokens are five parts."""
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b"".join((SAMPLE / "stories.jsonl").read_bytes().splitlines(keepends=True)[:120]))
    return path


def tokenize(corpus: Path, output: str, **options) -> TokenizeReport:
    return run_tokenize(
        str(corpus),
        output,
        unit_size=UNIT_BYTES,
        executor=options.pop("executor", InlineExecutor()),
        **options,
    )


def command(corpus: Path, output: str, *options: str, **more) -> CompletedProcess[str]:
    arguments = ("tokenize", corpus, "-o", output, "--unit-size", UNIT_BYTES, *options)
    return tokshard(*arguments, part_bytes=PART_BYTES, cwd=corpus.parent, **more)


def expected(corpus: Path) -> dict[str, bytes]:
    """Return the files of the same run into a directory."""
    base = corpus.parent / "local"
    base.mkdir()
    tokenize(corpus, str(base / "web"))
    return {str(path.relative_to(base)): path.read_bytes() for path in base.rglob("*") if path.is_file()}


def uploaded(bucket: Bucket, below: str = "out") -> dict[str, bytes]:
    keys = [key for key in sorted(bucket.keys()) if key.startswith(f"{below}/")]
    return {key.removeprefix(f"{below}/"): bucket.get(key) for key in keys}


def staged(corpus: Path) -> list[str]:
    """Return what is left in the staging directories."""
    return sorted(path.name for path in (corpus.parent / "cache" / "staging").rglob("*"))


def steps(bucket: Bucket) -> list[str]:
    """Describe the writes so far in short."""
    return [
        " ".join(
            [
                request.method,
                request.key.partition("/web")[2],
                *sorted(set(request.query) - {"uploadId", "x-id"}),
            ]
        )
        for request in bucket.proxy.writes()
    ]


def is_put_of(suffix: str):
    return lambda request: request.method == "PUT" and request.key.endswith(suffix)


def test_an_output_is_uploaded_in_parts_with_the_manifest_last(bucket: Bucket, corpus: Path):
    done = command(corpus, f"{bucket.url}/out/web")
    assert done.returncode == 0, done.stderr
    assert steps(bucket) == WRITES
    assert uploaded(bucket) == expected(corpus)
    assert f"uploading {corpus.parent}/cache/staging/web-" in done.stderr
    assert f"next: tokshard inspect {bucket.url}/out/web" in done.stdout
    assert staged(corpus) == []


def test_what_is_there_already_is_seen_without_work(bucket: Bucket, corpus: Path):
    url = f"{bucket.url}/out/web"
    made = tokenize(corpus, url)
    bucket.proxy.reset()
    again = tokenize(corpus, url)
    assert again.action == "found"
    assert again.outputs == made.outputs
    assert dry_run(str(corpus), url, unit_size=UNIT_BYTES).state == "up-to-date"
    with pytest.raises(OutputExistsError, match=r"web\.bin exists already"):
        tokenize(corpus, url, append_eod=False)
    assert dry_run(str(corpus), url, append_eod=False).state == "exists"
    assert steps(bucket) == []
    assert staged(corpus) == []


def test_force_removes_the_manifest_before_anything_is_replaced(bucket: Bucket, corpus: Path):
    url = f"{bucket.url}/out/web"
    tokenize(corpus, url)
    bucket.proxy.reset()
    tokenize(corpus, url, provenance=False, force=True)
    removed = [".tokshard/manifest.json", ".idx", ".tokshard/provenance.bin"]
    assert steps(bucket)[:3] == [f"DELETE {name}" for name in removed]
    assert steps(bucket)[-1] == WRITES[-1]
    assert "web.tokshard/provenance.bin" not in uploaded(bucket)


def test_killed_at_every_write_and_run_again(bucket: Bucket, corpus: Path):
    right = expected(corpus)
    both = {COMPLETE, MANIFEST}
    cases = [(k, heard) for k in range(len(WRITES)) for heard in (False, True) if k in both or heard == k % 2]
    for k, heard in cases:
        place = f"{k}-{heard}"
        bucket.proxy.reset()
        processes: list[int] = []
        bucket.proxy.judge = dying(processes, k, heard=heard)
        killed = command(corpus, f"{bucket.url}/{place}/web", started=processes.append)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        bucket.proxy.settle()
        bucket.proxy.judge = lambda _: None
        assert ("web.tokshard/manifest.json" in uploaded(bucket, place)) is ((k, heard) == (MANIFEST, True))
        bucket.proxy.reset()
        assert not tokenize(corpus, f"{bucket.url}/{place}/web").encoded_bytes, "only the upload is repeated"
        assert uploaded(bucket, place) == right
        assert staged(corpus) == []


def dying(processes: list[int], k: int, *, heard: bool):
    """Return a judge by whom a process dies at its k-th write, before or after the store has heard it."""
    writes = itertools.count()  # counted by several threads

    def judge(request: Request) -> Fault | None:
        if not request.is_write or (number := next(writes)) < k:
            return None
        os.kill(processes[0], signal.SIGKILL)
        return UNHEARD if heard and number == k else Fault(drop="before")

    return judge


@pytest.mark.parametrize("write", [1, COMPLETE + 1], ids=["a part", "a small file"])
def test_ctrl_c_ends_an_upload_that_stalls(bucket: Bucket, corpus: Path, write: int):
    processes: list[int] = []
    writes = itertools.count()  # counted by several threads

    def judge(request: Request) -> Fault | None:
        if not request.is_write or (number := next(writes)) < write:
            return None
        if number == write:
            os.kill(processes[0], signal.SIGINT)
        return STALLED

    bucket.proxy.judge = judge
    done = command(corpus, f"{bucket.url}/out/web", started=processes.append)
    assert done.returncode == 130
    assert "error: stopped; finished work is kept" in done.stderr
    bucket.proxy.reset()
    tokenize(corpus, f"{bucket.url}/out/web")
    assert uploaded(bucket) == expected(corpus)


@pytest.mark.parametrize("forced", [False, True], ids=["new", "forced"])
def test_a_store_that_refuses_for_good_leaves_no_manifest_and_the_work(
    bucket: Bucket, corpus: Path, forced: bool
):
    url = f"{bucket.url}/out/web"
    if forced:
        tokenize(corpus, url, append_eod=False)
    bucket.proxy.judge = always(SLOW_DOWN, is_put_of(".idx"))
    done = command(corpus, url, *["--force"] * forced, env={"TOKSHARD_REMOTE_RETRIES": "2"})
    assert done.returncode == 7
    assert f"error: cannot write {url}.idx: failed 3 times, most recently with: the test" in done.stderr
    hint = "run the same command again to upload the finished output, which is in"
    assert f"{hint} {corpus.parent}/cache/staging/web-" in done.stderr
    assert "web.tokshard/manifest.json" not in uploaded(bucket)
    bucket.proxy.reset()
    report = tokenize(corpus, url, force=forced)
    assert report.encoded_bytes == 0, "only the upload is repeated"
    assert steps(bucket) == WRITES
    assert uploaded(bucket) == expected(corpus)
    assert staged(corpus) == []


def test_an_upload_survives_a_store_that_fails_now_and_then(bucket: Bucket, corpus: Path):
    bucket.proxy.judge = each(
        first(3, SLOW_DOWN, is_put_of(".bin")),
        first(3, Fault(drop="before"), is_put_of(".bin")),
        first(2, SLOW_DOWN, lambda request: request.method == "HEAD"),
        # The store has done what was asked, and the answer gets lost.
        first(1, UNHEARD, lambda request: request.method == "POST" and "uploadId" in request.query),
        first(1, UNHEARD, is_put_of(".idx")),
    )
    tokenize(corpus, f"{bucket.url}/out/web")
    assert uploaded(bucket) == expected(corpus)


@pytest.mark.parametrize("fault", [SLOW_DOWN, Fault(drop="before"), Fault(status=500, code="InternalError")])
def test_a_part_that_fails_is_sent_again_without_the_others(bucket: Bucket, corpus: Path, fault: Fault):
    bucket.proxy.judge = first(2, fault, lambda request: request.query.get("partNumber") == ["3"])
    tokenize(corpus, f"{bucket.url}/out/web")
    assert sorted(steps(bucket)) == sorted([*WRITES, *2 * ["PUT .bin partNumber"]])
    assert uploaded(bucket) == expected(corpus)


def test_an_upload_that_the_store_has_forgotten_is_restarted(bucket: Bucket, corpus: Path):
    forgotten = Fault(status=404, code="NoSuchUpload")
    bucket.proxy.judge = first(1, forgotten, lambda request: request.query.get("partNumber") == ["4"])
    tokenize(corpus, f"{bucket.url}/out/web")
    assert uploaded(bucket) == expected(corpus)


def test_a_dataset_of_another_writer_is_not_replaced_by_a_repeated_upload(
    bucket: Bucket, corpus: Path, monkeypatch: pytest.MonkeyPatch
):
    url = f"{bucket.url}/out/web"
    monkeypatch.setenv("TOKSHARD_REMOTE_RETRIES", "0")
    bucket.proxy.judge = always(SLOW_DOWN, is_put_of("manifest.json"))
    with pytest.raises(StorageError, match="failed once"):
        tokenize(corpus, url)
    bucket.proxy.reset()
    tokenize(corpus, f"{bucket.url}/other/web", append_eod=False)
    for name, content in uploaded(bucket, "other").items():
        bucket.put(f"out/{name}", content)
    with pytest.raises(OutputExistsError, match=r"web\.bin exists already"):
        tokenize(corpus, url)
    assert uploaded(bucket) == uploaded(bucket, "other")
    tokenize(corpus, url, force=True)
    assert uploaded(bucket) == expected(corpus)
    assert staged(corpus) == []


def test_a_dataset_that_waits_for_its_upload_is_not_replaced_silently(
    bucket: Bucket, corpus: Path, monkeypatch: pytest.MonkeyPatch
):
    url = f"{bucket.url}/out/web"
    monkeypatch.setenv("TOKSHARD_REMOTE_RETRIES", "0")
    bucket.proxy.judge = always(SLOW_DOWN, lambda request: request.is_write)
    with pytest.raises(StorageError):
        tokenize(corpus, url)
    bucket.proxy.reset()
    assert dry_run(str(corpus), url, unit_size=UNIT_BYTES).state == "resume"
    with pytest.raises(OutputExistsError, match=r"waits to be uploaded .* --append-eod was on and is now o"):
        tokenize(corpus, url, append_eod=False)
    tokenize(corpus, url, append_eod=False, force=True)
    assert uploaded(bucket)["web.bin"] != expected(corpus)["web.bin"]


def test_an_output_that_is_up_to_date_leaves_the_work_of_others(bucket: Bucket, corpus: Path):
    class Stopping(SilentProgress):
        def update(self, state: ProgressUpdate) -> None:
            if state.documents > 60:  # the first of two units is finished
                raise KeyboardInterrupt

    url = f"{bucket.url}/out/web"
    tokenize(corpus, url)
    with pytest.raises(KeyboardInterrupt):
        tokenize(corpus, url, append_eod=False, force=True, progress=Stopping())
    unfinished = staged(corpus)
    assert any(name.endswith(".part") for name in unfinished)
    (directory,) = (corpus.parent / "cache" / "staging").iterdir()
    with WriterLock(str(directory / "web.tokshard" / "lock")):  # another process works there
        assert tokenize(corpus, url).action == "found"
    assert staged(corpus) == unfinished
    assert tokenize(corpus, url).action == "found"
    assert staged(corpus) == unfinished
    assert tokenize(corpus, url, append_eod=False, force=True).units_reused
    assert staged(corpus) == []


def test_an_interrupted_run_is_resumed_where_it_was_made(bucket: Bucket, corpus: Path):
    class Stopping(SilentProgress):
        done = 0

        def update(self, state: ProgressUpdate) -> None:
            if self.done == state.bytes_done:  # after the last batch of the first unit
                raise KeyboardInterrupt
            self.done = state.bytes_done

    url = f"{bucket.url}/out/web"
    with pytest.raises(KeyboardInterrupt):
        tokenize(corpus, url, progress=Stopping())
    assert steps(bucket) == []
    assert tokenize(corpus, url).units_reused == 1
    assert uploaded(bucket) == expected(corpus)


def test_several_fields_are_several_datasets(bucket: Bucket, tmp_path: Path):
    text = b"".join(b'{"text": "a %d", "title": "b"}\n' % number for number in range(50))
    source = bucket.put("in/web.jsonl.gz", gzip.compress(text))
    url = f"{bucket.url}/out/web"
    arguments = ("tokenize", source, "--field", "text", "--field", "title")
    planned = tokshard(*arguments, "-o", url, "--dry-run", "--json", cwd=tmp_path)
    plan = json.loads(planned.stdout)
    assert defects_of(plan) == []
    assert [output["path_prefix"] for output in plan["outputs"]] == [
        f"{url}_text_document",
        f"{url}_title_document",
    ]
    assert plan["local_dir"].startswith(f"{tmp_path}/cache/staging/web-")
    assert not (tmp_path / "cache" / "staging").exists()
    done = tokshard(*arguments, "-o", url, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert defects_of(json.loads(bucket.get("out/web_text_document.tokshard/manifest.json"))) == []
    manifests = [step for step in steps(bucket) if "manifest" in step]
    assert manifests == steps(bucket)[-2:]
    run_tokenize(source, str(tmp_path / "web"), fields=("text", "title"))
    for name in ("text", "title"):
        assert (tmp_path / f"web_{name}_document.bin").read_bytes() == bucket.get(
            f"out/web_{name}_document.bin"
        )


def test_both_outputs_of_a_holdout_are_uploaded(bucket: Bucket, tmp_path: Path):
    text = b"".join(b'{"text": "a %d"}\n' % number for number in range(50))
    source = bucket.put("in/web.jsonl.gz", gzip.compress(text))
    options = {"holdout": 0.4, "limit": 30, "sample": 0.9}
    report = run_tokenize(source, f"{bucket.url}/out/web", **options)
    assert [output.path_prefix for output in report.outputs] == [
        f"{bucket.url}/out/web_{s}" for s in ("train", "valid")
    ]
    run_tokenize(source, str(tmp_path / "web"), **options)
    for split in ("train", "valid"):
        assert (tmp_path / f"web_{split}.bin").read_bytes() == bucket.get(f"out/web_{split}.bin")
    assert run_tokenize(source, f"{bucket.url}/out/web", **options).action == "found"


def test_the_progress_shows_the_upload(bucket: Bucket, corpus: Path):
    class Noting(SilentProgress):
        def __init__(self) -> None:
            self.totals: list[int | None] = []
            self.updates: list[ProgressUpdate] = []

        def start(self, activity: str, bytes_total: int | None = None, bytes_resumed: int = 0) -> None:
            self.totals.append(bytes_total)

        def update(self, state: ProgressUpdate) -> None:
            self.updates.append(state)

    noting = Noting()
    report = tokenize(corpus, f"{bucket.url}/out/web", progress=noting)
    size = sum(map(len, uploaded(bucket).values()))
    assert [total for total in noting.totals if total is not None] == [corpus.stat().st_size, size]
    assert noting.updates[-1] == ProgressUpdate(size, report.counts.documents, report.outputs[0].tokens)


@pytest.mark.parametrize(
    ("output", "options", "words"),
    [
        ("s3://bucket", {}, "must be a path prefix in a bucket, got the bucket"),
        ("s3://bucket/out/", {}, "must be a path prefix, got the directory"),
        ("s3://bucket/web.bin", {}, "must be a path prefix without .bin"),
        ("nothing://bucket/web", {}, "unknown URL scheme nothing://"),
    ],
)
def test_outputs_that_cannot_be_meant(corpus: Path, output: str, options: dict, words: str):
    with pytest.raises(UsageError, match=words):
        tokenize(corpus, output, **options)
    assert sorted(os.listdir(corpus.parent)) == ["corpus.jsonl"]


def test_a_missing_bucket_is_found_before_the_work(bucket: Bucket, corpus: Path):
    with pytest.raises(InputError, match="bucket not found"):
        tokenize(corpus, f"{bucket.url}-of-nobody/web")
    assert staged(corpus) == []


def test_an_input_is_not_overwritten_by_its_own_output(bucket: Bucket):
    url = bucket.put("out/web.bin", b'{"text": "a"}\n')
    with pytest.raises(UsageError, match="would be overwritten by the output"):
        run_tokenize(url, f"{bucket.url}/out/web", force=True)


def test_merge_says_that_it_writes_to_file_systems(bucket: Bucket, corpus: Path):
    tokenize(corpus, str(corpus.parent / "a"))
    with pytest.raises(UsageError, match="merge writes to a file system, got the URL"):
        merge(MergeOptions(inputs=[str(corpus.parent / "a")], output=f"{bucket.url}/out/all"))
