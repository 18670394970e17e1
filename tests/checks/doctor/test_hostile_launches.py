"""Absurd launch scripts, configurations, logs and files end in an error or an unknown value, with limits."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.command_line import INSTALLED
from tokshard.checks.doctor.launch.text import read_launches
from tokshard.errors import TokshardError, UsageError

# Of processor time and of data, which is memory without that of files; the slack is for slow machines.
LIMIT_SECONDS = 20
LIMIT_BYTES = 300 << 20
# A command that only waits, for example for a named pipe, uses no processor time.
WAITING_SECONDS = 60
# An error or a report that repeats values of megabytes helps nobody.
MOST_OUTPUT = 1_000_000

PROGRAM = "python pretrain_gpt.py "
SIZES = "--seq-length 16 --train-iters 5 --micro-batch-size 1 --global-batch-size 8 "
JOB = PROGRAM + SIZES + "--data-path web "
DUMP = "".join(
    f"  {name} {'.' * 20} {value}\n"
    for name, value in (("seq_length", 16), ("train_iters", 5), ("global_batch_size", 8))
)
ALIASES = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join(['*' + before] * 9)}]\n"
    for before, name in zip("abcdefghijk", "bcdefghijkl", strict=True)
)
MERGES = "a0: &a0 {x: 1}\n" + "".join(
    f"a{number}: &a{number}\n  <<: [{', '.join([f'*a{number - 1}'] * 4)}]\n" for number in range(1, 25)
)


@dataclass(frozen=True)
class Outcome:
    """The end of a command."""

    code: int
    text: str


def doctor(directory: Path, *words: str) -> Outcome:
    """Run the installed command with limits; standard input is empty."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_SECONDS, LIMIT_SECONDS))
        resource.setrlimit(resource.RLIMIT_DATA, (LIMIT_BYTES, LIMIT_BYTES))

    done = subprocess.run(
        [INSTALLED, "doctor", *words],
        cwd=directory,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "COLUMNS": "200"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=WAITING_SECONDS,
        preexec_fn=limit,
        check=False,
    )
    text = (done.stdout + done.stderr).decode("utf-8", "backslashreplace")
    assert done.returncode in range(9), text[-2000:]
    assert "Traceback" not in text
    assert len(text) < MOST_OUTPUT
    return Outcome(done.returncode, text)


CONFIGURATIONS = {
    "aliases of aliases as a data path": ALIASES + "data_path: *l\nseq_length: 16\n",
    "aliases of aliases beside the arguments": ALIASES + "data_path: web\nseq_length: 16\n",
    "aliases of aliases as a key": ALIASES + "data_path: web\nseq_length: 16\n? *l\n: 1\n",
    "merged mappings": MERGES + "model_parallel: *a24\nseq_length: 16\ndata_path: web\n",
    "a list that contains itself": "data_path: &d [*d]\nseq_length: 16\n",
    "a mapping that contains itself": "model_parallel: &m {x: *m}\nseq_length: 16\ndata_path: web\n",
    "deep lists": "seq_length: " + "[" * 20_000 + "\n",
    "deep mappings": "x: " + "{x: " * 3000 + "1" + "}" * 3000 + "\nseq_length: 16\n",
    "deep indentation": "".join(" " * depth + "x:\n" for depth in range(1500)) + "seq_length: 16\n",
    "an integer of 100,000 digits": f"seq_length: {'9' * 100_000}\ndata_path: web\n",
    "a hexadecimal integer of 100,000 digits": f"seed: 0x{'f' * 100_000}\ndata_path: web\nseq_length: 16\n",
    "a sexagesimal integer": "seed: 1" + ":59" * 50_000 + "\ndata_path: web\nseq_length: 16\n",
    "a date that does not exist": "seed: 9999-99-99\ndata_path: web\nseq_length: 16\n",
    "keys without a hash": "seq_length: 16\ndata_path: web\n? [x]\n: 1\n? {x: 1}\n: 2\n",
    "an object of Python": "seq_length: !!python/object/apply:os.getcwd []\ndata_path: web\n",
    "numbers that are not finite": "seq_length: .inf\ntrain_iters: .nan\ndata_path: web\n",
    "many documents": "seq_length: 16\n---\n" * 1000,
    "100,000 keys": "seq_length: 16\ndata_path: web\n"
    + "".join(f"k{number}: 1\n" for number in range(100_000)),
}
OBJECTS = {
    "deep objects": '{"x":' * 100_000 + "1" + "}" * 100_000,
    "deep lists": '{"data_path": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "an integer of 100,000 digits": f'{{"seq_length": {"9" * 100_000}, "data_path": ["web"]}}',
    "numbers that are not finite": '{"seq_length": 1e999, "seed": NaN, "train_iters": -Infinity}',
    "wrong types": '{"seq_length": {"x": 1}, "data_path": 5, "train_iters": [1], "mock_data": "yes"}',
    "halves of surrogate pairs": '{"seq_length": 16, "data_path": ["\\ud800"], "split": "\\udfff"}',
    "a line of 3 MB without an end": "{" + "x" * 3_000_000,
    "the same key 200,000 times": "{" + ",".join(['"seq_length":16'] * 200_000) + "}",
}
VALUES = {
    "a power": "9**9**9**9",
    "brackets": "[" * 100_000 + "]" * 100_000,
    "parentheses": "(" * 100_000 + "1" + ")" * 100_000,
    "signs": "-" * 200_000 + "1",
    "sums": "1+" * 200_000 + "1j",
    "an integer of 4,000,000 digits": "9" * 4_000_000,
    "a hexadecimal integer of 4,000,000 digits": "0x" + "f" * 4_000_000,
    "300,000 texts": "['x'" + ", 'x'" * 300_000 + "]",
    "adjacent texts": "'x' " * 300_000,
    "a dictionary of 200,000": "{" + ", ".join(f"{number}: 1" for number in range(200_000)) + "}",
    "a set of lists": "{[1]}",
    "a dictionary with a list as a key": "{[]: 1}",
    "functions": "lambda: " * 50_000 + "1",
    "a call": "__import__('os').abort()",
    "a formatted text": 'f"{' + "{" * 3000 + "1" + "}" * 3000 + '}"',
    "dots": "." * 2_000_000,
}
ARGUMENTS = {
    "tasks of 5,000 digits": f"srun --ntasks-per-node={'9' * 5000} {JOB}",
    "ranks of 5,000 digits": f"torchrun --nproc-per-node {'9' * 5000} pretrain_gpt.py {SIZES} --mock-data",
    "nodes of 5,000 digits": f"mpirun -np {'9' * 5000} {JOB}",
    "a batch size of 4,200 digits": f"{JOB} --global-batch-size {'9' * 4200}",
    "steps of 4,200 digits": f"{JOB} --train-iters {'9' * 4200}",
    "a sequence length of 100,000 digits": f"{JOB} --seq-length {'9' * 100_000}",
    "negative numbers": f"{JOB} --seq-length -16 --train-iters -5 --micro-batch-size -1 --eval-iters -1",
    "zeros": f"{JOB} --seq-length 0 --train-iters 0 --micro-batch-size 0 --global-batch-size 0",
    "weights that are not finite": f"{JOB} --data-path 1e999 web nan code -inf text",
    "a surplus that is no number": f"{JOB} --mid-level-dataset-surplus nan",
    "an infinite step schedule": f"{JOB} --step-batch-size-schedule '0:1e308B 1e400:5 nan:2'",
    "a step schedule of 50,000 steps": f"{JOB} --step-batch-size-schedule '0:8 "
    + " ".join(f"{number}:{number + 8}" for number in range(1, 50_000))
    + "'",
    "an endless ramp-up": f"{PROGRAM} --data-path web --seq-length 16 --train-samples 99999999999999999 "
    "--micro-batch-size 1 --global-batch-size 99999999 --rampup-batch-size 1 1 99999999999999",
    "a ramp-up of nothing": f"{JOB} --rampup-batch-size 0 0 0",
    "a split of 200,000 parts": f"{JOB} --split {','.join(['1'] * 200_000)}",
    "a split of 100,000 digits": f"{JOB} --split {'9' * 100_000},1,1",
    "a path of 100,000 characters": f"{JOB} --data-path {'d/' * 50_000} --data-cache-path {'c' * 100_000}",
    "a quoted list of 200,000 numbers": f"{JOB} --data-path '{'1 ' * 200_000}x'",
    "an option of 1 MB": f"{JOB} --{'x' * 1_000_000}",
    "20,000 options that nearly exist": JOB + " ".join(f"--seq-lenght{number}" for number in range(20_000)),
    "200,000 combining accents": f"{JOB} --split e{chr(0x301) * 200_000}",
    "200,000 typographic dashes": f"{JOB} {chr(0x2013) * 200_000}",
    "50,000 datasets": PROGRAM
    + SIZES
    + "--data-path "
    + " ".join(f"1 data/{number}" for number in range(50_000)),
    "20,000 unset variables": f"set -u\nLENGTH=16\n{JOB} "
    + " ".join(f"$LENGHT{number}" for number in range(20_000)),
    "200,000 lines for Slurm": "#SBATCH --nodes=4\n" * 200_000 + JOB,
    "a trace of 50,000 programs": f"+ {JOB}\n" + "++ prepare.py x y\n" * 50_000,
    "2,000,000 plus signs": "+" * 2_000_000 + f" {JOB}",
    "unclosed brackets": "A=(" + " [" * 100_000 + ")\n" + JOB,
    "unclosed placeholders": "X=" + "<a b" * 50_000 + "\n" + JOB,
    "dots in columns": "  seq_length" + " ." * 300_000 + "\n" + JOB,
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_absurd_yaml_ends_soon(name, tmp_path):
    (tmp_path / "job.yaml").write_text(CONFIGURATIONS[name])
    doctor(tmp_path, "job.yaml")


@pytest.mark.parametrize("name", ["aliases of aliases beside the arguments", "deep lists"])
def test_absurd_yaml_of_a_script_ends_soon(name, tmp_path):
    (tmp_path / "job.yaml").write_text(CONFIGURATIONS[name])
    (tmp_path / "launch.sh").write_text(f"{PROGRAM} --yaml-cfg job.yaml\n")
    doctor(tmp_path, "launch.sh")


@pytest.mark.parametrize("name", OBJECTS)
def test_absurd_json_ends_soon(name, tmp_path):
    (tmp_path / "job.json").write_text(OBJECTS[name])
    doctor(tmp_path, "job.json")


@pytest.mark.parametrize("argument", ["seed", "data_path", "lr_decay_style"])
@pytest.mark.parametrize("name", VALUES)
def test_absurd_values_of_printed_arguments_are_not_computed(name, argument):
    text = f"{DUMP}  {argument} {'.' * 20} {VALUES[name]}\n"
    with contextlib.suppress(UsageError):
        (launch,) = read_launches(text, path="job.log")
        assert launch.arguments.seq_length == 16


@pytest.mark.parametrize(
    "name", ["a power", "brackets", "an integer of 4,000,000 digits", "a set of lists", "300,000 texts"]
)
def test_a_log_with_absurd_values_ends_soon(name, tmp_path):
    (tmp_path / "job.log").write_text(f"{DUMP}  data_path {'.' * 20} {VALUES[name]}\n")
    doctor(tmp_path, "job.log")


@pytest.mark.parametrize("name", ARGUMENTS)
def test_absurd_arguments_end_soon(name, tmp_path):
    (tmp_path / "launch.sh").write_text(ARGUMENTS[name] + "\n")
    doctor(tmp_path, "launch.sh")


@pytest.mark.parametrize(
    "content",
    [
        JOB.encode("utf-16"),
        b"\xfe\xff" + JOB.encode("utf-16-be"),
        b"\xef\xbb\xbf#!/bin/bash\n" + JOB.encode(),
        JOB.encode() + b"--split \xe9\xff\xfe\xed\xa0\x80\n",
        JOB.encode() + b"\0" * 1000,
        JOB.encode().replace(b" ", b"\r"),
        bytes(range(1, 32)) * 100 + JOB.encode(),
        bytes(range(256)) * 4000,
        b"\x1f\x8b\x08" + bytes(1000),
        b"",
        b" \n\t" * 500_000,
    ],
    ids=[
        "UTF-16", "big-endian", "byte order mark", "no UTF-8", "zero bytes", "carriage returns", "control",
        "all bytes", "gzip", "empty", "blank",
    ],
)  # fmt: skip
def test_scripts_in_other_encodings_end_soon(content, tmp_path):
    (tmp_path / "launch.sh").write_bytes(content)
    outcome = doctor(tmp_path, "launch.sh")
    assert "\x1b" not in outcome.text


@pytest.fixture
def odd_files(tmp_path):
    """Files that are no ordinary files, in the directory of the script."""
    os.mkfifo(tmp_path / "pipe.sh")
    os.symlink("loop.sh", tmp_path / "loop.sh")
    os.symlink("/dev/zero", tmp_path / "zero.sh")
    (tmp_path / "folder.sh").mkdir()
    with (tmp_path / "sparse.sh").open("wb") as file:
        file.truncate(50 << 30)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(tmp_path / "socket.sh"))
    return tmp_path


ODD = ["/dev/zero", "/dev/urandom", "/dev/stdin", "/dev/tty", "/proc/self/mem", "/", "."]
ODD += ["pipe.sh", "loop.sh", "zero.sh", "folder.sh", "sparse.sh", "socket.sh", "x" * 5000]


@pytest.mark.parametrize("path", ODD)
def test_a_script_that_is_no_ordinary_file_is_an_error(path, odd_files, monkeypatch):
    monkeypatch.chdir(odd_files)
    outcome = doctor(odd_files, path)
    assert outcome.code in (2, 3, 7)
    assert "error: " in outcome.text


@pytest.mark.parametrize("call", ["source {}", "bash {}", "bash < {}", "X=$(<{})", "mapfile -t X < {}"])
@pytest.mark.parametrize("path", ODD)
def test_a_script_that_reads_no_ordinary_file_ends(path, call, odd_files, monkeypatch):
    monkeypatch.chdir(odd_files)
    text = f"{call.format(path if '/' in path else './' + path)}\n{JOB}\n"
    (odd_files / "launch.sh").write_text(text)
    with contextlib.suppress(TokshardError):
        (launch,) = read_launches(text, path="launch.sh")
        assert launch.arguments.seq_length == 16


@pytest.mark.parametrize(
    "option",
    [
        "--data-args-path {}",
        "--per-split-data-args-path {}",
        "--yaml-cfg {}",
        "--data-cache-path {} --data-path {}",
        "--data-path web --tokenizer-type HuggingFaceTokenizer --tokenizer-model {}",
        "--data-path web --tokenizer-type GPT2BPETokenizer --vocab-file {} --merge-file {}",
    ],
)
@pytest.mark.parametrize("path", ["/dev/zero", "./socket.sh"])
def test_options_that_name_no_ordinary_file_end_soon(path, option, odd_files, monkeypatch):
    monkeypatch.chdir(odd_files)
    (odd_files / "launch.sh").write_text(f"{PROGRAM}{SIZES}{option.replace('{}', path)}\n")
    doctor(odd_files, "launch.sh")


@pytest.mark.parametrize(
    "text",
    [
        "source ./launch.sh\n",
        "source ./launch.sh\nsource ./launch.sh\n",
        'bash ./launch.sh "$@" x\nbash ./launch.sh "$@" y\n',
        "source ./other.sh\nsource ./other.sh\n",
    ],
)
def test_scripts_that_source_themselves_end_soon(text, tmp_path):
    (tmp_path / "launch.sh").write_text(text + JOB)
    (tmp_path / "other.sh").write_text("source ./launch.sh\nsource ./launch.sh\n")
    doctor(tmp_path, "launch.sh")


@pytest.mark.parametrize(
    "command", ['cp "$0" logs/', 'cat "$0"', "chmod +x $0", "git add $0", 'tee log < "$0"']
)
def test_a_script_that_handles_itself_as_a_file_is_one_job(command, tmp_path):
    (tmp_path / "launch.sh").write_text(f"{command}\n{JOB}\n")
    outcome = doctor(tmp_path, "launch.sh", "--json")
    assert outcome.code in (0, 1)
    assert outcome.text.count('"program":') == 1


@pytest.mark.parametrize("command", ["cat", "cp -t logs", "chmod +x", "rsync -a", "scp host:", "git add"])
def test_a_script_that_another_handles_as_a_file_is_no_job(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.sh").write_text(JOB.replace("web", "code"))
    text = f"{command} other.sh\n{JOB}\n"
    (launch,) = read_launches(text, path="launch.sh")
    assert launch.arguments.data_path == ("web",)
