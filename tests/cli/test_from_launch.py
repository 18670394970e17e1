"""``--from-launch``: what the doctor misses is built by the command in its hint, run as it is printed."""

from __future__ import annotations

import re
import shlex

import pytest

import tokshard
from support.mixture_data import JOB_TOKENIZER, run, write_mixture
from tokshard.cli.generate import Given

SCRIPT = """#!/bin/bash
if [ "$1" = blend ]; then
    DATA="0.7 data/web 0.3 data/code"
else
    DATA=$1
fi
torchrun --nproc-per-node 8 pretrain_gpt.py --seq-length 16 --split 9,1 --micro-batch-size 1 \\
    --global-batch-size 8 --train-iters ${{STEPS:-10}} --eval-interval 5 --eval-iters 1 \\
    --tokenizer-type HuggingFaceTokenizer --tokenizer-model /models/llama {more} --data-path $DATA
"""
CACHE = "--data-cache-path $CACHE"


@pytest.fixture
def workshop(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_mixture(tmp_path)
    for name in ("web", "code"):
        assert run("verify", f"data/{name}", "--adopt", "--tokenizer", "null:60000").returncode == 0
    (tmp_path / "launch.sh").write_text(SCRIPT.format(more=CACHE))
    return tmp_path


def commands_in(done):
    """Return the commands in the hints of findings, each once, as words after ``tokshard``."""
    found = re.findall(r"hint: .*?`tokshard ((?:blend|build-indices) [^`]*)`", done.stdout)
    return [shlex.split(command) for command in dict.fromkeys(found)]


def follow(*doctor, stdin=None, **placeholders):
    """Run the doctor and the one command in its hints; return the words of the command."""
    found = run("doctor", *doctor, stdin=stdin)
    assert found.returncode == 1, found.stdout
    (words,) = commands_in(found)
    done = run(*[placeholders.get(word, word) for word in words], stdin=stdin)
    assert done.returncode == 0, done.stderr
    after = run("doctor", *doctor, stdin=stdin)
    assert after.returncode == 0, after.stdout
    return words


def test_the_hint_builds_what_is_missing(workshop):
    single = ("launch.sh", "data/web")
    words = follow("--set", "CACHE=c", *single, VERSION="0.18")
    assert words == [
        *("build-indices", "--from-launch", "launch.sh data/web", "--set", "CACHE=c"),
        *("--megatron", "VERSION"),
    ]
    options = ("--set", "CACHE=/x/c", "--set", "STEPS=12", "--megatron", "0.18", "--path-as", "c=/x/c")
    words = follow(*options, "launch.sh", "blend")
    assert words[:3] == ["blend", "--from-launch", "launch.sh blend"]
    assert words[3:] == [
        *("--megatron", "0.18", "--path-as", "c=/x/c", "--set", "CACHE=/x/c", "--set", "STEPS=12"),
        *("-o", "mix"),
    ]


def test_the_iteration_of_a_resumed_job_decides_its_phase(workshop):
    phases = SCRIPT.replace(
        "--train-iters ${{STEPS:-10}}", "--train-samples 80 --phase-transition-iterations 4"
    )
    (workshop / "launch.sh").write_text(phases.format(more="--data-cache-path c"))
    options = ("--megatron", "0.19", "--iteration", "4", "launch.sh", "data/web")
    assert "requests: train 48, " in run("doctor", *options).stdout  # the first phase has 32
    words = follow(*options)
    launch = ("--from-launch", "launch.sh data/web")
    assert words == ["build-indices", *launch, "--megatron", "0.19", "--iteration", "4"]
    done = run(*words)
    assert "check the launch script with `tokshard doctor --megatron 0.19 --iteration 4 " in done.stdout
    late = run("doctor", "--iteration", "10", *options[4:])
    assert "hint: pass the --iteration that the run starts from, or a larger --train-samples" in late.stdout
    for value, message in (("-1", "--iteration must be at least 0, got -1"), ("x", "--iteration")):
        wrong = run("doctor", f"--iteration={value}", *options[4:])
        assert (wrong.returncode, message in wrong.stderr) == (2, True)


def test_stale_and_damaged_files_are_replaced(workshop):
    options = ("--set", "CACHE=c", "--megatron", "0.19", "launch.sh", "blend")
    follow(*options)
    write_mixture(workshop)
    victim = next((workshop / "c").glob("*-GPTDataset-valid-sample_index.npy"))
    victim.write_bytes(victim.read_bytes()[:-1])
    (workshop / "data/web.bin").write_bytes((workshop / "data/web.bin").read_bytes()[::-1])
    next((workshop / "c").glob("*-GPTDataset-train-shuffle_index.npy")).unlink()
    found = run("doctor", *options)
    assert {"cache-missing", "cache-differs"} <= set(re.findall(r"(cache-[a-z]+):", found.stdout))
    (words,) = commands_in(found)
    # The first blend is kept.
    assert words[-3:] == ["-o", "mix-2", "--rebuild"]
    assert run(*words).returncode == 0
    assert "cache-" not in run("doctor", *options).stdout


def test_a_job_without_a_cache_path_gets_one(workshop):
    script = workshop / "launch.sh"
    script.write_text(SCRIPT.format(more=""))
    options = ("--megatron", "0.19", "launch.sh", "blend")
    found = run("doctor", *options)
    (words,) = commands_in(found)
    assert found.stdout.count("add --data-cache-path mix/cache to the launch command, and run `tokshard") == 2
    done = run(*words)
    assert done.returncode == 0
    assert "next: add --data-cache-path mix/cache to the launch command; check the launch script with " in (
        done.stdout
    )
    script.write_text(SCRIPT.format(more="--data-cache-path mix/cache"))
    assert run("doctor", *options).returncode == 0
    # The other order of both steps.
    script.write_text(SCRIPT.format(more="--data-cache-path mix-2/cache"))
    assert (
        run("blend", "--from-launch", "launch.sh blend", "--megatron", "0.19", "-o", "mix-2").returncode == 0
    )
    assert run("doctor", *options).returncode == 0
    script.write_text(SCRIPT.format(more=""))
    words = follow("--megatron", "0.19", "launch.sh", "data/web")
    assert words[0] == "build-indices"
    assert len(list((workshop / "data/web/cache/GPTDataset_indices").iterdir())) == 10


@pytest.mark.parametrize("data", ["blend", "data/web"])
def test_the_hint_about_a_text_is_the_quoted_command(workshop, data):
    script = SCRIPT.format(more="--data-cache-path c --save $OUT").replace("$1", data)
    words = follow("--megatron", "0.19", "-", stdin=script)
    command = words[words.index("--from-launch") + 1]
    assert command.startswith("torchrun --nproc-per-node 8 pretrain_gpt.py --seq-length 16 ")
    assert "--save $OUT" in command
    assert run("build-indices", "--from-launch", "-", stdin="--seq-length 8").returncode == 2


def test_the_hint_about_arguments_in_words_and_in_a_log(workshop):
    job = ["torchrun", "pretrain_gpt.py", "--seq-length", 16, "--split", "9,1", "--global-batch-size", 8]
    job += ["--train-iters", 10, "--eval-interval", 5, "--eval-iters", 1, "--data-cache-path", "c"]
    job += [*JOB_TOKENIZER, "--micro-batch-size", 1, "--data-path", "1", "data/web", "1", "data/code"]
    words = follow("--megatron", "0.19", *job)
    assert words[2] == shlex.join(map(str, job))
    log = (
        "[rank0] seq_length ........ 16\n data_path ..... ['data/web']\n split ...... 9,1\n"
        " train_iters ..... 4\n"
        " global_batch_size ... 8\n micro_batch_size ... 1\n world_size ... 8\n eval_interval ... 2\n"
        " eval_iters ... 1\n data_cache_path ... c\n tokenizer_type ... HuggingFaceTokenizer\n"
        " tokenizer_model ... /models/llama\n"
    )
    assert follow("--megatron", "0.19", "-", stdin=log)[2] == "-"
    (workshop / "job.log").write_text(log.replace("train_iters ..... 4", "train_iters ..... 6"))
    assert follow("--megatron", "0.19", "job.log")[2] == "job.log"


def test_what_a_condition_decides_is_told_by_a_variable(workshop):
    (workshop / "launch.sh").write_text(
        SCRIPT.format(more="$X").replace("torchrun", 'if [ $A = b ]; then X="--seed 7"; fi\ntorchrun', 1)
    )
    options = ("--megatron", "0.19", "launch.sh", "data/web")
    assert "--seed depends on $A\n  hint: pass --set A=VALUE\n" in run("doctor", *options).stdout
    refused = run("build-indices", "--from-launch", "launch.sh data/web", "--megatron", "0.19")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "error: the indexes of the job are unknown: --seed depends on $A\n" in refused.stderr
    assert "hint: pass --set A=VALUE\n" in refused.stderr
    (command,) = commands_in(run("doctor", "--set", "A=b", *options))
    assert run(*command).returncode == 0
    assert run("doctor", "--set", "A=b", *options).returncode == 0


def test_the_library_decides_which_command_it_is(workshop):
    refused = run(
        "build-indices", "--from-launch", "launch.sh blend", "--set", "CACHE=c", "--megatron", "0.19"
    )
    assert (refused.returncode, refused.stdout) == (2, "")
    (command,) = re.findall(r"hint: run `tokshard (.*)`", refused.stderr)
    assert run(*shlex.split(command)).returncode == 0
    # One dataset is a blend of one, in the cache of the job.
    call = ("--from-launch", "launch.sh data/web", "--set", "CACHE=c", "--megatron", "0.19")
    assert run("blend", *call, "-o", "one").returncode == 0
    again = run("build-indices", *call, "--json").json
    assert {(index["condition"], index["action"]) for index in again["indices"]} == {("fresh", "found")}
    dry = run("blend", *call, "--dry-run", "--json").json
    assert [split["samples"] for split in dry["splits"]] == [85, 27]
    emitted = run("blend", *call, "--emit", "megatron-args").stdout
    assert emitted.startswith("--data-path data/web --split 9,1 --seq-length 16 --seed 1234 ")
    assert "--data-cache-path c" in emitted


def test_the_cache_directory_has_one_source(workshop):
    call = ("--from-launch", "launch.sh data/web", "--megatron", "0.19", "--cache-dir", "d")
    refused = run("build-indices", *call, "--set", "CACHE=c")
    assert refused.returncode == 2
    assert "--cache-dir cannot be used with --from-launch" in refused.stderr
    assert "the launch command has --data-cache-path c" in refused.stderr
    (workshop / "launch.sh").write_text(SCRIPT.format(more=""))
    done = run("build-indices", *call)
    assert done.returncode == 0
    assert "next: add --data-cache-path d to the launch command; " in done.stdout
    assert len(list((workshop / "d").iterdir())) == 10


def test_a_local_copy_of_the_tokenizer_is_compared(workshop):
    call = ("build-indices", "--from-launch", "launch.sh data/web", "--set", "CACHE=c", "--megatron", "0.19")
    refused = run(*call, "--tokenizer", "null:300")
    assert refused.returncode == 6
    assert "is not the tokenizer of" in refused.stderr
    assert run(*call, "--tokenizer", "null:300", "--allow-tokenizer-mismatch").returncode == 0


@pytest.mark.parametrize("name", ["blend", "build-indices"])
def test_options_about_the_job_are_refused_by_name(workshop, name):
    kind = {"blend": tokshard.BlendOptions, "build-indices": tokshard.BuildIndicesOptions}[name]
    declared = Given(kind, {}, name).declared.values()
    options = [each for each in declared if not (each.option.with_launch or each.option.is_argument)]
    assert len(options) >= 20
    call = (name, "--from-launch", "launch.sh data/web", "--set", "CACHE=c", "--megatron", "0.19")
    for option in options:
        words = [option.name, "samples" if option.field == "unit" else "1"]
        if option.kind is bool:
            words = option.words(not option.default)
        done = run(*call, *words)
        assert done.returncode == 2, option.name
        assert f"error: {words[0]} cannot be used with --from-launch\n" in done.stderr
        assert f"hint: remove {words[0]}: " in done.stderr
    done = run(*call[:2], "launch.sh", "data/web", *call[3:])
    assert done.returncode == 2
    assert "error: the argument 'data/web' cannot be used with --from-launch\n" in done.stderr
    assert "--from-launch 'launch.sh data/web'\n" in done.stderr
    for option, value in (("--set", "A=1"), ("--iteration", "0")):
        alone = run(name, "data/web", "--seq-length", "8", "--num-samples", "9", option, value)
        assert (alone.returncode, f"{option} requires --from-launch" in alone.stderr) == (2, True)


@pytest.mark.parametrize(("command", "data"), [("build-indices", "data/web"), ("blend", "blend")])
def test_packed_indexes_are_those_of_the_job(workshop, command, data):
    output = ["-o", "mix"] if command == "blend" else []
    script = f"launch.sh {data}"
    call = (command, "--from-launch", script, "--set", "CACHE=c", "--megatron", "0.19", *output)
    assert run(*call, "--pack", "best-fit", "--max-documents-per-sample", "2").returncode == 0
    report = run("doctor", *shlex.split(script), "--set", "CACHE=c", "--json").json["jobs"][0]
    assert {lookup["condition"] for lookup in report["lookups"]} == {"fresh"}
    assert "packed-attention" in {finding["code"] for finding in report["findings"]}
    force = ["--force"] if command == "blend" else []
    again = run(*call, "--rebuild", *force)
    assert again.returncode == 4
    assert "was built with --pack best-fit, at most 2 documents per sample instead of --pack concat" in (
        again.stderr
    )
    (workshop / "launch.sh").write_text(SCRIPT.format(more=f"{CACHE} --dataloader-defer-npy-index-mmap"))
    deferred = run(*call, "--pack", "best-fit")
    assert deferred.returncode == 2
    assert (
        "--pack best-fit cannot be used with --dataloader-defer-npy-index-mmap in the launch command"
        in deferred.stderr
    )


def test_the_command_for_a_blend_keeps_the_packing(workshop):
    call = ("build-indices", "--from-launch", "launch.sh blend", "--set", "CACHE=c", "--megatron", "0.19")
    refused = run(*call, "--pack", "best-fit", "--pad-multiple", "4")
    assert refused.returncode == 2
    assert "-o mix` with --pack best-fit --pad-multiple 4\n" in refused.stderr
    assert "with --pack" not in run(*call).stderr
