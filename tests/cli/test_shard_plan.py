"""``tokshard shard-plan``, and ``inspect`` of what it has written."""

import json
import re
import shlex

import pytest

from support.command_line import failure, installed, json_of, tokshard
from support.mixture_data import run, write_mixture
from support.plain_datasets import Plain
from tokshard.ranks.plan import read_plan


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    directory = write_mixture(tmp_path_factory.mktemp("mixture"))
    blend = ["blend", "0.7", directory / "data/web", "0.3", directory / "data/code"]
    options = ["--seq-length", 8, "--num-samples", "60,8,4", "--split", "80,15,5"]
    assert run(*blend, *options, "-o", directory / "mix").returncode == 0
    return directory


def plan(mixture, output, *options, source=None):
    done = run("shard-plan", source or mixture / "mix", "-o", output, *options)
    assert done.returncode == 0, done.stderr
    return done


def documents(mixture):
    return str(mixture / "data/[wc]*")


SMALL = ("--data-parallel", 2, "--eval-global-batch-size", 2)


def test_a_blend_is_planned_and_shown(mixture, tmp_path):
    done = plan(mixture, tmp_path / "plan", *SMALL, "--micro-batch-size", 2, "--eval-micro-batch-size", 1)
    for text in (
        "15 with a global batch size of 4",
        "30 samples in micro-batches of 2\n",
    ):
        assert text in done.stdout
    assert f"next: tokshard inspect {tmp_path}/plan" in done.stdout
    data = f"{mixture}/data"
    unknown = f"warning: the tokenizers of {data}/web, {data}/code are unknown and were not compared"
    assert done.stderr.splitlines() == [unknown]
    shown = tokshard("inspect", tmp_path / "plan", env={"COLUMNS": "300"}).stdout  # the paths are long
    ranks = "2 data-parallel ranks, 2 samples at a time, round-robin"
    assert f"single: 60 samples over {ranks}, 30 per rank; tail drop" in shown
    header, web, code = shown.partition("(dp) reads\n")[2].splitlines()[:3]
    assert header.split()[-4:] == ["dp", "0", "dp", "1"]
    assert (web.split()[0], web.split()[3:]) == (f"{data}/web", ["70.00%", "70.00%", "70.00%"])
    assert (code.split()[0], code.split()[3:]) == (f"{data}/code", ["30.00%", "30.00%", "30.00%"])


def test_ranks_and_datasets_that_the_table_of_shares_leaves_out_are_counted(mixture, tmp_path):
    plan(mixture, tmp_path / "plan", "--data-parallel", 20, "--steps", 1, "--split", "train")
    shown = tokshard("inspect", tmp_path / "plan", env={"COLUMNS": "300"}).stdout
    header = shown.partition("(dp) reads\n")[2].splitlines()[0]
    assert header.split()[-2:] == ["dp", "19"]
    assert header.count("dp ") == 16
    assert "4 more ranks are not shown." in shown


def test_the_boundaries_of_a_rank_are_shown(mixture, tmp_path):
    plan(mixture, tmp_path / "plan", *SMALL, "--tensor-parallel", 2)
    for rank, samples in ((0, 30), (1, 0)):
        command = ("inspect", tmp_path / "plan", "--rank", rank)
        reads = json_of(tokshard(*command, "--json"))["streams"]["train"]
        assert sum(part["samples"] for part in reads["datasets"]) == samples == reads["manifest"]["samples"]
        shown = tokshard(*command).stdout
        assert f"samples      {samples}\n" in shown
        assert [part["prefix"] for part in reads["datasets"]] == [
            f"{mixture}/data/web",
            f"{mixture}/data/code",
        ]
        if not samples:
            assert reads["first"] is reads["last"] is None
            continue
        for label, index, step in (("first", 0, 0), ("last", 29, reads["manifest"]["steps"] - 1)):
            place = reads[label]
            assert (place["index"], place["step"]) == (index, step)
            where = f"sample {place['dataset_sample']} of {place['prefix']} (id {place['sample']})"
            assert f"{label:<12} index {index}, step {step}: {where}\n" in shown


def test_the_result_as_json(mixture, tmp_path):
    done = tokshard("shard-plan", mixture / "mix", "-o", tmp_path / "plan", *SMALL, "--json")
    value = json_of(done)
    assert value["schema"] == "tokshard.shard-plan/2"
    assert value["plan"]["plan_id"] == read_plan(tmp_path / "plan").plan_id
    assert (value["output"], value["action"], value["files"]) == (str(tmp_path / "plan"), "written", 3)
    assert value["size_bytes"] == sum(path.stat().st_size for path in (tmp_path / "plan").iterdir())
    (epochs,) = value["plan"]["streams"]["test"]["order"]["epoch_ranges"]
    assert epochs["total"] - epochs["read"] == 1


def test_a_dry_run_writes_nothing(mixture, tmp_path):
    done = plan(mixture, tmp_path / "plan", *SMALL, "--dry-run")
    assert "nothing was written" in done.stdout
    assert not (tmp_path / "plan").exists()
    assert run("shard-plan", mixture / "mix", "-o", tmp_path / "plan", *SMALL, "--quiet").stdout == ""


def test_megatrons_spellings_mean_the_same(mixture, tmp_path):
    ours = ["--tensor-parallel", 2, "--pipeline-parallel", 2, "--context-parallel", 2, "--steps", 3]
    theirs = ["--tensor-model-parallel-size", 2, "--pipeline-model-parallel-size", 2]
    theirs += ["--context-parallel-size", 2, "--train-iters", 3]
    by_data = ["--data-parallel", 2]
    plan(mixture, tmp_path / "a", "--world-size", 16, *ours, *SMALL[2:])
    plan(mixture, tmp_path / "b", "--world-size", 16, *theirs, *SMALL[2:])
    plan(mixture, tmp_path / "c", *by_data, *ours, *SMALL[2:])
    assert len({read_plan(tmp_path / name).plan_id for name in "abc"}) == 1
    assert read_plan(tmp_path / "a").topology.world_size == 16


def test_another_plan_is_replaced_only_by_force(mixture, tmp_path):
    plan(mixture, tmp_path / "plan", *SMALL)
    plan(mixture, tmp_path / "plan", *SMALL)
    refused = run("shard-plan", mixture / "mix", "-o", tmp_path / "plan", "--data-parallel", 1)
    assert refused.returncode == 4
    assert "pass --force to replace it" in refused.stderr
    plan(mixture, tmp_path / "plan", "--data-parallel", 1, "--force")
    assert sorted(path.name for path in (tmp_path / "plan").iterdir()) == ["plan.json", "rank-00000.json"]


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ([], 2, "the number of ranks is required"),
        (["--world-size", 6, "--tensor-parallel", 4], 2, "the world size must be divisible by"),
        (["--world-size", 8, "--data-parallel", 3], 2, "--world-size must be --data-parallel x"),
        (["--data-parallel", 2, "--global-batch-size", 5], 2, "the global batch size must be divisible by"),
        (["--data-parallel", 1, "--context-parallel", 3], 2, "sequence length must be divisible by"),
        (["--data-parallel", 2, "--steps", 31], 2, "30 steps are left in an epoch of 60 samples"),
        (["--data-parallel", 2, "--tail", "cut"], 2, "--tail must be one of drop, pad, got 'cut'"),
        (
            ["--data-parallel", 2, "--mode", "random"],
            2,
            "--mode must be one of single, cyclic, contiguous, sequential, chunked, got",
        ),
        (
            ["--data-parallel", 2, "--mtp-stages", "a"],
            2,
            "--mtp-stages must be a list of numbers such as 3,7, got 'a'",
        ),
        (["--data-parallel", 2, "--split", "none"], 2, "got 'none'"),
        (["--data-parallel", 2, "--rampup-batch-size", 2, 2, 20], 2, "requires --global-batch-size"),
        (["--data-parallel", 2, "--decrease-batch-size-if-needed"], 2, "requires --global-batch-size"),
        (["--data-parallel", 2, "--step-batch-size-schedule", "0"], 2, "hint: pass for example --step-"),
        (
            ["--data-parallel", 2, "--step-batch-size-schedule", "0:2", "--global-batch-size", 2],
            2,
            "--step-batch-size-schedule cannot be used with --global-batch-size",
        ),
    ],
)
def test_what_cannot_be_planned_is_one_sentence_and_an_exit_code(mixture, tmp_path, options, code, message):
    done = run("shard-plan", mixture / "mix", "-o", tmp_path / "plan", "--split", "train", *options)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "plan").exists()


def test_what_is_not_there_is_said(tmp_path):
    done = run("shard-plan", tmp_path / "no", "-o", tmp_path / "plan", "--data-parallel", 2)
    assert done.returncode == 3
    assert "no blend, index or index cache found" in done.stderr


def test_documents_and_their_shards_are_drawn(mixture, tmp_path):
    options = ["--documents", "--mode", "contiguous", "--data-parallel", 4]
    plan(mixture, tmp_path / "plan", *options, source=documents(mixture))
    shown = run("inspect", tmp_path / "plan").stdout
    lines = shown.partition("Sample ids of")[2].splitlines()[1:]
    bars = [line.split("│")[1] for line in lines if "│" in line]
    code, web, *ranks = bars
    assert len(ranks) == 4
    assert (code.startswith("█"), code.endswith("█")) == (True, False)
    assert (web.startswith("█"), web.endswith("█")) == (False, True)
    starts = [len(bar) - len(bar.lstrip()) for bar in ranks]
    assert starts == [len(ranks[0]) * part // 4 for part in range(4)]  # however wide the terminal is


def test_ranks_that_read_alike_share_a_line(mixture, tmp_path):
    options = ["--world-size", 8, "--tensor-parallel", 2, "--pipeline-parallel", 2, "--documents"]
    plan(mixture, tmp_path / "plan", *options, source=documents(mixture))
    shown = tokshard("inspect", tmp_path / "plan", env={"COLUMNS": "120"}).stdout.splitlines()
    assert sum(line.startswith("  dp ranks 0-1 │░") for line in shown) == 1
    header, *ranks = shown[shown.index("Ranks") + 1 :]
    assert header.split() == ["ranks", "tensor", "data", "pipeline", "fields", "read"]
    assert [" ".join(line.split()) for line in ranks] == [
        "0, 2 0 0-1 0 tokens, position_ids, attention_mask",
        "1, 3, 5 and 1 more 1 0-1 0-1 nothing: other ranks send it",
        "4, 6 0 0-1 1 labels, loss_mask, attention_mask",
    ]


def test_a_schedule_is_in_tokens_and_shown(mixture, tmp_path):
    options = ["--step-batch-size-schedule", "0:4 160:8", "--split", "train", "--data-parallel", 2]
    done = plan(mixture, tmp_path / "plan", *options)
    assert "10 with a global batch size of 4 to 8" in done.stdout
    order = read_plan(tmp_path / "plan").streams["train"].order
    assert order.schedule.segments == ((0, 4), (20, 8))


def test_a_ramp_and_its_rounding(mixture, tmp_path):
    options = ["--rampup-batch-size", 4, 2, 20, "--global-batch-size", 8, "--data-parallel", 4]
    options += ["--decrease-batch-size-if-needed", "--split", "train"]
    plan(mixture, tmp_path / "plan", *options)
    timeline = read_plan(tmp_path / "plan").streams["train"].order.timeline
    assert [size for _, _, size in timeline.pieces] == [4, 4, 8]


def test_every_option_reaches_the_plan(mixture, tmp_path):
    options = ["--documents", "--split", "90,10", "--mode", "chunked", "--shuffle", "windows:4:3"]
    options += ["--shuffle-per-epoch"]
    options += ["--tail", "pad", "--seed", 99, "--epochs", 3]
    options += [
        "--bucket-buffer",
        24,
        "--bucket-pack",
        6,
        "--bucket-by",
        "sequences",
        "--order",
        "tp-cp-ep-dp-pp",
    ]
    options += ["--world-size", 12, "--tensor-parallel", 2, "--pipeline-parallel", 2]
    options += ["--order", "tp-cp-ep-dp-pp", "--mtp-stages", "0,1"]
    options += ["--document-boundaries", "--consumed-samples", 6, "--no-digests", "--full-validation"]
    options += ["--consumed-valid-samples", 3]
    plan(mixture, tmp_path / "plan", *options, source=documents(mixture))
    found = read_plan(tmp_path / "plan")
    train, valid = found.streams["train"], found.streams["valid"]
    assert (train.mode, train.tail, train.sort_key) == ("chunked", "pad", "sequences")
    (epoch_range,) = train.order.epoch_ranges
    _, bucketing, shuffle, blocks = epoch_range.links
    assert (bucketing.buffer, bucketing.pack, bucketing.seed) == (24, 6, 99)
    assert (shuffle.window, shuffle.seed, shuffle.per_epoch) == (12, 99, True)
    assert (blocks.block, blocks.seed, blocks.per_epoch) == (4, 99, True)
    assert (epoch_range.epochs, train.order.consumed_samples, train.order.skipped) == (3, 6, 6)
    topology = found.topology
    assert (topology.rank_order, topology.mtp_stages) == ("tp-cp-ep-dp-pp", (0, 1))
    assert (train.document_boundaries, valid.document_boundaries) == (True, True)
    assert (valid.mode, valid.order.consumed_samples) == ("full-validation", 3)
    whole = ["--documents", "--shuffle", "datasets", "--data-parallel", 2]
    plan(mixture, tmp_path / "datasets", *whole, source=documents(mixture))
    train = read_plan(tmp_path / "datasets").streams["train"]
    (datasets,) = train.order.epoch_ranges[0].links
    assert datasets.sizes == tuple(reference.samples for reference in train.source.datasets)
    assert (datasets.seed, datasets.per_epoch) == (1234, False)
    cyclic = ["--mode", "cyclic", "--no-data-sharding", "--equal-counts", "--data-parallel", 3, "--steps", 5]
    plan(mixture, tmp_path / "cyclic", *cyclic, "--micro-batch-size", 4, "--split", "train")
    _, torch = read_plan(tmp_path / "cyclic").streams["train"].order.epoch_ranges[0].links
    assert (torch.blocks, torch.length) == (1, 60)


def test_the_windowed_shuffle_is_described_and_has_defaults(mixture, tmp_path):
    options = [*SMALL, "--documents", "--shuffle"]
    plan(mixture, tmp_path / "plan", *options, "windows", source=documents(mixture))
    plan(mixture, tmp_path / "plan", *options, "windows:256:4096", source=documents(mixture))
    options += ["windows:3:2", "--force"]
    shown = plan(mixture, tmp_path / "plan", *options, source=documents(mixture)).stdout
    assert "blocks of 3 samples in random order by tokshard.feistel/1, seed 1234" in shown
    assert "windows of 6 samples shuffled by tokshard.feistel/1, seed 1234" in shown


@pytest.mark.parametrize(
    ("shuffle", "message"),
    [
        ("shards", "must be one of none, samples, datasets, windows or windows:BLOCK:WINDOW, got 'shards'"),
        ("samples:3:4", "or windows:BLOCK:WINDOW, got 'samples:3:4'"),
        ("windows:3", "or windows:BLOCK:WINDOW, got 'windows:3'"),
        ("windows:3:x", "must be windows:BLOCK:WINDOW with numbers of at least 1, got 'windows:3:x'"),
        ("windows:0:4", "must be windows:BLOCK:WINDOW with numbers of at least 1, got 'windows:0:4'"),
    ],
)
def test_a_shuffle_that_does_not_exist_is_refused(mixture, tmp_path, shuffle, message):
    done = run("shard-plan", mixture / "mix", "-o", tmp_path / "x", *SMALL, "--shuffle", shuffle)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"--shuffle {message}" in done.stderr if shuffle == "shards" else message in done.stderr


def test_an_index_that_a_job_names_otherwise(mixture, tmp_path):
    local, job = mixture / "data", "/job/data"
    cache = ["--cache-dir", tmp_path / "cache", "--path-as", f"{local}={job}"]
    made = run("build-indices", local / "web", "--seq-length", 8, "--split", "1", "--epochs", 1, *cache)
    assert made.returncode == 0, made.stderr
    plan(mixture, tmp_path / "plan", *SMALL, "--path-as", f"{local}={job}", source=tmp_path / "cache")
    stream = read_plan(tmp_path / "plan").streams["train"]
    assert stream.source.datasets[0].path_prefix == str(local / "web")


def test_a_rank_a_step_a_sample_and_a_shard_are_inspected(mixture, tmp_path):
    plan(mixture, tmp_path / "plan", *SMALL)
    at = tmp_path / "plan"
    first = json.loads(run("inspect", at, "--rank", 1, "--step", 4, "--json").stdout)
    (place,) = first["places"]
    assert (place["sample"], place["data_parallel_rank"], place["index"]) == (9, 1, 4)
    for question in (
        ["--sample", 9],
        ["--dataset-sample", f"{place['dataset']}:{place['dataset_sample']}"],
        ["--rank", 1, "--index", 4],
    ):
        found = json.loads(run("inspect", at, *question, "--json").stdout)
        assert found["places"] == [place]
    shown = run("inspect", at / "rank-00001.json", "--step", 4).stdout
    assert re.match(r"rank +1 of 2\ntensor +0\ncontext +0\ndata +1\npipeline +0\n", shown)
    assert "train, step 4" in shown
    assert json.loads(run("inspect", at, "--json").stdout)["schema"] == "tokshard.inspect-plan/2"
    valid = json.loads(run("inspect", at, "--sample", 3, "--stream", "valid", "--json").stdout)
    assert (valid["stream"], valid["places"][0]["step"]) == ("valid", 1)


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (["--sample", 3, "--rank", 1], "--rank cannot be used with --sample"),
        (["--step", 3, "--index", 1], "--step cannot be used with --index"),
        (["--step", 3], "the rank is required"),
        (["--rank", 1, "--epoch", 0], "--epoch requires"),
        (["--dataset-sample", "3"], "must be D:N"),
        (["--dataset-sample", "-1:2"], "must be D:N"),
        (["--rank", 9], "rank must be from 0 to 1, got 9"),
        (["--sample", 60], "the sample of train must be 0 to 59, got 60"),
        (["--stream", "eval", "--sample", 1], "the stream must be train or valid or test, got 'eval'"),
    ],
)
def test_questions_that_do_not_fit_are_refused(mixture, tmp_path, question, message):
    plan(mixture, tmp_path / "plan", *SMALL)
    done = run("inspect", tmp_path / "plan", *question)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


def test_a_damaged_plan_is_an_integrity_error(mixture, tmp_path):
    plan(mixture, tmp_path / "plan", *SMALL)
    file = tmp_path / "plan/plan.json"
    file.write_text(file.read_text().replace('"micro_batch_size": 1', '"micro_batch_size": 2'))
    done = run("inspect", tmp_path / "plan")
    assert done.returncode == 6
    assert "plan.json" in done.stderr


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rank-00000.json", b'{"theirs": 1}\n'),
        ("rank-00007.json", b'{"theirs": 1}\n'),
        ("rank-00000.json", b"not JSON"),
        ("rank-00001.json", None),
        ("sources.json", b'{"theirs": 1}\n'),
    ],
)
def test_shard_plan_keeps_files_of_other_programs(tmp_path, name, content):
    Plain("uint16", [[[1, 2]], [[3]]]).write(tmp_path / "web")
    plan = tmp_path / "plan"
    plan.mkdir()
    if content is None:
        (plan / name).mkdir()
    else:
        (plan / name).write_bytes(content)
    command = ["shard-plan", "--documents", tmp_path / "web", "--data-parallel", "1", "-o", plan]
    run = installed if name == "rank-00000.json" else tokshard
    assert failure(run(*command)) == (
        4,
        f"cannot write the plan: {plan}/{name} belongs to another program",
        "pass another --output, or --force to replace it",
    )
    assert [path.name for path in plan.iterdir() if path.name != ".plan.lock"] == [name]
    if content is not None:
        assert (plan / name).read_bytes() == content
        assert tokshard(*command, "--force").returncode == 0
        assert b'"tokshard.rank/2"' in (plan / "rank-00000.json").read_bytes()


def test_shard_plan_replaces_a_damaged_manifest_of_its_own(tmp_path):
    Plain("uint16", [[[1, 2]], [[3]]]).write(tmp_path / "web")
    plan = tmp_path / "plan"
    command = ["shard-plan", "--documents", tmp_path / "web", "--data-parallel", "1", "-o", plan]
    assert tokshard(*command).returncode == 0
    whole = (plan / "rank-00000.json").read_bytes()
    (plan / "rank-00000.json").write_bytes(whole[:100])
    assert tokshard(*command).returncode == 0
    assert (plan / "rank-00000.json").read_bytes() == whole


def test_a_plan_whose_data_has_moved_is_inspected(tmp_path):
    old = tmp_path / "old"
    new = tmp_path / "new"
    old.mkdir()
    write_mixture(old)
    blend = ["blend", "1", old / "data/web", "1", old / "data/code", "--seq-length", 8, "--num-samples", 40]
    assert run(*blend, "--split", 1, "-o", old / "mix").returncode == 0
    plan({}, old / "plan", "--data-parallel", 2, source=old / "mix")
    expected = run("inspect", old / "plan", "--json").json
    rank = run("inspect", old / "plan", "--rank", 1, "--step", 3, "--json").json
    old.rename(new)
    moved = ("--moved", f"{old}={new}")
    assert failure(run("inspect", new / "plan")) == (
        3,
        f"file of the plan not found: {old}/mix/blend.json",
        "if the data has moved, pass --moved OLD=NEW (inspect, trace, replan) or roots={OLD: NEW} (Python)",
    )
    found = run("inspect", new / "plan", *moved, "--json").json
    assert str(found).replace(str(new), str(old)) == str(expected)
    of_rank = run("inspect", new / "plan", *moved, "--rank", 1, "--step", 3, "--json").json
    assert str(of_rank).replace(str(new), str(old)) == str(rank)
    assert run("inspect", new / "plan", *moved, "--html", tmp_path / "plan.html").returncode == 0
    assert failure(run("inspect", new / "data/web", *moved)) == (
        2,
        f"--moved requires a plan, got {new}/data/web (indexed dataset)",
        "leave out --moved",
    )
    done = run("replan", new / "plan", "--consumed-samples", 20, *moved, "-o", new / "plan2")
    assert done.returncode == 0, done.stderr
    assert run("verify", new / "plan2").returncode == 0
    assert (new / "plan2/sources.json").exists()


def test_the_hint_about_an_index_without_a_record_makes_it_readable(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Plain("uint16", [[[1] * 40]] * 20).write("web")
    options = ("--seq-length", "8", "--num-samples", "50", "--split", "1", "--cache-dir", "cache")
    build = ("build-indices", "web", *options)
    assert run(*build).returncode == 0
    (record,) = (tmp_path / "cache").glob("*-tokshard.json")
    array = record.with_name(record.name.replace("tokshard.json", "shuffle_index.npy"))
    before = array.read_bytes()
    record.unlink()
    plan_words = ("shard-plan", "cache", "--data-parallel", "1", "-o", "plan")
    code, error, hint = failure(installed(*plan_words))
    assert (code, "is unverified" in error) == (6, True)
    command = shlex.split(hint.split("`")[1])
    assert command[0] == "tokshard"
    done = installed(*command[1:])
    assert done.returncode == 0, done.stderr
    assert array.read_bytes() == before
    assert installed(*plan_words).returncode == 0
