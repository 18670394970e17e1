"""``shard-plan --from-launch``: the plan of a launch script's job."""

from __future__ import annotations

from pathlib import Path

import pytest

import tokshard
from support.command_line import failure, installed, json_of
from support.index_caches import write_dataset
from support.mixture_data import run, write_mixture
from tokshard.cli.generate import Given

SCRIPTS = Path(__file__).parents[1] / "checks/doctor/launch/scripts"
EPOCHS = ("--documents", "--epochs", 10**6)
JOB = "pretrain_gpt.py --micro-batch-size 2 --train-iters 20"


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    """Return a directory with datasets of two sizes and a blend."""
    directory = write_mixture(tmp_path_factory.mktemp("launch"))
    write_dataset(str(directory / "data/many"), [1] * 20_000)
    data = ("1", directory / "data/web", "1", directory / "data/code")
    options = ("--seq-length", 8, "--split", "1", "--num-samples", 400)
    done = run("blend", *data, *options, "-o", directory / "mix")
    assert done.returncode == 0, done.stderr
    return directory


def plan(workshop, *options, source="mix"):
    """Return the plan of a dry run of the installed command, as JSON."""
    done = installed("shard-plan", source, *options, "-o", "plan", "--dry-run", "--json", cwd=workshop)
    assert done.returncode == 0, done.stderr
    return json_of(done)["plan"]


def refused(workshop, launch, *options, source="mix"):
    words = ("shard-plan", source, "--from-launch", launch, *options, "-o", "refused")
    done = installed(*words, cwd=workshop)
    assert not (workshop / "refused").exists()
    return failure(done)


@pytest.mark.parametrize(
    ("script", "passed", "explicit"),
    [
        (
            "gpt-arrays.sh /c /l /v /m /d",
            (),
            (
                "--world-size 8 --tensor-parallel 8 --global-batch-size 1536 --steps 500000 "
                "--rampup-batch-size 16 16 5859375"
            ),
        ),
        (
            "llama-real-data.sh",
            ("--set", "SLURM_NNODES=8"),
            (
                "--world-size 64 --tensor-parallel 2 --context-parallel 2 --global-batch-size 128 "
                "--steps 15258789"
            ),
        ),
        (
            "llama-real-data.sh",
            ("--world-size", 32),
            (
                "--world-size 32 --tensor-parallel 2 --context-parallel 2 --global-batch-size 128 "
                "--steps 15258789"
            ),
        ),
        (
            "srun-array-in-string.sh",
            ("--iteration", 1000),
            (
                "--world-size 32 --micro-batch-size 4 --global-batch-size 128 --consumed-samples 128000 "
                "--steps 49000"
            ),
        ),
        (
            "slurm-nodes-set.sh",
            ("--set", "SLURM_NNODES=4"),
            "--world-size 32 --global-batch-size 96 --mode cyclic --steps 1000",
        ),
        (
            "printed-arguments.log",
            (),
            (
                "--world-size 64 --tensor-parallel 4 --context-parallel 2 --micro-batch-size 2 "
                "--global-batch-size 512 --rampup-batch-size 64 64 1000000 --steps 200000"
            ),
        ),
        ("functions.sh", (), "--world-size 8 --micro-batch-size 2 --global-batch-size 128 --steps 400"),
    ],
)
def test_a_plan_from_a_launch_script_equals_the_plan_with_its_options(workshop, script, passed, explicit):
    path, *parameters = f"{SCRIPTS}/{script}".split()
    options = (*EPOCHS, *passed)
    found = plan(workshop, *options, "--from-launch", " ".join([path, *parameters]), source="data/many")
    assert found["plan_id"] == plan(workshop, *EPOCHS, *explicit.split(), source="data/many")["plan_id"]


@pytest.mark.parametrize(
    ("launch", "explicit"),
    [
        (
            (
                f"torchrun --nproc-per-node 8 {JOB} --pipeline-model-parallel-size 4 --mtp-num-layers 1 "
                "--use-tp-pp-dp-mapping"
            ),
            (
                "--world-size 8 --pipeline-parallel 4 --mtp-stages 3 --order tp-cp-ep-pp-dp "
                "--micro-batch-size 2 --steps 20"
            ),
        ),
        (
            (
                f"torchrun --nproc-per-node 4 {JOB} --dataloader-type cyclic --no-data-sharding "
                "--eval-global-batch-size 8 --eval-micro-batch-size 1"
            ),
            (
                "--world-size 4 --micro-batch-size 2 --steps 20 --mode cyclic --no-data-sharding "
                "--eval-global-batch-size 8 --eval-micro-batch-size 1"
            ),
        ),
        (
            (
                f"torchrun --nproc-per-node 2 {JOB} --step-batch-size-schedule '0:4 640:8' --seq-length 8 "
                "--full-validation"
            ),
            (
                "--world-size 2 --micro-batch-size 2 --steps 20 --step-batch-size-schedule 0:4,640:8 "
                "--full-validation"
            ),
        ),
        (
            f"torchrun --nproc-per-node 3 {JOB} --global-batch-size 16 --decrease-batch-size-if-needed",
            (
                "--world-size 3 --micro-batch-size 2 --global-batch-size 16 --decrease-batch-size-if-needed "
                "--steps 20"
            ),
        ),
        # Megatron's own ranks pass on what an external loader reads.
        (
            f"torchrun --nproc-per-node 8 {JOB} --tensor-model-parallel-size 4 --dataloader-type external",
            "--data-parallel 2 --micro-batch-size 2 --steps 20",
        ),
        (
            (
                "srun -n 4 pretrain_gpt.py --micro-batch-size 1 --train-samples 90 --global-batch-size 16 "
                "--rampup-batch-size 8 4 32"
            ),
            "--world-size 4 --global-batch-size 16 --rampup-batch-size 8 4 32 --steps 7",
        ),
    ],
)
def test_each_argument_reaches_the_plan(workshop, launch, explicit):
    found = plan(workshop, "--from-launch", launch)
    assert found["plan_id"] == plan(workshop, *explicit.split())["plan_id"]


def test_a_resumed_job_is_planned_from_its_iteration(workshop):
    job = f"torchrun --nproc-per-node 2 {JOB} --global-batch-size 8 --rampup-batch-size 4 4 16"
    found = plan(workshop, "--from-launch", job, "--iteration", 6)
    explicit = "--data-parallel 2 --micro-batch-size 2 --global-batch-size 8 --rampup-batch-size 4 4 16"
    expected = plan(workshop, *explicit.split(), "--consumed-samples", 32, "--steps", 14)
    assert found["plan_id"] == expected["plan_id"]
    by_samples = plan(workshop, "--from-launch", job, "--consumed-samples", 32)
    assert by_samples["plan_id"] == expected["plan_id"]


@pytest.mark.parametrize(
    ("launch", "options", "error", "hint"),
    [
        (
            f"srun {JOB}",
            (),
            "the plan of the job is unknown: the number of processes depends on the configuration of srun",
            "pass --set WORLD_SIZE=N, or --world-size N",
        ),
        (
            f"python {JOB}",
            (),
            "the plan of the job is unknown: the command does not contain the number of processes",
            "pass --set WORLD_SIZE=N, or --world-size N",
        ),
        (
            f"torchrun --nnodes $NODES {JOB}",
            (),
            "the plan of the job is unknown: the number of processes depends on $NODES",
            "pass --set NODES=VALUE, or --world-size N",
        ),
        (
            f"torchrun --nproc-per-node $(nproc) {JOB}",
            (),
            "the plan of the job is unknown: the number of processes depends on $(nproc)",
            "pass --set WORLD_SIZE=N, or --world-size N",
        ),
        (
            f"torchrun {JOB} --tensor-model-parallel-size $TP",
            (),
            "the plan of the job is unknown: --tensor-model-parallel-size depends on $TP",
            "pass --set TP=VALUE",
        ),
        (
            f"torchrun {JOB} $ARGS",
            (),
            "the plan of the job is unknown: $ARGS may contain more arguments",
            "pass --set ARGS=VALUE",
        ),
        (
            "torchrun pretrain_gpt.py --train-iters 9",
            (),
            "the plan of the job is unknown: the command does not contain --micro-batch-size",
            "pass the launch command with this value, or the log of an earlier run of the job",
        ),
        (
            f"srun {JOB} --tensor-model-parallel-size 4 --pipeline-model-parallel-size 2",
            ("--world-size", 12),
            "the number of processes must be divisible by 8 (tensor x pipeline x context), got 12",
            "start a multiple of 8 processes, or change the parallel sizes",
        ),
        (
            f"torchrun --nproc-per-node 8 {JOB} --global-batch-size 24",
            (),
            "--global-batch-size must be divisible by 16 (2 for each of 8 data-parallel ranks), got 24",
            "use --global-batch-size 32, or other parallel sizes",
        ),
        (
            f"torchrun {JOB} --rampup-batch-size 2 b 9 --global-batch-size 4",
            (),
            "--rampup-batch-size must be an integer, got 'b'",
            "correct this option, or the launch command",
        ),
        (
            f"torchrun {JOB} --seq-length 4096",
            (),
            "mix/blend.json has samples of 8 tokens, but the launch command has --seq-length 4096",
            "pass the blend of this job, which tokshard blend --from-launch builds",
        ),
        (
            f"torchrun {JOB}",
            ("--iteration", 20),
            "the job has no steps after step 20 and 40 consumed samples",
            "pass the --iteration or --consumed-samples of a checkpoint of this job",
        ),
        (
            f"torchrun {JOB} --dataloader-type batch",
            (),
            "--dataloader-type must be one of cyclic, external, single, got 'batch'",
            "correct the value",
        ),
        (
            f"torchrun {JOB} --phase-transition-iterations 4",
            (),
            "the launch command has --phase-transition-iterations, which --from-launch cannot plan",
            "pass the ranks, batches and steps as options instead of --from-launch",
        ),
        (
            (
                f"torchrun --nproc-per-node 2 {JOB} --pipeline-model-parallel-size 2 --mtp-num-layers 1 "
                "--pipeline-model-parallel-layout Et*2|m|L"
            ),
            (),
            (
                "the launch command has --pipeline-model-parallel-layout and --mtp-num-layers, which "
                "--from-launch cannot plan"
            ),
            "pass the ranks, batches and steps as options instead of --from-launch",
        ),
        (
            f"torchrun {JOB} --step-batch-size-schedule 0:4 --seq-length 8",
            ("--documents",),
            "the launch command has --step-batch-size-schedule in tokens, which --from-launch cannot plan",
            "pass the ranks, batches and steps as options instead of --from-launch",
        ),
        (
            f"torchrun {JOB}",
            ("--epochs", 0),
            "--epochs must be at least 1, got 0",
            "correct this option, or the launch command",
        ),
        (
            f"torchrun -h {JOB}; torchrun --nproc-per-node 2 {JOB}",
            (),
            "2 launch commands need different plans: line 1; line 1",
            "pass one of the commands in quotes; `tokshard doctor --show-command` prints them",
        ),
    ],
)
def test_a_launch_command_that_cannot_be_planned_is_refused(workshop, launch, options, error, hint):
    assert refused(workshop, launch, *options) == (2, error, hint)


def test_more_samples_than_fit_a_plan_are_refused(workshop):
    job = f"torchrun pretrain_gpt.py --micro-batch-size 2 --train-samples {10**30}"
    code, error, _ = refused(workshop, job, *EPOCHS, source="data/many")
    assert (code, "fewer than the required 2,305,843,009,213,693,952" in error) == (2, True), error


def test_a_script_that_is_missing_is_named(workshop):
    code, error, hint = refused(workshop, "no.sh")
    assert (code, error) == (3, "launch script not found: no.sh")
    assert hint == "pass a file with the launch command, or the command itself"


def test_options_that_the_launch_command_decides_are_refused_by_name(workshop):
    declared = Given(tokshard.ShardPlanOptions, {}, "shard-plan").declared
    values = {
        "order": "tp",
        "rampup_batch_size": "1 1 1",
        "mode": "cyclic",
        "step_batch_size_schedule": "0:8",
    }
    free = {"documents", "split", "path_as", "digests", "allow_tokenizer_mismatch", "epochs", "equal_counts"}
    free |= {
        "consumed_samples",
        "consumed_valid_samples",
        "tail",
        "seed",
        "document_boundaries",
        "force",
        "lock",
    }
    free |= {name for name in declared if name.startswith(("shuffle", "bucket"))}
    decided = declared.keys() - free - {"sources", "output"}
    assert len(decided) == 18
    launch = f"torchrun --nproc-per-node 2 {JOB} --global-batch-size 4"
    for field in decided:
        words = [declared[field].name, *values.get(field, "1").split()]
        if declared[field].kind is bool:
            words = declared[field].words(not declared[field].default)
        done = run("shard-plan", workshop / "mix", "-o", "x", "--from-launch", launch, *words)
        assert f"error: {declared[field].name} cannot be used with --from-launch\n" in done.stderr
        assert f"hint: remove {declared[field].name}: the launch command decides about it\n" in done.stderr


def test_options_about_the_script_require_it(workshop):
    for option, value in (("--set", "A=1"), ("--iteration", "1")):
        done = run("shard-plan", workshop / "mix", "-o", "x", "--data-parallel", 1, option, value)
        assert (done.returncode, f"{option} requires --from-launch" in done.stderr) == (2, True)


def test_the_launch_command_is_read_from_stdin_and_warnings_are_shown(workshop):
    job = f"torchrun --nproc-per-node 2 {JOB} --tensor-model-parallel-size 2 --iterations-to-skip 3 $MORE"
    words = ("shard-plan", "mix", "-o", "from-stdin", "--from-launch", "-")
    done = installed(*words, cwd=workshop, stdin=job.encode())
    assert done.returncode == 0
    assert "warning: --iterations-to-skip may change the plan in ways that are not checked\n" in done.stderr
    assert (
        "warning: $MORE may contain more arguments; if they concern ranks or batches, pass --set MORE=VALUE\n"
        in done.stderr
    )
    assert "steps        20 with a global batch size of 2\n" in done.stdout
