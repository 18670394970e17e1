"""Inputs in a store: the same bytes as from files, whatever the network does meanwhile."""

import bz2
import gzip
import json
import lzma
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.command_line import SAMPLE, tokshard
from support.object_store import DROPPED, SLOW_DOWN, Bucket, Fault, each, first
from support.tokenize_runs import pair, run_tokenize
from tokshard.errors import InputError, StorageError, TokenizerError, UsageError
from tokshard.storage.remote import objects
from tokshard.text.corpus.files import discover
from tokshard.text.tokenize.workers.executor import InlineExecutor
from tokshard.text.tokenize.workers.pool import ProcessPool
from tokshard.text.tokenizer.definition import load_tokenizer

STORIES = (SAMPLE / "stories.jsonl").read_bytes()
MANUALS = (SAMPLE / "manuals.jsonl").read_bytes()


def parquet(directory: Path, kind: str) -> bytes:
    """Return the sample as a table with several row groups."""
    pyarrow = pytest.importorskip("pyarrow", reason="needs the extra parquet")
    from pyarrow import parquet as writer

    rows = pyarrow.table({"text": [json.loads(line)["text"] for line in STORIES.splitlines()]})
    path = directory / "table"
    if kind == "parquet":
        writer.write_table(rows, path, row_group_size=50)
    else:
        with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_file(file, rows.schema) as table:
            table.write_table(rows, max_chunksize=50)
    return path.read_bytes()


def data_of(prefix: Path) -> list[bytes]:
    """Return what does not depend on where the inputs lie."""
    places = (
        f"{prefix}.bin",
        f"{prefix}.idx",
        f"{prefix}.tokshard/units.jsonl",
        f"{prefix}.tokshard/provenance.bin",
    )
    return [Path(place).read_bytes() for place in places]


@pytest.mark.parametrize("kind", ["plain", "gz", "bz2", "xz", "parquet", "arrow"])
def test_the_same_dataset_from_a_store_as_from_a_file(bucket: Bucket, tmp_path: Path, kind: str):
    content = {
        "plain": lambda: STORIES,
        "gz": lambda: gzip.compress(STORIES),
        "bz2": lambda: bz2.compress(STORIES),
        "xz": lambda: lzma.compress(STORIES, preset=0),
        "parquet": lambda: parquet(tmp_path, "parquet"),
        "arrow": lambda: parquet(tmp_path, "arrow"),
    }[kind]()
    (tmp_path / "here.data").write_bytes(content)
    url = bucket.put("there.data", content)
    options = {"unit_size": 50_000, "executor": InlineExecutor()}
    run_tokenize(str(tmp_path / "here.data"), str(tmp_path / "local"), **options)
    report = run_tokenize(url, str(tmp_path / "remote"), **options)
    assert report.outputs[0].dataset.units > 3
    assert data_of(tmp_path / "remote") == data_of(tmp_path / "local")


def test_directory_in_a_store_is_read_without_caches_and_earlier_outputs(bucket: Bucket, tmp_path: Path):
    table = parquet(tmp_path, "arrow")
    state = {"_data_files": [{"filename": "data-1.arrow"}, {"filename": "data-0.arrow"}]}
    for name, content in {
        "in/b/state.json": json.dumps(state).encode(),
        "in/b/dataset_info.json": b"{}",
        "in/b/data-0.arrow": table,
        "in/b/data-1.arrow": table,
        "in/b/cache-0.arrow": table,
        "in/a.jsonl": STORIES,
        "in/c.txt": b"text",
        "in/_d/d.jsonl": STORIES,
        "in/out.tokshard/manifest.json": b"{}",
        "in/out.tokshard/units.jsonl": b"{}",
    }.items():
        bucket.put(name, content)
    url = bucket.put("in/_SUCCESS", b"").removesuffix("_SUCCESS")
    messages: list[str] = []
    files = discover([url], tell=messages.append)
    assert [file.path.removeprefix(url) for file in files] == ["a.jsonl", "b/data-1.arrow", "b/data-0.arrow"]
    assert messages == [
        f"{url}b: a saved dataset, 2 files",
        f"left out of {url}: 1 .txt, 1 _d/, 1 out.tokshard/; to read a file, pass its path or a glob",
    ]


def test_worker_processes_read_ranges_through_a_network_that_fails(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(objects, "BLOCK_BYTES", 100_000)  # of the look at the first record
    (tmp_path / "here.jsonl").write_bytes(STORIES)
    url = bucket.put("there.jsonl", STORIES)
    bucket.proxy.judge = each(
        first(3, DROPPED, lambda request: request.is_read),
        first(3, Fault(cut_at=5000), lambda request: request.is_read),
        first(3, SLOW_DOWN),
    )
    run_tokenize(str(tmp_path / "here.jsonl"), str(tmp_path / "local"), unit_size=100_000)
    run_tokenize(url, str(tmp_path / "remote"), unit_size=100_000, executor=ProcessPool(2))
    assert data_of(tmp_path / "remote") == data_of(tmp_path / "local")
    ranges = [read.range for read in bucket.proxy.reads("there.jsonl") if read.range and read.range[1] > 512]
    assert max(end - begin for begin, end in ranges) < 200_000, "a worker reads its unit, not the file"


def test_a_dropped_connection_costs_a_compressed_file_one_range(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(objects, "BLOCK_BYTES", 20_000)
    content = gzip.compress(STORIES, mtime=0)
    url = bucket.put("there.jsonl.gz", content)
    (tmp_path / "here.jsonl.gz").write_bytes(content)
    bucket.proxy.judge = first(
        2, Fault(cut_at=10_000), lambda request: request.range is not None and request.range[0] > 50_000
    )
    run_tokenize(url, str(tmp_path / "remote"))
    run_tokenize(str(tmp_path / "here.jsonl.gz"), str(tmp_path / "local"))
    assert data_of(tmp_path / "remote") == data_of(tmp_path / "local")
    asked = sum(end - begin for begin, end in (read.range for read in bucket.proxy.reads() if read.range))
    one_range = 20_000 + (1 << 16)
    # The head; two ranges, for the first record; all; and twice the range that was dropped.
    assert asked <= 512 + 2 * one_range + len(content) + 2 * one_range


def test_globs_prefixes_and_lists_name_objects_in_natural_order(bucket: Bucket, tmp_path: Path):
    for number in (10, 2, 1):
        bucket.put(f"web/part-{number}.jsonl", b'{"text": "a"}\n')
    bucket.put("web/_SUCCESS", b"")
    bucket.put("web/notes.txt", b"no")
    bucket.put("web/.hidden.jsonl", b"no")
    parts = [f"{bucket.url}/web/part-{number}.jsonl" for number in (1, 2, 10)]

    def names(*arguments: str) -> list[str]:
        return [file.path for file in discover(arguments)]

    assert names(f"{bucket.url}/web/part*") == parts
    assert names(f"{bucket.url}/web/") == names(f"{bucket.url}/web") == parts
    listed = bucket.put("list.txt", f"# all\n{parts[2]}\n{bucket.url}/web/part-[12].jsonl\n".encode())
    assert names(f"@{listed}") == [parts[2], parts[0], parts[1]]
    (tmp_path / "list.txt").write_text("\n".join(parts))
    assert names(f"@{tmp_path / 'list.txt'}") == parts
    odd = bucket.put("web/[odd].jsonl", b"{}\n")
    assert names(odd) == [odd]
    with pytest.raises(UsageError, match="passed twice"):
        discover([parts[0], f"{bucket.url}/web/"])


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("/nothing.jsonl", "object not found"),
        ("/nothing/", "contains no inputs"),
        ("/nothing/*.jsonl", "no objects match"),
        ("-of-nobody/web.jsonl", "bucket not found"),
    ],
)
def test_what_is_not_there_is_said_in_one_sentence(bucket: Bucket, argument: str, words: str):
    with pytest.raises(InputError, match=words) as caught:
        discover([bucket.url + argument])
    assert caught.value.exit_code == 3


def test_foreign_content_is_refused_by_its_first_bytes(bucket: Bucket):
    with pytest.raises(InputError, match="a zip archive"):
        discover([bucket.put("web.jsonl", b"PK\x03\x04 and more")])
    with pytest.raises(InputError, match="UTF-16"):
        discover([bucket.put("web.jsonl", '{"text": "a"}'.encode("utf-16"))])


@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "gz"])
def test_an_object_that_changes_during_the_run_is_noticed(bucket: Bucket, tmp_path: Path, compressed: bool):
    def pack(text: bytes) -> bytes:
        return gzip.compress(text) if compressed else text

    url = bucket.put("web.jsonl", pack(STORIES))

    class Changing(InlineExecutor):
        def run(self, *arguments):
            bucket.put("web.jsonl", pack(MANUALS + MANUALS))
            yield from super().run(*arguments)

    with pytest.raises(InputError, match="was changed while it was read"):
        run_tokenize(url, str(tmp_path / "out"), executor=Changing())
    assert not (tmp_path / "out.bin").exists()


@pytest.mark.parametrize("same", [True, False])
def test_units_of_an_object_are_reused_if_its_content_is_the_same(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same: bool
):
    monkeypatch.setenv("TOKSHARD_REMOTE_RETRIES", "0")
    url = bucket.put("web.jsonl", STORIES)
    bucket.proxy.judge = lambda request: SLOW_DOWN if request.range and request.range[0] > 300_000 else None
    with pytest.raises(StorageError, match="failed once"):
        run_tokenize(url, str(tmp_path / "out"), unit_size=100_000, executor=InlineExecutor())
    bucket.proxy.reset()
    first_line, _, rest = STORIES.partition(b"\n")
    bucket.put("web.jsonl", STORIES if same else rest + first_line + b"\n")
    report = run_tokenize(url, str(tmp_path / "out"), unit_size=100_000, executor=InlineExecutor())
    assert (report.units_reused > 0) == same
    run_tokenize(url, str(tmp_path / "clean"), unit_size=100_000)
    assert pair(tmp_path / "out") == pair(tmp_path / "clean")


def test_a_tokenizer_in_a_store_is_the_same_as_on_a_disk(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TOKSHARD_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        bucket.put(f"tok/{name}", (SAMPLE / name).read_bytes())
    here = load_tokenizer(str(SAMPLE))
    for url in (f"{bucket.url}/tok", f"{bucket.url}/tok/", f"{bucket.url}/tok/tokenizer.json"):
        assert load_tokenizer(url).identity == here.identity
    bucket.proxy.reset()
    assert load_tokenizer(f"{bucket.url}/tok").identity == here.identity
    assert bucket.proxy.reads() == [], "the copies in the cache are used"
    with pytest.raises(TokenizerError, match="tokenizer not found"):
        load_tokenizer(f"{bucket.url}/tok/other.json")


def test_a_vocabulary_with_merges_in_a_store(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TOKSHARD_CACHE_DIR", str(tmp_path / "cache"))
    files = {
        "vocab.json": b'{"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3}',
        "merges.txt": b"#version: 0.2\na b\n",
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        bucket.put(f"two/{name}", content)
    here = load_tokenizer(str(tmp_path / "vocab.json"))
    for url in (f"{bucket.url}/two/", f"{bucket.url}/two/vocab.json"):
        assert load_tokenizer(url).identity == here.identity


def test_commands_explain_missing_credentials(bucket: Bucket, tmp_path: Path):
    url = bucket.put("web.jsonl", STORIES)
    done = tokshard("tokenize", url, env={"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, cwd=tmp_path)
    assert done.returncode == 7
    assert f"error: cannot read {url}: Unable to locate credentials\n" in done.stderr
    assert "hint: set AWS_ACCESS_KEY_ID" in done.stderr


def test_without_the_extra_a_url_is_explained_in_one_sentence(tmp_path: Path):
    code = (
        "import sys; sys.modules['fsspec'] = None; from tokshard.cli.main import main;"
        "sys.argv = ['tokshard', 'tokenize', 's3://bucket/web.jsonl']; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 2
    assert "requires fsspec and s3fs, which are not installed" in done.stderr
    assert "hint: pip install fsspec s3fs" in done.stderr
    assert os.listdir(tmp_path) == []
