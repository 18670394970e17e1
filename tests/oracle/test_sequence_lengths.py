"""Another sequence length in mid-run: an unmodified Megatron reads the views and the cache of the rest."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from oracle.packs import CACHE, IDENTIFIERS, PAD, S, found, random_lengths, write_documents
from oracle.reference import Megatron
from oracle.support import megatron_or_skip
from support.mixture_data import run
from support.views import view_of
from tokshard.gpt_index.sizes import TrainingArguments, training_sizes
from tokshard.loader import BatchOptions, RankLoader

pytestmark = pytest.mark.oracle

BATCH = 2


@pytest.fixture(scope="module")
def megatron():
    return Megatron()


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """Run in a directory of its own: prefixes are relative, as their text is in the names of the files."""
    monkeypatch.chdir(tmp_path)
    Path("job.json").write_text(json.dumps(IDENTIFIERS))


@pytest.mark.parametrize("mmap", [True, False])
def test_megatron_follows_the_pointers_of_a_view(mmap):
    module = megatron_or_skip()
    documents = write_documents("data/a", [5, 9, 1, 12])
    text = np.concatenate(documents)
    pieces = [(20, 7), (0, 3), (3, 1), (14, 1), (8, 6)]
    dataset = module.IndexedDataset(view_of("data/a", "views/a", pieces), mmap=mmap)
    assert len(dataset) == len(pieces)
    for number, (first, count) in enumerate(pieces):
        expected = text[first : first + count]
        assert np.array_equal(dataset[number], expected)
        assert np.array_equal(dataset.get(number, offset=1, length=count - 1), expected[1:])


def tokshard(*arguments):
    done = run(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return done.json


def arguments_of(report):
    """Return the arguments that are printed, by name."""
    words, values = report["megatron"]["arguments"], {}
    for word in words:
        if word.startswith("--"):
            values[word] = []
        else:
            values[list(values)[-1]].append(word)
    return {name: value if name.endswith("-data-path") else value[0] for name, value in values.items()}


def job(megatron, arguments):
    """Build the training data of a job with these arguments at the start of its phase; nothing is written."""
    batch, iteration = int(arguments["--global-batch-size"]), int(arguments["--phase-transition-iterations"])
    sizes = training_sizes(
        TrainingArguments(
            global_batch_size=batch,
            train_samples=int(arguments["--train-samples"]),
            phase_transition_iterations=(iteration,),
            iteration=iteration,
            eval_interval=1000,
            eval_iters=0,
        )
    )
    (dataset, *_) = found(
        megatron,
        int(arguments["--seq-length"]),
        [sizes.train, 0, 0],
        blend_per_split=[(arguments["--train-data-path"], None), None, None],
        random_seed=int(arguments["--seed"]),
        path_to_cache=arguments["--data-cache-path"],
    )
    assert len(dataset) == sizes.train
    return dataset


def inputs(sample):
    """Count the tokens that have a label; the label that a short sample borrows has none."""
    return Counter(np.asarray(sample["tokens"])[np.asarray(sample["loss_mask"]) == 1].tolist())


@pytest.mark.parametrize("pack", ["concat", "best-fit"])
@pytest.mark.parametrize("sources", [1, 3])
def test_megatron_reads_the_rest_at_another_length(megatron, sources, pack):
    """From S to 2S, and from there to S - 3: its samples are the loader's, and no token is read again."""
    draw, first, prefixes = np.random.RandomState(sources), 1, []
    for number in range(sources):
        documents = write_documents(f"data/{number}", random_lengths(draw, S, 40), first=first)
        first += sum(map(len, documents))
        prefixes.append(f"data/{number}")
    names = ("--tokenizer-identifiers", "job.json", "--split", "1", "--seed", 77)
    tokshard("blend", *prefixes, "--seq-length", S, "--pack", pack, *names, "-o", "mix")
    tokshard("shard-plan", "mix", "--data-parallel", 1, "--global-batch-size", BATCH, "-o", "plan0")
    seen, consumed = Counter(), 0
    for number, length in enumerate((2 * S, S - 3)):
        loader = RankLoader.open(f"plan{number}", 0, options=BatchOptions(pad_id=PAD))
        steps = 4 + number
        seen += sum((inputs(loader.batch(step)) for step in range(steps)), Counter())
        consumed += steps * BATCH
        report = tokshard(
            *("shard-plan", "--from", f"plan{number}", "--consumed-samples", consumed),
            *("--seq-length", length, "--emit-cache", CACHE, "-o", f"plan{number + 1}"),
        )
        arguments = arguments_of(report)
        assert arguments["--seq-length"] == str(length)
        assert int(arguments["--phase-transition-iterations"]) * BATCH == consumed
        dataset = job(megatron, arguments)
        loader = RankLoader.open(f"plan{number + 1}", 0, options=BatchOptions(pad_id=PAD))
        assert len(loader) == len(dataset) // BATCH * BATCH
        planned = Counter()
        for place in range(len(loader)):
            for part in getattr(dataset, "datasets", [dataset]):
                part.masks_and_position_ids_are_cached = False  # with the padding of an earlier sample
            theirs, ours = dataset[place], loader[place]
            planned += inputs(ours)
            for name in ("tokens", "labels", "loss_mask", "position_ids"):
                assert np.array_equal(ours[name][0], theirs[name].numpy()), (place, name)
        assert max((seen + planned).values()) == 1
        counts = report["plan"]["history"][-1]["streams"]["train"]["sequence_length_change"]["tokens"]
        tail = sum((count["planned"] for count in counts), -planned.total())
        assert 0 <= tail <= (len(dataset) - len(loader)) * length
        assert sum(count["remainder"] for count in counts) <= (0 if pack == "best-fit" else sources * length)
        everything = sum(count["tokens"] for count in counts)
        if not number:
            assert everything == first - 1
            assert seen.total() == sum(count["read"] for count in counts)
