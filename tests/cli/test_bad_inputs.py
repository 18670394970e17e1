"""P64: a command that cannot read a file ends in seconds, with exit code, error and hint.

The table has a row for each kind of file and a column for each way in which a file is bad. A cell has the
exit code of each command that reads the file. Forked commands run all cells, the installed command one a row.
"""

from __future__ import annotations

import contextlib
import gc
import gzip
import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from support.bad_files import BAD, COMMANDS, CONVERT, HOSTILE, write_good_files
from support.command_line import FAILURE_SECONDS, INSTALLED, failure, installed, tokshard
from support.tokenize_runs import run_tokenize
from tokshard.core.json_text import MAX_JSON_BYTES
from tokshard.dataset.manifest import read_manifest
from tokshard.errors import InputError, IntegrityError

pytest.importorskip("pyarrow")
# A digit is the exit code of a command, in the order of COMMANDS. 0: the command does not read what is bad,
# or the file is good in another way, such as an empty file of JSON lines. 1: the command lists the defect.
HEADER, *ROWS = [
    line.split() for line in (Path(__file__).parents[1] / "golden/bad_inputs.txt").read_text().splitlines()
]
CODES = {file: dict(zip(HEADER[1:], cells, strict=True)) for file, *cells in ROWS}
PROGRAM = Path(__file__).parents[1] / "support/bad_files_program.py"


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    directory = tmp_path_factory.mktemp("good")
    write_good_files(directory)
    return directory


@pytest.fixture
def bad(good, tmp_path, monkeypatch):
    """Return a function that copies the good files and makes one of them bad, and returns its name."""
    number = iter(range(1000))

    def copy(pattern, way):
        place = tmp_path / str(next(number))
        shutil.copytree(good, place)
        monkeypatch.chdir(place)
        (path,) = sorted(Path().glob(pattern))[:1]
        BAD[way](path)
        return str(path)

    return copy


def forked(words):
    guards = []

    def started(process):
        guards.append(threading.Timer(3 * FAILURE_SECONDS, end, [process]))
        guards[0].start()

    def end(process):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)

    done = tokshard(*words, program=PROGRAM, started=started)
    guards[0].cancel()
    return done


def test_table_has_the_exit_code_of_each_command_for_each_file_and_way():
    assert CODES.keys() == COMMANDS.keys()
    for file, row in CODES.items():
        assert {way: len(codes) for way, codes in row.items()} == dict.fromkeys(BAD, len(COMMANDS[file]))


@pytest.mark.parametrize("way", BAD)
@pytest.mark.parametrize("file", COMMANDS)
def test_bad_file_ends_each_command_with_code_error_and_hint(bad, file, way):
    codes = ""
    for words in COMMANDS[file]:
        name = bad(file, way)
        done = forked([word.replace("FILE", name) for word in words])
        codes += str(done.returncode)
        if done.returncode > 1:
            _, _, hint = failure(done)
            assert hint, done.stderr
        assert "Traceback" not in done.stderr, done.stderr
    assert codes == CODES[file][way]


def installed_cases():
    """Yield each file with the way in which the installed command meets it, another one for each file."""
    for number, (file, row) in enumerate(CODES.items()):
        # The command runs as root in CI, which may read every file; and each pipe takes 5 s.
        ways = [way for way, codes in row.items() if max(codes) > "1" and way not in {"unreadable", "pipe"}]
        if file == "launch.sh":
            ways = ["pipe"]
        if ways:  # The commands list each defect of a description, and end with 0 or 1.
            yield file, ways[number % len(ways)]


@pytest.mark.parametrize(("file", "way"), [*installed_cases()])
def test_bad_file_ends_the_installed_command_with_code_error_and_hint(bad, file, way):
    codes = CODES[file][way]
    number = next(index for index, code in enumerate(codes) if code > "1")
    name = bad(file, way)
    done = installed(*[word.replace("FILE", name) for word in COMMANDS[file][number]])
    code, _, hint = failure(done)
    assert hint
    assert str(code) == codes[number]


JSON_FILES = {
    "web.tokshard/manifest.json": ("inspect", "web"),
    "mix/blend.json": ("inspect", "mix"),
    "plan/plan.json": ("inspect", "plan"),
    "plan/rank-00001.json": ("inspect", "plan", "--rank", "1"),
    "mix/cache/6fc3fc642851b27e17d7a7529a90f14a-GPTDataset-train-description.txt": (
        ("build-indices", "web", "--like", "FILE", "--cache-dir", "new/cache")
    ),
    "olmo/.tokshard/export.json": ("convert", "olmo", "--from", "olmo", *CONVERT),
}


@pytest.mark.parametrize("way", HOSTILE)
@pytest.mark.parametrize("file", JSON_FILES)
def test_hostile_json_ends_the_installed_command_with_the_file_and_its_defect(place, file, way):
    change, message = HOSTILE[way]
    (place / file).write_bytes(change((place / file).read_bytes()))
    words = [word.replace("FILE", file) for word in JSON_FILES[file]]
    code, error, hint = failure(installed(*words, memory=4 << 30))
    assert code == (3 if "--like" in words else 6)
    assert error.startswith(file)
    assert message in error
    assert len(error) < 300
    assert hint


def test_largest_manifest_of_nested_arrays_takes_limited_memory_and_time(place):
    """50 bytes of memory for each byte of the file."""
    (place / "web.tokshard/manifest.json").write_bytes(nested_arrays(MAX_JSON_BYTES))
    # 4 s of processor time, and more on a busy machine.
    code, error, _ = failure(installed("inspect", "web", memory=6 << 30, seconds=30))
    assert (code, error.partition(":")[0]) == (6, "web.tokshard/manifest.json")


def nested_arrays(size):
    arrays = b"[" * 800 + b"]" * 800 + b","
    return b'{"x": [' + arrays * (size // len(arrays) - 1) + b"0]}"


def test_manifests_are_read_without_collections_that_visit_all_their_values(place):
    (place / "web.tokshard/manifest.json").write_bytes(nested_arrays(1 << 20))
    collections = []

    def record(phase, info):
        if phase == "start":
            collections.append(info["generation"])

    gc.callbacks.append(record)
    try:
        with pytest.raises(IntegrityError, match=r"manifest\.json"):
            read_manifest("web")
    finally:
        gc.callbacks.remove(record)
    assert len(collections) <= 1


TOKENIZE = ("-o", "new/web", "--tokenizer", "tok/tokenizer.json")


@pytest.fixture
def place(good, tmp_path, monkeypatch):
    shutil.copytree(good, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("options", [(), ("--dry-run",), ("--workers", "2"), ("--on-error", "skip")])
def test_tokenize_of_a_table_without_the_column_names_its_columns(place, options):
    done = installed("tokenize", "in/a.parquet", *TOKENIZE, "--field", "txt", *options)
    assert failure(done) == (3, 'in/a.parquet: column "txt" not found (columns: text)', "pass --field text")
    # The next attempt works.
    assert installed("tokenize", "in/a.parquet", *TOKENIZE).returncode == 0


def test_worker_processes_end_with_the_error_of_a_table(place):
    lines = (place / "in/a.jsonl").read_bytes()
    (place / "in/large.jsonl").write_bytes(lines * (5_000_000 // len(lines)))  # more than one process encodes
    done = installed("tokenize", "in/large.jsonl", "in/a.parquet", *TOKENIZE, "--field", "title", seconds=20)
    code, error, hint = failure(done)
    assert (code, error) == (3, 'in/a.parquet: column "title" not found (columns: text)')
    assert hint == "pass --field text"


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst"])
def test_dry_run_reads_the_first_record(place, name):
    command = ("tokenize", f"in/{name}", *TOKENIZE, "--field", "content", "--dry-run")
    code, error, hint = failure(installed(*command))
    assert (code, hint) == (3, "pass --field text")
    assert error.startswith(f'in/{name}:1: field "content" not found (fields: ')
    done = tokshard(*command, "--on-error", "skip")
    assert done.returncode == 0
    assert f"warning: the first record would be skipped: {error}" in done.stderr
    assert not Path("new/web.tokshard").exists()


@pytest.mark.parametrize("seed", ["0", "1", "2", "3"])
def test_dry_run_ends_as_a_run_on_a_sample_does(place, seed):
    (place / "in/first.jsonl").write_bytes(b"{\n" + b'{"text": "a"}\n' * 20)
    command = ("tokenize", "in/first.jsonl", *TOKENIZE, "--sample", "0.5", "--sample-seed", seed)
    codes = tokshard(*command, "--dry-run").returncode, tokshard(*command).returncode
    assert codes == ((3, 3) if seed in {"1", "3"} else (0, 0))


def test_dry_run_checks_what_the_tokenizer_needs(place):
    (place / "in/ids.jsonl").write_text('{"text": "1 9"}\n')
    command = ("tokenize", "in/ids.jsonl", "-o", "new/web", "--tokenizer", "null:5", "--eod", "4")
    errors = {failure(tokshard(*command, *options)) for options in ((), ("--dry-run",))}
    assert len(errors) == 1
    assert errors.pop()[0] == 3


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_dry_run_checks_the_key_of_a_holdout(place, name):
    command = ("tokenize", f"in/{name}", *TOKENIZE, "--holdout", "0.5", "--holdout-key", "absent")
    errors = {failure(tokshard(*command, *options)) for options in ((), ("--dry-run",))}
    assert len(errors) == 1
    assert "absent" in errors.pop()[1]


@pytest.mark.parametrize("output", ["in/a.jsonl/x", "/proc/tokshard/x"])
def test_an_output_that_cannot_be_a_path_is_not_called_damaged(place, output):
    command = ("tokenize", "in/a.jsonl", "--tokenizer", "tok/tokenizer.json", "-o", output)
    code, _, hint = failure(installed(*command))
    assert code == 7
    assert hint == "choose another path for the output"


def test_a_hint_names_a_file_with_the_words_of_its_template(place):
    (place / "my PLAIN FILE.zip").write_bytes(b"PK\x03\x04" + bytes(30))
    _, _, hint = failure(installed("tokenize", "my PLAIN FILE.zip", *TOKENIZE))
    assert hint.endswith(": unzip 'my PLAIN FILE.zip'")
    (place / "PLAIN.jsonl.gz").write_bytes(gzip.compress(gzip.compress(b"{}")))
    _, _, hint = failure(installed("tokenize", "PLAIN.jsonl.gz", *TOKENIZE))
    assert hint.endswith(": gzip -dc PLAIN.jsonl.gz > PLAIN.jsonl")


def test_a_writer_fills_one_pipe_after_the_other(place):
    """A pipe has no time limit while another one is being read."""
    os.mkfifo("first")
    os.mkfifo("second")
    writer = subprocess.Popen(["sh", "-c", "(cat in/a.jsonl; sleep 7) > first; cat in/a.jsonl > second"])
    done = installed("tokenize", "first", "second", *TOKENIZE, "--workers", "2", seconds=30)
    assert done.returncode == 0, done
    assert writer.wait() == 0


STDIN = {
    "zip": (b"PK\x03\x04" + bytes(30), "standard input is a zip archive"),
    "Parquet": (None, "cannot read Parquet from a pipe: standard input"),
    "gzip inside gzip": (gzip.compress(gzip.compress(b"{}")), "standard input: it contains gzip inside gzip"),
    "tar inside gzip": (
        gzip.compress(b"x".ljust(257, b"\0") + b"ustar\x0000" + bytes(248)),
        "it contains a tar archive inside gzip",
    ),
    "truncated gzip": (gzip.compress(b'{"text": "a"}')[:20], "the compressed stream is truncated"),
}


@pytest.mark.parametrize("kind", STDIN)
def test_tokenize_of_unreadable_standard_input_ends(place, kind):
    content, message = STDIN[kind]
    content = (place / "in/a.parquet").read_bytes() if content is None else content
    code, error, hint = failure(installed("tokenize", "-", *TOKENIZE, stdin=content))
    assert code == 3
    assert message in error
    assert hint


@pytest.mark.parametrize("options", [("--dataset-impl", "mmap"), ("--make-vocab-size-divisible-by", "128")])
def test_options_of_older_preprocess_data_without_effect_are_accepted(place, options):
    done = installed("tokenize", "in/a.jsonl", *TOKENIZE, "--preset", "megatron", "--dry-run", *options)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", ["lazy", "cached"])
def test_older_formats_of_preprocess_data_are_refused(place, kind):
    done = installed("tokenize", "in/a.jsonl", *TOKENIZE, "--preset", "megatron", "--dataset-impl", kind)
    assert failure(done) == (
        2,
        f"--dataset-impl {kind} is not supported",
        "pass --dataset-impl mmap, or leave the option out: Megatron Core reads no other format",
    )


def test_sigterm_ends_tokenize_of_a_pipe_when_stderr_is_closed(place):
    os.mkfifo("pipe")
    writer = os.open("pipe", os.O_RDWR)
    process = subprocess.Popen(["sh", "-c", 'exec "$@" 2>&-', "sh", INSTALLED, "tokenize", "pipe", *TOKENIZE])
    try:
        while not Path("new/web.tokshard/lock").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.terminate()
        assert process.wait(FAILURE_SECONDS) == 143
    finally:
        process.kill()
        os.close(writer)


def test_error_of_an_unreadable_input_has_no_cyclic_chain(place):
    with pytest.raises(InputError, match="not found") as caught:
        run_tokenize("in/a.parquet", "new/web", tokenizer="tok/tokenizer.json", fields=("txt",))
    chain, error = [], caught.value
    while error is not None:
        assert error not in chain
        chain.append(error)
        error = error.__cause__ or error.__context__
