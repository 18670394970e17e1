"""Launch commands, scripts, logs and argument files are read as Megatron's own parser reads them."""

from __future__ import annotations

import argparse
import json
import shlex
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokshard.checks.doctor.job import doctor
from tokshard.checks.doctor.launch.arguments import LaunchArguments
from tokshard.checks.doctor.launch.programs import unsupported_data
from tokshard.checks.doctor.launch.rules import check_arguments, check_launch, check_processes
from tokshard.checks.doctor.launch.text import choose_launches, read_launch_words, read_launches
from tokshard.checks.doctor.launch.unknown import Unknown
from tokshard.checks.doctor.shell.interpreter import read_shell
from tokshard.checks.doctor.shell.state import ShellReading
from tokshard.core.findings import Finding
from tokshard.errors import IntegrityError, UsageError
from tokshard.samples.index.sizes import Sizes


def read_launch(text: str) -> LaunchArguments:
    """Read a text with one launch command."""
    (launch,) = read_launches(text)
    return launch.arguments


def read_words(words: list[str]) -> LaunchArguments:
    """Read the words of one launch command."""
    (launch,) = read_launch_words(words)
    return launch.arguments


SCRIPT = """#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NUM_NODES=${NNODES:-2}
CACHE="/cache/run 1"
TRAIN_SAMPLES=$((1000 * 256))
DISTRIBUTED_ARGS=(--nproc_per_node $GPUS_PER_NODE --nnodes $NUM_NODES)
DATA_ARGS=(
    --data-path 0.7 /data/web 0.3 /data/code   # weights
    --split 949,50,1
    --data-cache-path "$CACHE"
)
DATA_ARGS+=(--seq-length 4096)
python prepare.py --seq-length 1 --out x
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \\
    --micro-batch-size 2 --global-batch-size 256 \\
    "${DATA_ARGS[@]}" \\
    --train-samples $TRAIN_SAMPLES --eval-interval=100 --eval-iters 10 \\
    --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 2>&1 | tee log.txt
"""

LOG = """
 0: using world size: 16, data-parallel size: 4
 0: ------------------------ arguments ------------------------
 0:   data_args_path .................................. None
 0:   data_cache_path ................................. /cache
 0:   data_path ....................................... ['0.7', '/data/web', '0.3', '/data/code']
 0:   data_sharding ................................... False
 0:   eval_interval ................................... 100
 0:   eval_iters ...................................... 10
 0:   full_validation ................................. True
 0:   global_batch_size ............................... 256
 0:   metadata_path ................................... None
 0:   mid_level_dataset_surplus ....................... 0.005
 0:   phase_transition_iterations ..................... [10, 20]
 0:   seq_length ...................................... 4096
 0:   split ........................................... 949,50,1
 0:   train_iters ..................................... 1000
 0:   world_size ...................................... 16
 0: -------------------- end of arguments ---------------------
"""


def test_a_script_is_read_with_its_variables():
    launch = read_launch(SCRIPT)
    assert launch.data_path == ("0.7", "/data/web", "0.3", "/data/code")
    assert (launch.split, launch.seq_length) == ("949,50,1", 4096)
    assert launch.data_cache_path == "/cache/run 1"
    assert (launch.world_size, launch.data_parallel_size, launch.problems) == (16, 4, ())
    assert launch.sizes() == Sizes(256_000, 11 * 10 * 256, 10 * 256)


def test_a_log_is_read_with_its_prefixes():
    launch = read_launch(LOG)
    assert launch.data_path == ("0.7", "/data/web", "0.3", "/data/code")
    assert (launch.world_size, launch.data_args_path, launch.no_data_sharding) == (16, None, True)
    assert (launch.split, launch.mid_level_dataset_surplus) == ("949,50,1", 0.005)
    assert launch.phase_transition_iterations == "10,20"
    assert launch.full_validation


def test_json_arguments_are_read():
    value = {
        "seq_length": 8,
        "data_path": ["a"],
        "train_iters": 2,
        "global_batch_size": 4,
        "lr": 1e-3,
        "seed": None,
    }
    launch = read_launch(json.dumps(value))
    assert launch == LaunchArguments(
        seq_length=8, data_path=("a",), train_iters=2, global_batch_size=4, is_completed=True
    )
    with pytest.raises(UsageError, match="seq_length must be int, got '8'"):
        read_launch('{"seq_length": "8"}')
    with pytest.raises(IntegrityError):
        read_launch('{"seq_length": 8')


def test_an_arguments_file_may_have_many_lines():
    launch = read_launch("--seq-length 8\n--data-path\n  1 a\n  2 b\n\n--full-validation\n")
    assert launch == LaunchArguments(seq_length=8, data_path=("1", "a", "2", "b"), full_validation=True)


LITERAL = [
    "$HOME",
    "a b",
    "",
    "*.bin",
    "{a,b}",
    "'q'",
    '"',
    "`id`",
    "$(id)",
    "\\",
    "a;b",
    "#",
    "~",
    "é\n",
    "!",
]


@pytest.mark.parametrize("before", [[], ["pretrain_gpt.py"], ["torchrun", "pretrain_gpt.py"]])
def test_words_of_a_command_are_literal(before):
    launch = read_words([*before, "--data-path", *LITERAL, "--split", "$X", "--save", "$(id)"])
    assert (launch.data_path, launch.split) == (tuple(LITERAL), "$X")
    assert (launch.unknown, launch.unseen, launch.problems) == ((), (), ())


def test_arguments_alone_are_read_without_a_program():
    (launch,) = read_launch_words(["--seq-length", "8", "--data-path", "a", '"$@"', "--seed", "1"])
    assert (launch.program, launch.arguments.seq_length, launch.arguments.seed) == (None, 8, 1)
    assert (launch.arguments.data_path, launch.arguments.unseen) == (("a",), ("$@",))


def test_unset_variable_of_a_script_is_an_error_of_its_jobs():
    commands = read_shell("torchrun pretrain_gpt.py --seed 1\ntorchrun pretrain_gpt.py --seed 2").commands
    launches = choose_launches(ShellReading(commands, problems=((7, "GSB", "GBS"),)), {}, "x.sh")
    for launch in launches:
        (problem,) = launch.arguments.problems
        assert (problem.code, problem.severity) == ("unset-variable", "error")
        assert problem.message == "line 7: $GSB is not set, and set -u stops the script; did you mean $GBS?"
    assert len(launches) == 2


def twin() -> argparse.ArgumentParser:
    """The same options for the parser that Megatron uses."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("--data-path", "--train-data-path"):
        parser.add_argument(name, nargs="*")
    for name in ("--seq-length", "--train-iters", "--seed"):
        parser.add_argument(name, type=int)
    for name in ("--split", "--data-cache-path", "--save"):
        parser.add_argument(name)
    parser.add_argument("--mid-level-dataset-surplus", type=float)
    for name in ("--full-validation", "--fp16"):
        parser.add_argument(name, action="store_true")
    return parser


NUMBERS = st.integers(-5, 10**12).map(str)
# Three dots stand for arguments that are left out.
TEXTS = st.text("ab/.,0 =$'\"\\", min_size=1, max_size=6).filter("...".__ne__) | st.sampled_from(
    ["-1", "-.5", "-a b", "-", "--x y"]
)
LISTS = st.tuples(st.sampled_from(["--data-path", "--train-data-path"]), st.lists(TEXTS, max_size=4)).map(
    lambda pair: [pair[0], *pair[1]]
)
SINGLES = st.one_of(
    st.tuples(st.sampled_from(["--seq-length", "--train-iters", "--seed"]), NUMBERS),
    st.tuples(st.sampled_from(["--split", "--data-cache-path", "--save"]), TEXTS),
    st.tuples(st.just("--mid-level-dataset-surplus"), st.floats(0, 1).map(repr)),
)
OPTIONS = st.one_of(
    LISTS,
    SINGLES.map(list),
    SINGLES.map(lambda pair: ["=".join(pair)]),
    st.sampled_from([["--full-validation"], ["--fp16"]]),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(OPTIONS, max_size=8))
def test_words_are_parsed_as_argparse_does(options):
    words = ["--full-validation", *(word for option in options for word in option)]
    expected = vars(twin().parse_args(words))
    launch = read_words(["torchrun", "pretrain_gpt.py", *words])
    quoted = read_launch("A=1 torchrun /x/pretrain_gpt.py " + shlex.join(words))
    assert quoted == launch
    for name, value in expected.items():
        if name in LaunchArguments.__slots__:
            assert getattr(launch, name) == (tuple(value) if isinstance(value, list) else value)


@pytest.mark.parametrize(
    ("command", "world"),
    [
        ("torchrun --nproc-per-node 8 --nnodes=4", 32),
        ("torchrun --nproc_per_node=8", 8),
        ("torchrun", 1),
        ("torchrun --nproc-per-node gpu", None),
        ("torchrun --nproc-per-node 8 --nnodes 1:4", None),
        ("srun -N 2 torchrun --nproc-per-node 8 --nnodes $SLURM_NNODES", None),
        ("python -m torch.distributed.launch --nproc_per_node 4", 4),
        ("srun -N 2 --ntasks-per-node=8 python -u", 16),
        ("srun -n 24 python", 24),
        ("srun python", None),
        ("WORLD_SIZE=6 python", 6),
        ("env WORLD_SIZE=6 python", 6),
        ("mpirun -np 12 python", 12),
        ("python", None),
        ("export WORLD_SIZE=16; python", 16),
        ("WORLD_SIZE=16; python", None),
        ("export WORLD_SIZE=16; torchrun --nproc-per-node $N", None),
        ("torchrun $DISTRIBUTED_ARGS", None),
        ("torchrun --nproc-per-node 2 $DISTRIBUTED_ARGS", None),
        ("torchrun --node_rank $R --nproc-per-node 2 --nnodes 3 $MORE", 6),
        ("torchrun --nproc-per-node 4 --node-rank $R", 4),
        ("N=2; torchrun --nnodes $N --nproc-per-node 4 -m", 8),
        ("D=(--nproc-per-node 8); [ $M ] && D+=(--nnodes $N); torchrun ${D[@]}", None),
        ("D=(--nproc-per-node 8); [ $M ] && D+=(--node-rank $R); torchrun ${D[@]}", 8),
        ("D='--nnodes 1 --nproc-per-node 8'; [ $M ] && D+=' --nnodes 4'; torchrun $D", None),
        ("[ $M ] && N='-n 4'; srun -n 8 $N python", None),
        ("[ $M ] && N='-N 4'; srun --ntasks-per-node 8 -N 2 $N python", None),
        ("[ $M ] && N='--overlap'; srun -n 8 $N python", 8),
        ("deepspeed --num_nodes 2 --num_gpus 8", None),
        ("srun -N 2 --ntasks-per-node=1 accelerate launch --num_processes 16", None),
        ("export WORLD_SIZE=16; deepspeed --num_gpus 8", 16),
        ("docker run --gpus all image srun -n 4 python", 4),
    ],
)
def test_launchers_tell_the_world_size(command, world):
    assert read_launch(f"{command} pretrain_gpt.py --seq-length 8").world_size == world


@pytest.mark.parametrize(
    ("directives", "world"), [("-N 2 --ntasks-per-node=8", 16), ("-N 2 -n 12 --ntasks-per-node=8", 12)]
)
def test_srun_takes_the_number_of_tasks_from_the_batch_script(directives, world):
    text = f"#SBATCH {directives}\nsrun nice -n 10 python pretrain_gpt.py --seq-length 8"
    assert read_launch(text).world_size == world


def test_an_unknown_launcher_is_the_reason_for_an_unknown_world_size():
    text = '[ "$DRY" ] && RUN=echo || RUN="srun -n 8"; $RUN python pretrain_gpt.py --seq-length 8'
    unknown = read_launch(text).unknown_value("world_size")
    assert unknown is not None
    assert unknown.reason == "the number of processes depends on $DRY"
    assert unknown.variables == ("DRY",)


def test_the_programs_of_one_mpirun_are_one_job_of_unknown_size():
    one = "-np 4 python pretrain_gpt.py --seq-length 8"
    assert read_launch(f"mpirun {one} : {one}").world_size is None


def test_a_command_inside_a_wrapper_is_found():
    inner = "cd /x && python -u pretrain_gpt.py --data-path 'a b' --seq-length 8"
    launch = read_launch(f"#SBATCH -N 2\nsrun -N 2 --ntasks-per-node=8 bash -c {shlex.quote(inner)}")
    assert (launch.data_path, launch.seq_length, launch.world_size) == (("a b",), 8, 16)
    assert read_words(["srun", "-N", "2", "--ntasks-per-node=8", "bash", "-c", inner]) == launch


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("torchrun pretrain_gpt.py --data-path $DATA", ("data_path", "$DATA")),
        ("pretrain_gpt.py --data-path a $ROOT/b c", ("data_path", "$ROOT")),
        ("pretrain_gpt.py --train-samples $((A*B))", ("train_samples", "$A and $B")),
        ("pretrain_gpt.py --seq-length", ("seq_length", "")),
        ("pretrain_gpt.py --seq-length --data-path a", ("seq_length", "")),
    ],
)
def test_a_value_that_is_not_in_the_text_is_unknown(text, unknown):
    launch = read_launch(text)
    assert unknown in launch.unknown
    assert getattr(launch, unknown[0]) is None
    assert launch.problems == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pretrain_gpt.py --train-iters 1e6", "--train-iters must be an integer, got '1e6'"),
        ("pretrain_gpt.py --mid-level-dataset-surplus x", "must be a number, got 'x'"),
        ("pretrain_gpt.py --train_iters 9 --seq-length 8", "--train_iters is spelled with underscores"),
        ("pretrain_gpt.py --data-path '0.3 a 0.7 b'", "'0.3 a 0.7 b' as one path prefix of --data-path"),
        ("pretrain_gpt.py --split 99 1 0 --seed 5", "no option takes 1 0: "),
        ("pretrain_gpt.py --seed 5 \\ \n", "no option takes ' ': "),
        ("pretrain_gpt.py --data-path a -- --seed 9", "no option takes -- --seed 9: "),
        ("A='--split 1 --seed 5'; pretrain_gpt.py --data-path a \"$A\"", "--seed 5' as one path prefix"),
        ("A='--split 1 --seed 5'; pretrain_gpt.py --seed 1 \"$A\"", "no option takes '--split 1 --seed 5'"),
        ("pretrain_gpt.py --data-path a –-seed 9", "–-seed contains a typographic dash or quote"),
        ("pretrain_gpt.py --data-path “a”", "“a” contains a typographic dash or quote"),
    ],
)
def test_what_megatron_refuses_is_a_problem_with_a_hint(text, message):
    (problem,) = read_launch(text).problems
    assert message in problem.message
    assert problem.hint


def test_an_invalid_batch_size_is_not_replaced():
    launch = read_launch("torchrun pretrain_gpt.py --global-batch-size 6e1 --micro-batch-size 2")
    assert launch.batch_size is None
    unknown = launch.unknown_value("global_batch_size")
    assert unknown == Unknown("--global-batch-size has the invalid value '6e1'", "correct the value")


@pytest.mark.parametrize(
    ("text", "skipped"),
    [
        ("--data-path a --train-iters 4", {"arguments", "eval-interval", "sizes", "split", "cache"}),
        ("--global-batch-size 64 --micro-batch-size 2", {"arguments", "batch-size", "data", "eval-interval"}),
    ],
)
def test_what_hidden_arguments_may_contain_is_not_reported_as_missing(text, skipped):
    report = doctor(f"torchrun --nproc-per-node 3 pretrain_gpt.py $MORE {text}")
    assert report.findings == ()
    assert {check.check for check in report.skipped} >= skipped


@pytest.mark.parametrize(
    "before",
    [
        "# seq_length ..... 512\n# data_path ..... b\n",
        'echo "seq_length ..... $S"\necho "data_path ..... $D"\n',
        "cat <<X > notes\n+ first\n+ second\nX\n",
    ],
)
def test_a_script_that_looks_like_a_log_or_trace_is_a_script(before):
    assert read_launch(f"{before}pretrain_gpt.py --data-path a").data_path == ("a",)


def test_options_after_a_line_without_backslash_are_reported():
    text = "torchrun pretrain_gpt.py --data-path a \\\n\n  --seed 5\n"
    (launch,) = read_launches(text)
    assert (launch.arguments.data_path, launch.arguments.seed) == (("a",), None)
    (problem,) = launch.arguments.problems
    assert "line 3 begins with --seed" in problem.message
    assert "backslash" in problem.hint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("python train.py --lr 3", "no argument of a Megatron training job"),
        ("python tools/preprocess_data.py --seed 3 --global-batch-size 8", "no argument of a Megatron"),
        ("", "no argument of a Megatron training job"),
        ("{}", "no argument of a Megatron training job"),
        ('{"text": "a"}\n{"text": "b"}\n', "the text is JSON Lines, not a launch script"),
        ("a\0b", "the text is a binary file, not a launch script"),
        ("run 'a --seq-length 8", "cannot read the launch script: line 1"),
    ],
)
def test_what_is_no_launch_command_is_an_error(text, message):
    with pytest.raises(UsageError, match=message):
        read_launch(text)


BOMB = "a: &a [lol, lol]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefghij", "bcdefghijk", strict=True)
)


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        (f"{BOMB}data_path: *k\nseq_length: 8\n", "x.yaml", "data_path must be list, got a list"),
        (f"{BOMB}split: *k\nseq_length: 8\n", "x.yaml", "split must be str, got a list"),
        (
            f"seq_length: 8\ndata_path:\n{'- a' * 100_000}\n",
            "x.yaml",
            "x.yaml must have at most 262,144 characters",
        ),
        (f"  seed ..... {'[1,' * 30_000}\n  split ..... 1\n", "x.log", "seed must be int, got "),
        ("  seed ..... {1: {}, []: 2}\n  split ..... 1\n", "x.log", "seed must be int, got "),
    ],
)
def test_absurd_values_are_refused_with_a_short_message(text, path, message):
    start = time.process_time()
    with pytest.raises(UsageError) as refused:
        read_launches(text, path=path)
    assert refused.value.message.startswith(message)
    assert len(refused.value.message) < 200
    assert time.process_time() - start < 5


def test_objects_of_other_keys_are_not_written_out():
    (launch,) = read_launches(f"{BOMB}seq_length: 8\nfoo: true\nbar: 7\n", path="x.yaml")
    assert {launch.others[name] for name in "abcdefghijk"} == {""}
    assert (launch.others["foo"], launch.others["bar"]) == ("", "7")


@pytest.mark.parametrize("options", ["--seq-length", "--train-iters", "--split", "--data-path x --split"])
def test_long_values_are_shortened_in_messages(options):
    (launch,) = read_launches(f"torchrun pretrain_gpt.py --seed 1 {options} {'9' * 100_000}x")
    results = check_arguments(launch.arguments)
    texts = [result.message if isinstance(result, Finding) else result.reason for result in results]
    assert max(map(len, texts)) < 400


@pytest.mark.parametrize(
    "launcher", ["srun -N 1 --ntasks-per-node", "torchrun --nproc-per-node", "mpirun -np"]
)
def test_absurd_number_of_processes_is_unknown(launcher):
    launch = read_launch(f"{launcher} {'9' * 5000} python pretrain_gpt.py --seed 1")
    assert launch.world_size is None
    unknown = launch.unknown_value("world_size")
    assert unknown is not None
    assert len(unknown.reason) < 200


def test_group_of_a_shell_script_is_no_json():
    assert read_launch("{ torchrun pretrain_gpt.py --seed 1\n}").seed == 1


def test_trace_of_many_commands_is_read_at_once():
    text = "++ x.py a b\n" * 20_000 + "++ x.py --a b\n" * 1000 + "+ python pretrain_gpt.py --seed 1\n"
    start = time.process_time()
    (launch,) = read_launches(text)
    assert (launch.line, launch.arguments.seed) == (21_001, 1)
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    "program",
    ["tasks/eval_harness/evaluate.py", "analyze_data.py", "tools/create_doc_index.py", "report_x.py"],
)
def test_programs_that_evaluate_or_prepare_are_no_training_jobs(program):
    with pytest.raises(UsageError, match="no argument of a Megatron training job"):
        read_launches(f"python {program} --seq-length 8 --micro-batch-size 1")


@pytest.mark.parametrize("command", ["tasks/main.py --task RACE", "train.py --prompt-data a.jsonl"])
def test_jobs_without_gpt_data_have_no_data_to_check(command):
    (launch,) = read_launches(f"python {command} --micro-batch-size 1 --global-batch-size 8")
    assert unsupported_data(launch) is not None
    assert [result for result in check_launch(launch) if result.severity == "error"] == []


def test_long_json_lines_are_named_without_being_parsed(monkeypatch):
    monkeypatch.setattr(json, "loads", lambda *_, **__: pytest.fail("it was parsed"))
    with pytest.raises(UsageError, match="the text is JSON Lines, not a launch script"):
        read_launches(('{"x": [' + "[]," * 1_000_000 + "0]}\n") * 2)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("a.jsonl", "JSON Lines"), ("a.py", "a Python program")],
)
def test_another_kind_of_file_is_named(name, kind):
    with pytest.raises(UsageError, match=f"{name} is {kind}, not a launch script"):
        read_launches('{"text": "--data-path"}', path=name)


def test_hidden_arguments_are_noted():
    launch = read_launch(
        "python pretrain_gpt.py --seq-length 8 --fp16 $EXTRA_ARGS ${MORE[@]} --save $D --seed 9 ..."
    )
    assert launch.unseen == ("$EXTRA_ARGS", "${MORE[@]}", "...")
    assert (launch.seq_length, launch.seed, launch.unknown) == (8, 9, ())


@pytest.mark.parametrize("words", ["$@", '"$@"', "$*", '"${@}"', "${X[@]}", '"${X[*]}"'])
def test_arguments_that_are_not_in_the_text_end_a_list(words):
    text = f"python pretrain_gpt.py --data-path a b {words} --seq-length 8 {words}"
    for launch in (read_launch(text), read_words(text.split())):
        assert (launch.data_path, launch.seq_length, launch.problems) == (("a", "b"), 8, ())
        assert launch.unseen == (words.strip('"'),)
    unknown = read_launch(f"python pretrain_gpt.py --seq-length 8 --data-path {words}")
    assert (unknown.data_path, unknown.unknown) == (None, (("data_path", words.strip('"')),))
    escaped = read_launch("python pretrain_gpt.py --data-path a '$@'")
    assert (escaped.data_path, escaped.unseen) == (("a", "$@"), ())


@pytest.mark.parametrize(
    ("script", "path", "split", "unknown"),
    [
        ("[ $M ] && A='--split 9,1'; run --data-path a $A", ("a",), None, {"split"}),
        ("[ $M ] && A='--save x'; run --split 1,0 --data-path a $A", ("a",), "1,0", set()),
        ("[ $M ] && A='--split 9,1'; run --split 1,0 --data-path a $A", ("a",), None, {"split"}),
        ("[ $M ] && A='1 b'; run --data-path 1 a $A --split 1,0", None, "1,0", {"data_path"}),
        (
            "if [ $M ]; then A='1 b'; else A='--split 1,0'; fi; run --data-path a $A",
            None,
            None,
            {"data_path", "split"},
        ),
        (
            "A=9; [ $M ] && A='8 --split 1,0'; run --data-path a --seq-length $A",
            ("a",),
            None,
            {"seq_length", "split"},
        ),
        (
            "[ $M ] && A='--split 9,1'; [ $N ] && B=\"$A --save x\"; run --data-path a $B",
            ("a",),
            None,
            {"split"},
        ),
        ("[ $M ] && A='--split 9,1'; run --data-path a $A b", None, None, {"data_path", "split"}),
    ],
)
def test_options_that_an_undecided_condition_adds_are_unknown(script, path, split, unknown):
    launch = read_launch(script.replace("run", "torchrun pretrain_gpt.py"))
    assert (launch.data_path, launch.split, {name for name, _ in launch.unknown}) == (path, split, unknown)
    assert {reason for _, reason in launch.unknown} <= {"$M", "$N", "$N and $M", "$M and $N"}
    assert launch.unseen == ()


def test_an_unknown_word_after_the_first_of_a_list_is_one_of_its_values():
    launch = read_launch("python pretrain_gpt.py --data-path 0.5 $A 0.5 b --fp16 $FP8 $MORE --seed 7")
    assert (launch.data_path, launch.unknown, launch.seed) == (None, (("data_path", "$A"),), 7)
    assert launch.unseen == ("$MORE",)


@pytest.mark.parametrize(
    "option",
    [
        "--train-data a.json",
        "--valid-data b.json",
        "--finetune-hf-dataset x/y",
        "--train-weighted-split-paths-path list.txt",
        "--dataset LLama-Pretrain-Raw",
        "--train-mode finetune",
        "--mock-data",
    ],
)
def test_data_of_other_kinds_is_not_checked(option):
    (launch,) = read_launches(f"python pretrain_gpt.py --split 9,1,0 --train-iters 5 {option}")
    unsupported = unsupported_data(launch)
    assert unsupported is not None
    assert not unsupported.has_other_names_only


def test_the_batch_size_follows_from_the_processes():
    launch = read_launch(
        "torchrun --nproc-per-node 8 pretrain_gpt.py --micro-batch-size 3 "
        "--context-parallel-size 2 --train-iters 10"
    )
    assert (launch.data_parallel_size, launch.batch_size, launch.sizes().train) == (4, 12, 120)
    unknown = read_launch("python pretrain_gpt.py --micro-batch-size 3 --train-iters 10")
    with pytest.raises(UsageError, match="the global batch size is required"):
        unknown.sizes()
    assert LaunchArguments(world_size=8, tensor_model_parallel_size=3).data_parallel_size is None


def slow_steps(schedule: list[tuple[int, int]], samples: int) -> int:
    """Step by step, as the training loop counts."""
    consumed = steps = 0
    while consumed < samples:
        consumed += [batch for first, batch in schedule if first <= consumed][-1]
        steps += 1
    return steps


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(1, 40)), max_size=4, unique_by=lambda pair: pair[0]),
    st.integers(1, 40),
    st.integers(1, 500),
)
def test_steps_of_a_schedule_are_counted_as_the_loop_counts(later, first, samples):
    schedule = [(0, first), *sorted(later)]
    text = " ".join(f"{threshold}:{batch}" for threshold, batch in schedule)
    launch = LaunchArguments(
        step_batch_size_schedule=text,
        train_samples=samples,
        micro_batch_size=1,
        world_size=1,
        eval_interval=1,
    )
    assert launch.training().train_iters == slow_steps(schedule, samples)


@pytest.mark.parametrize(
    "text", ["", "5:1", "0", "0:x", "0:0", "0:8 1M", "0:8 1e999:9", "0:8 9:1e999", "0:8 0:9"]
)
def test_a_wrong_schedule_is_an_error(text):
    launch = LaunchArguments(step_batch_size_schedule=text)
    errors = [finding.message for finding in check_processes(launch)]
    assert [message.startswith("--step-batch-size-schedule is invalid: ") for message in errors] == [True]


SYMBOLS = [
    "{",
    "}",
    ":",
    "[",
    "1",
    "'",
    " ",
    "\n",
    "$X",
    "(",
    "=",
    "-",
    "\\",
    ",",
    "\x00",
    "\udc80",
    '"seq_length"',
]
TOKENS = [
    "seq_length .... ",
    "data_path ... ",
    "--data-path",
    "--seq-length",
    "x.py",
    "None",
    "--nproc-per-node",
]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from([*SYMBOLS, *TOKENS]), max_size=12).map("".join))
def test_no_text_breaks_the_reader(text):
    try:
        launch = read_launch(text)
    except (UsageError, IntegrityError):
        return
    assert launch != LaunchArguments()
