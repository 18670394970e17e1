"""Caches, blends and plans with one defect each, made from sound ones."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np

from support.assignments import planned
from support.blends import build_blend, config_for, write_dataset
from support.file_changes import age, cut, edit_json, edit_manifest, flip
from support.index_caches import build_requests
from support.mixture_data import run
from support.replanned_plans import continued
from support.two_tokenizers import write_two_tokenizers
from tokshard.core.codec import encode
from tokshard.dataset.fingerprint import FileFingerprint
from tokshard.ranks.discovery import RequestedSamples, open_sources
from tokshard.ranks.options import ShardPlanOptions
from tokshard.ranks.plan import read_plan
from tokshard.ranks.planning import shard_plan
from tokshard.ranks.publication import write_plan
from tokshard.samples.blend.document import BlendDocument
from tokshard.samples.blend.recipe_files import parse_words
from tokshard.samples.index.options import IndexRequest
from tokshard.samples.index.packing import Packing
from tokshard.samples.index.splits import parse_split
from tokshard.storage.digest import content_digest

LENGTHS = [5, 0, 17, 3, 40, 1, 9, 26, 2, 31, 8, 12]


# Index caches


def sound_cache(directory, packing=None):
    """Build an index in the default cache of a dataset; return the description's path."""
    return build_cache(write_dataset(str(directory / "data/web"), LENGTHS), packing)


def build_cache(prefix, packing=None):
    """Build the index of a dataset, if it is not there; return the description's path."""
    request = IndexRequest(
        prefix=prefix,
        training_path="data/web",
        split_name="train",
        split=parse_split("1"),
        num_samples=30,
        sequence_length=8,
        tokenizer={"class": "a.Tokenizer"},
        packing=packing,
    )
    (report,) = build_requests([request])
    return report.files[0]


def array(description, name):
    """Return the path of an array beside a description."""
    return description.replace("description.txt", f"{name}.npy")


def sidecar(description):
    return description.replace("description.txt", "tokshard.json")


def reseal(description):
    """Record the arrays of an index as they are, as if they had been written so."""

    def change(value):
        for name in value["files"]:
            content = Path(array(description, name.removesuffix(".npy"))).read_bytes()
            value["files"][name] = {"size_bytes": len(content), "xxh3_128": content_digest(content)}

    edit_json(sidecar(description), change)


def foreign_cache(directory):
    description = sound_cache(directory)
    os.unlink(sidecar(description))
    return description


def incomplete_cache(directory):
    description = sound_cache(directory)
    os.unlink(array(description, "shuffle_index"))
    return description


def unknown_description(directory):
    description = sound_cache(directory)
    edit_json(description, lambda value: value.update(more=1))
    return description


def renamed_cache(directory):
    """Files of one index under the name of another."""
    description = Path(sound_cache(directory))
    for path in description.parent.iterdir():
        path.rename(path.with_name("0" * 32 + path.name[32:]))
    moved = description.with_name("0" * 32 + description.name[32:])
    edit_json(sidecar(str(moved)), lambda value: value.update(description_md5="0" * 32))
    return str(moved)


def cut_array(directory):
    description = sound_cache(directory)
    cut(array(description, "sample_index"))
    return description


def misshapen_array(directory):
    description = foreign_cache(directory)
    path = array(description, "sample_index")
    np.save(path, np.load(path)[:-1])
    return description


def sidecar_damaged(directory):
    description = sound_cache(directory)
    cut(sidecar(description), 5)
    return description


def sidecar_of_another(directory):
    description = sound_cache(directory)
    edit_json(sidecar(description), lambda value: value.update(description_md5="0" * 32))
    return description


def flipped_array(directory):
    description = sound_cache(directory)
    flip(array(description, "document_index"), -1, 0x10)
    return description


def stale_cache(directory):
    description = sound_cache(directory)
    write_dataset(str(directory / "data/web"), [*LENGTHS, 3])
    return description


def wrong_array(directory):
    """An index that was written wrong, and recorded as it is."""
    description = sound_cache(directory)
    path = array(description, "shuffle_index")
    shuffled = np.load(path)
    shuffled[[0, 1]] = shuffled[[1, 0]]
    np.save(path, shuffled)
    reseal(description)
    return description


def wrong_packing(directory):
    """An index that cuts a document although its sample has room for it, and recorded as it is."""
    description = sound_cache(directory, Packing())
    path = array(description, "sample_index")
    rows = np.load(path)
    rows[1, 1] = 1
    np.save(path, rows)
    reseal(description)
    return description


def other_epochs(directory):
    """A sidecar with a number that the arrays and the dataset do not have."""
    description = sound_cache(directory)
    edit_json(sidecar(description), lambda value: value["origin"]["plan"].update(tokens_per_epoch=155))
    return description


def cache_alone(directory):
    description = sound_cache(directory)
    os.rename(directory / "data/web/cache/GPTDataset_indices", directory / "cache")
    os.rename(directory / "data", directory / "elsewhere")
    return str(directory / "cache" / os.path.basename(description))


def cache_of_damaged(directory):
    description = sound_cache(directory)
    cut(directory / "data/web.bin", 2)
    return description


def cache_leftover(directory):
    description = sound_cache(directory)
    Path(description.replace("description.txt", "tokshard.lock")).write_text("")
    return description


# Blends


def sources(directory):
    return [
        write_dataset(str(directory / f"data/{name}"), [1 + (7 * i + at) % 40 for i in range(50)])
        for at, name in enumerate(("web", "code"))
    ]


def sound_blend(directory, weights=(0.7, 0.3), samples=60):
    """Blend two datasets; return the directory of the blend."""
    words = [word for pair in zip(map(str, weights), sources(directory), strict=True) for word in pair]
    build_blend(parse_words(words), config_for(samples, 5, 0, split="9,1"), directory / "mix", workers=1)
    return str(directory / "mix")


def document(path):
    return BlendDocument.read(path)


def blend_damaged(directory):
    path = sound_blend(directory)
    edit_json(f"{path}/blend.json", lambda value: value.update(id="0" * 64))
    return path


def blend_older(directory):
    path = sound_blend(directory)
    age(f"{path}/blend.json")
    return path


def blend_source_missing(directory):
    path = sound_blend(directory)
    os.unlink(directory / "data/code.bin")
    os.unlink(directory / "data/code.idx")
    return path


def blend_source_changed(directory):
    path = sound_blend(directory)
    write_dataset(str(directory / "data/code"), [3] * 50)
    return path


def blend_source_damaged(directory):
    path = sound_blend(directory)
    flip(directory / "data/code.idx", 36)
    return path


def blend_file_changed(directory):
    path = sound_blend(directory)
    flip(directory / "data/code.bin", 36)
    return path


def blend_array_changed(directory):
    """A document with another fingerprint than that of an array."""
    path = sound_blend(directory)
    edit_json(
        f"{path}/blend.json",
        lambda value: value["splits"]["train"]["order"]["files"]["dataset_index"].update(size_bytes=1),
    )
    return path


def blend_epochs(directory):
    """A document with other numbers of an index than those of its description."""
    path = sound_blend(directory)
    edit_json(
        f"{path}/blend.json",
        lambda value: value["splits"]["train"]["sources"][0]["epochs"].update(num_samples=1),
    )
    return path


def blend_samples(directory):
    path = sound_blend(directory)
    file = document(path).splits["train"].sources[1].index.array_path("shuffle_index")
    np.save(file, np.load(file)[:-1])
    return path


def blend_of_cut_index(directory):
    path = sound_blend(directory)
    cut(document(path).splits["train"].sources[1].index.array_path("shuffle_index"))
    return path


def blend_hash(directory):
    path = sound_blend(directory)
    file = Path(document(path).splits["train"].order.description_path)
    file.write_text(file.read_text().replace("0.7", "0.6"))
    return path


def blend_order(directory):
    path = sound_blend(directory)
    file = document(path).splits["train"].order.array_path("dataset_index")
    order = np.load(file)
    place = int(np.flatnonzero(np.diff(order))[-1])
    order[[place, place + 1]] = order[[place + 1, place]]
    np.save(file, order)
    reseal(file.replace("dataset_index.npy", "description.txt"))
    return path


def blend_weights(directory):
    """A document with other weights than the description of its order."""
    path = sound_blend(directory)
    edit_json(
        f"{path}/blend.json",
        lambda value: value["splits"]["train"].update(weights=[0.6, 0.4]),
    )
    return path


def blend_certificate(directory):
    path = sound_blend(directory)
    edit_json(
        f"{path}/blend.json",
        lambda value: value["certificates"]["train"]["sources"][0].update(documents_drawn=1),
    )
    return path


# Plans

BATCHES = {"micro_batch_size": 2, "global_batch_size": 8, "eval_global_batch_size": 4}


def sound_plan(directory, source=None):
    """Plan a blend for four ranks; return the directory of the plan."""
    found = open_sources([source or sound_blend(directory)], RequestedSamples(split="train"))
    plan = planned(found, world_size=4, tensor_parallel=2, **BATCHES, steps=4)
    write_plan(plan, directory / "plan")
    return str(directory / "plan")


def goes_on(directory):
    """Plan, stop after two steps, and continue with another world size; return the new plan."""
    before = read_plan(sound_plan(directory))
    write_plan(continued(before, 16, 2), directory / "plan2")
    return str(directory / "plan2")


def plan_damaged(directory):
    path = sound_plan(directory)
    edit_json(f"{path}/plan.json", lambda value: value.update(plan_id="0" * 64))
    return path


def plan_rank(directory):
    path = sound_plan(directory)
    edit_json(f"{path}/rank-00002.json", lambda value: value["streams"]["train"].update(steps=3))
    return path


def plan_rank_alone(directory):
    return f"{plan_rank(directory)}/rank-00002.json"


def plan_rank_missing(directory):
    path = sound_plan(directory)
    os.unlink(f"{path}/rank-00003.json")
    return path


def plan_file_missing(directory):
    path = sound_plan(directory)
    os.unlink(directory / "data/web.bin")
    return path


def plan_file_changed(directory):
    path = sound_plan(directory)
    flip(directory / "data/web.bin", 10)
    return path


def plan_sources_missing(directory):
    path = sound_plan(directory)
    os.unlink(f"{path}/sources.json")
    return path


def plan_sources_changed(directory):
    path = sound_plan(directory)
    edit_json(f"{path}/sources.json", lambda value: value["streams"]["train"].update(total=1))
    return path


def plan_blend_changed(directory):
    """A plan of a blend that was built again with other weights."""
    path = sound_blend(directory)
    shard_plan(ShardPlanOptions(sources=(path,), output=directory / "plan", data_parallel=2, **BATCHES))
    shutil.rmtree(path)
    sound_blend(directory, weights=(0.6, 0.4))
    return str(directory / "plan")


def plan_blend_missing(directory):
    path = plan_blend_changed(directory)
    os.unlink(directory / "mix/blend.json")
    return f"{path}/rank-00000.json"


def plan_reweighted_file(directory):
    """A plan that continues with other weights, whose order has changed."""
    before = read_plan(sound_plan(directory))
    blend = f"1 {directory}/data/web 3 {directory}/data/code"
    after = continued(before, 16, output=directory / "plan2", blend=blend)
    write_plan(after, directory / "plan2")
    flip(after.streams["train"].source.order.array_path("dataset_sample_index"), 130)
    return str(directory / "plan2")


def plan_coverage(directory):
    """A blend whose order draws one sample twice, planned as it is."""
    path = sound_blend(directory)
    file = document(path).splits["train"].order.array_path("dataset_sample_index")
    samples = np.load(file)
    first, second = np.flatnonzero(np.load(file.replace("_sample", "")) == 0)[:2]
    samples[second] = samples[first]
    np.save(file, samples)
    changed = {"dataset_sample_index": encode(FileFingerprint.of(file))}
    edit_json(f"{path}/blend.json", lambda value: value["splits"]["train"]["order"]["files"].update(changed))
    return sound_plan(directory, path)


def of_two_tokenizers(directory):
    """Return the blend of two datasets, whose different tokenizers were allowed."""
    write_two_tokenizers(directory)
    words = ("data/web", "data/code", "--seq-length", 16, "--split", "1,0,0", "--num-samples", 20)
    done = run("blend", *words, "-o", "mix", "--allow-tokenizer-mismatch")
    assert done.returncode == 0, done.stderr
    return "mix"


def with_hidden_mismatch(directory):
    """Return such a blend, whose document no longer records the mismatch."""
    path = directory / of_two_tokenizers(directory) / "blend.json"
    value = json.loads(path.read_text())
    del value["tokenizer_mismatches"]
    path.write_text(json.dumps(value))
    return "mix"


def plan_of_other_tokenizer(directory):
    """Return a plan whose dataset has another tokenizer than when it was planned."""
    write_two_tokenizers(directory)
    done = run("shard-plan", "data/web", "--documents", "--data-parallel", 2, "-o", "plan")
    assert done.returncode == 0, done.stderr
    edit_manifest("data/web", lambda value: value["tokenizer"].update(definition_sha256="0" * 64))
    return "plan"


def plan_of_unknown_tokenizer(directory):
    """Return a plan of a dataset that lost its manifest."""
    write_two_tokenizers(directory)
    done = run("shard-plan", "data/web", "--documents", "--data-parallel", 2, "-o", "plan")
    assert done.returncode == 0, done.stderr
    shutil.rmtree("data/web.tokshard")
    return "plan"
