"""A Megatron job's start emulated: its own tokenizer and builder over a blend that commands prepared."""

from __future__ import annotations

import importlib
import importlib.metadata
import io
import json
import random
import re
import shlex
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from oracle.reference import Megatron, Recorder, file_states, tree
from support.command_line import SAMPLE, tokshard
from tokshard import dump_tokenizer_identifiers
from tokshard.samples.index.identifiers import MEGATRON_VERSIONS, megatron_identifiers
from tokshard.samples.index.sizes import TrainingOptions

pytestmark = pytest.mark.oracle

ROOT = Path(__file__).parents[2]
VOCAB_SIZE = 4096
WEIGHTS = {"data/stories": 0.5, "data/manuals": 0.3, "data/größe": 0.2}
SEQUENCE_LENGTH = 64
# What Megatron's training script makes of 60 steps of 8 samples, 2 steps of validation every 20 steps.
TRAINING = {"--train-iters": 60, "--global-batch-size": 8, "--eval-interval": 20, "--eval-iters": 2}
SIZES = [480, (60 // 20 + 1) * 2 * 8, 16]
SPLIT = "90,6,4"


@pytest.fixture(scope="module")
def megatron():
    return Megatron()


@pytest.fixture(scope="module")
def dumped(megatron):
    """What tokshard.dump_tokenizer_identifiers prints in this environment."""
    options = ["--tokenizer-type", "NullTokenizer", "--vocab-size", str(VOCAB_SIZE)]
    printed = io.StringIO()
    # In this process, which has imported Megatron.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["dump_tokenizer_identifiers", *options])
        patch.setattr(sys, "stdout", printed)
        patch.setenv("RANK", "0")
        patch.setenv("WORLD_SIZE", "1")
        with warnings.catch_warnings():
            assert dump_tokenizer_identifiers.main() == 0
    return printed.getvalue()


def null_tokenizer():
    """Build Megatron's own, by the function that its training script calls."""
    for name in ("megatron.core.tokenizers.utils", "megatron.core.tokenizers.text.utils"):
        try:
            build = importlib.import_module(f"{name}.build_tokenizer").build_tokenizer
        except ImportError:
            continue
        return build(
            SimpleNamespace(
                tokenizer_type="NullTokenizer",
                vocab_size=VOCAB_SIZE,
                null_tokenizer_eod_id=None,
                null_tokenizer_pad_id=-1,
                pad_vocab_size=False,
            )
        )
    raise AssertionError("no builder of tokenizers is known in this version of Megatron")


def test_the_preset_and_the_script_say_what_megatrons_tokenizer_says(megatron, dumped):
    said = null_tokenizer().unique_identifiers
    assert list(json.loads(dumped).items()) == list(said.items())
    version = importlib.metadata.version("megatron-core")
    if any(version.startswith(f"{known}.") for known in MEGATRON_VERSIONS):
        preset = megatron_identifiers(version, "NullTokenizer", vocab_size=VOCAB_SIZE)
        assert list(preset.items()) == list(said.items())


@pytest.fixture(scope="module")
def prepared(tmp_path_factory, dumped):
    """Two commands: one that tokenizes, for each of three sources, and one that blends them."""
    directory = tmp_path_factory.mktemp("job")
    (directory / "data").mkdir()
    (directory / "identifiers.json").write_text(dumped)
    stories = (SAMPLE / "stories.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (directory / "größe.jsonl").write_text("".join(stories[:400]), encoding="utf-8")
    inputs = [SAMPLE / "stories.jsonl", SAMPLE / "manuals.jsonl", directory / "größe.jsonl"]
    for path, prefix in zip(inputs, WEIGHTS, strict=True):
        run("tokenize", path, "-o", prefix, "--tokenizer", SAMPLE / "tokenizer.json", cwd=directory)
    run(*blend_command(), cwd=directory)
    return directory


def blend_command():
    words = [str(word) for prefix, weight in WEIGHTS.items() for word in (weight, prefix)]
    training = [str(word) for pair in TRAINING.items() for word in pair]
    return [
        *("blend", *words, "--seq-length", str(SEQUENCE_LENGTH), "--split", SPLIT, *training),
        *("--tokenizer-identifiers", "identifiers.json", "-o", "mix"),
    ]


def run(*command, cwd):
    done = tokshard(*command, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done


def start(megatron, cache_directory, weights):
    """Do what ``pretrain_gpt.py`` does before the first step; return the datasets and what was written."""
    config = megatron.config(
        random_seed=1234,
        sequence_length=SEQUENCE_LENGTH,
        blend=(list(weights), None if len(weights) == 1 else list(weights.values())),
        split=SPLIT,
        path_to_cache=cache_directory,
        tokenizer=null_tokenizer(),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    with Recorder() as writes:
        datasets = megatron.builder(megatron.dataset, SIZES, lambda: True, config).build()
        return datasets, list(writes)


def test_the_start_of_a_job_writes_nothing(prepared, megatron, monkeypatch):
    monkeypatch.chdir(prepared)
    before = file_states(".")
    datasets, writes = start(megatron, "mix/cache", WEIGHTS)
    assert writes == []
    assert file_states(".") == before
    # Without our cache the same start writes 4 files for each of 9 indexes and 3 for each of 3 blends.
    again, writes = start(megatron, "theirs", WEIGHTS)
    theirs, ours = tree("theirs"), tree("mix/cache")
    assert sum(line.startswith("open") for line in writes) == len(theirs) == 9 * 4 + 3 * 3
    assert theirs == {name: data for name, data in ours.items() if name in theirs}
    for dataset, other in zip(datasets, again, strict=True):
        assert len(dataset) == len(other)
        for number in range(0, len(dataset), 7):
            assert dataset[number]["dataset_id"] == other[number]["dataset_id"]
            assert np.array_equal(dataset[number]["tokens"], other[number]["tokens"])
    drawn = np.bincount([datasets[0][number]["dataset_id"] for number in range(len(datasets[0]))])
    assert np.abs(drawn / len(datasets[0]) - list(WEIGHTS.values())).max() < 3 / len(datasets[0])


def test_the_start_of_a_job_with_one_dataset_and_no_cache_directory_writes_nothing(
    prepared, megatron, monkeypatch
):
    command = ["build-indices", "data/manuals", "--seq-length", str(SEQUENCE_LENGTH), "--split", SPLIT]
    sizes = ["--num-samples", ",".join(map(str, SIZES)), "--tokenizer-identifiers", "identifiers.json"]
    run(*command, *sizes, cwd=prepared)
    monkeypatch.chdir(prepared)
    datasets, writes = start(megatron, None, {"data/manuals": 1})
    assert writes == []
    assert len(tree("data/manuals/cache/GPTDataset_indices")) >= 3 * 4
    assert all(len(dataset) >= size for dataset, size in zip(datasets, SIZES, strict=True))


def test_doctor_foretells_it(prepared):
    words = [str(word) for prefix, weight in WEIGHTS.items() for word in (weight, prefix)]
    training = [str(word) for pair in TRAINING.items() for word in pair]
    launch = ["torchrun", "--nproc-per-node", "8", "pretrain_gpt.py", "--data-path", *words, "--split", SPLIT]
    launch += ["--seq-length", str(SEQUENCE_LENGTH), *training, "--data-cache-path", "mix/cache"]
    command = ("doctor", "--tokenizer-identifiers", "identifiers.json", *launch)
    done = tokshard(*command, cwd=prepared)
    assert done.returncode == 0, done.stdout + done.stderr
    missing = min((prepared / "mix/cache").glob("*-GPTDataset-test-shuffle_index.npy"))
    content = missing.read_bytes()
    missing.unlink()
    assert tokshard(*command, cwd=prepared).returncode == 1
    missing.write_bytes(content)
    assert tokshard(*command, cwd=prepared).returncode == 0


@pytest.mark.parametrize("weights", [{"data/manuals": 1}, WEIGHTS], ids=["one-dataset", "weights"])
def test_the_doctors_hint_builds_what_a_launch_script_lacks(prepared, megatron, monkeypatch, weights):
    cache = f"cache-{len(weights)}"
    words = weights if len(weights) == 1 else [str(word) for pair in weights.items() for word in pair[::-1]]
    training = " ".join(f"{option} {value}" for option, value in TRAINING.items())
    (prepared / "launch.sh").write_text(
        f"DATA=({' '.join(words)})\n"
        'torchrun --nproc-per-node 8 pretrain_gpt.py --data-path "${DATA[@]}" --split $1 \\\n'
        f"    --seq-length {SEQUENCE_LENGTH} {training} --data-cache-path $CACHE \\\n"
        f"    --tokenizer-type NullTokenizer --vocab-size {VOCAB_SIZE}\n",
        encoding="utf-8",
    )
    doctor = ["doctor", "--tokenizer-identifiers", "identifiers.json", "--set", f"CACHE={cache}"]
    doctor += ["launch.sh", SPLIT]
    missing = tokshard(*doctor, cwd=prepared)
    assert missing.returncode == 1, missing.stderr
    (command,) = re.findall(r"hint: build them: run `tokshard (.*)`", missing.stdout)
    assert command.startswith("build-indices" if len(weights) == 1 else "blend")
    run(*shlex.split(command), cwd=prepared)
    healthy = tokshard(*doctor, cwd=prepared)
    assert healthy.returncode == 0, healthy.stdout
    monkeypatch.chdir(prepared)
    before = file_states(".")
    datasets, writes = start(megatron, cache, weights)
    assert writes == []
    assert file_states(".") == before
    assert all(len(dataset) >= size for dataset, size in zip(datasets, SIZES, strict=True))


def random_arguments(draw):
    """Arguments of a training run as Megatron has them once it has parsed and checked them."""
    batch = draw.randrange(1, 100)
    by_samples = draw.random() < 0.5
    phases = by_samples and draw.random() < 0.3
    samples = draw.randrange(1, 100_000) if by_samples else None
    return SimpleNamespace(
        global_batch_size=batch,
        train_samples=samples,
        train_iters=samples // batch if by_samples else draw.randrange(1, 10_000),
        eval_interval=draw.randrange(1, 2_000),
        eval_iters=draw.randrange(200),
        eval_global_batch_size=draw.choice([batch, draw.randrange(1, 100)]),
        start_eval_at_iter=draw.choice([None, draw.randrange(5_000)]),
        full_validation=draw.random() < 0.2,
        skip_train=draw.random() < 0.2,
        phase_transition_iterations=sorted(draw.sample(range(1, 2 + samples // batch), 1))
        if phases
        else None,
        iteration=0,
    )


def test_sizes_are_those_of_megatrons_training_script(monkeypatch):
    training = pytest.importorskip("megatron.training.training")
    draw = random.Random("sizes")
    for _ in range(2000):
        arguments = random_arguments(draw)
        monkeypatch.setattr(training, "get_args", lambda arguments=arguments: arguments)
        options = dict(vars(arguments))
        phases, iteration = options.pop("phase_transition_iterations"), options.pop("iteration")
        sizes = TrainingOptions(**options).sizes(phases=phases or (), iteration=iteration)
        assert (sizes.train, sizes.valid, sizes.test) == training.get_train_valid_test_num_samples()
