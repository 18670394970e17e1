"""The orders that are kept in ``golden/orders.json.gz``, and how they are read again.

A case is options alone: sizes of datasets, options of a plan and of up to two plans that continue it. Only
:func:`read_in_stages` and :func:`blended_in_stages` call what is tested.

The file was written by the implementation that stored lists of unread samples. Three of its 2,712 cases are
left out. Two began after the last sample of a padded epoch, and counted the padding of that epoch. In one
the same ranks went on with their chunks, and then dealt them out again in another order.
"""

import gzip
import hashlib
import json
from pathlib import Path

import numpy as np

from support.assignments import planned
from support.replanned_plans import continued, numbers_of, plan_of, source_of, write_blend
from tokshard.ranks.choices import Shuffling
from tokshard.ranks.discovery import RequestedSamples, open_sources
from tokshard.ranks.locator import Locator
from tokshard.ranks.reweighting import source_epochs

GOLDEN = Path(__file__).parents[1] / "golden" / "orders.json.gz"


def kept(kind):
    """Return the cases of a kind: ``orders``, or ``blends`` for plans with other weights."""
    return json.loads(gzip.decompress(GOLDEN.read_bytes()))[kind]


def key_of(ids):
    """Return the number that bucketing sorts a sample by: one of 64."""
    return ids * 7919 % 64


def read_in_stages(case):
    """Plan a case, and continue it; return what is kept of each plan."""
    stream = case["stream"]
    sources = {stream: source_of(*case["sizes"], name=stream)}
    plan = planned(sources, **_as_options(case["options"]))
    stages = [_stage(plan.streams[stream])]
    for change in case["changes"]:
        changes = _as_options(change)
        consumed = changes.pop("consumed_samples", 0)
        ranks = changes.pop("data_parallel", None)
        plan = continued(plan, consumed, ranks, **changes)
        stages.append(_stage(plan.streams[stream]))
    return stages


def blended_in_stages(case, directory):
    """Plan the blend of a case, and continue it with other weights; return all plans.

    All changes take the seed of the first one, which the implementation that wrote the file did not require.
    """
    path = write_blend(directory, case["weights"], case["samples"], tokens=case["tokens"])
    options = case["options"]
    source = open_sources([str(path)], RequestedSamples())["train"]
    plans = [
        plan_of(
            source,
            options["data_parallel"],
            batch=options["batch"],
            consumed_samples=options["consumed_samples"],
        )
    ]
    for number, change in enumerate(case["changes"]):
        blend = " ".join(f"{weight} {directory / name}" for name, weight in change["weights"].items())
        if change["is_blend"]:
            name = f"blend{number}"
            blend = str(write_blend(directory, change["weights"], 300, tokens=case["tokens"], name=name))
        after = continued(
            plans[-1],
            change["consumed_samples"],
            change["data_parallel"],
            output=directory / f"plan{number}",
            blend=blend,
            steps=change["steps"],
            seed=case["changes"][0]["seed"],
        )
        plans.append(after)
    return plans


def blend_of(plan):
    """Return what is kept of the arrays of a plan with other weights."""
    stream = plan.streams["train"]
    arrays = stream.source.order.open()
    kept_arrays = {
        name: {"sha256": _digest(values), "first": values[:8].tolist(), "samples": values.size}
        for name, values in arrays.items()
    }
    return kept_arrays | {"steps": stream.order.steps}


def draws_of(plan, stop=None):
    """List (dataset, source epoch, sample) of what a plan reads before ``stop`` consumed samples.

    A plan of the blend itself has read it from the start.
    """
    stream = plan.streams["train"]
    record = plan.reweighting_of("train")
    ids = np.arange(stream.source.total)
    epochs = np.zeros_like(ids) if record is None else source_epochs(stream.source, record)
    datasets, samples = Locator(stream.source).locate(ids)
    count = None if stop is None else stream.order.point(stop - stream.order.consumed_samples)[1]
    paths = [dataset.path_prefix for dataset in stream.source.datasets]
    return [
        (paths[dataset], epoch, sample)
        for dataset, epoch, sample in zip(
            datasets[:count].tolist(), epochs[:count].tolist(), samples[:count].tolist(), strict=True
        )
    ]


def _as_options(values):
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    sizes = {
        name: options.pop(f"shuffle_{name}") for name in ("block", "window") if f"shuffle_{name}" in options
    }
    if "shuffle" in options:
        options["shuffle"] = Shuffling(options["shuffle"], **sizes)
    return options


def _stage(stream):
    order = stream.order
    numbers = numbers_of(order)
    ids = order.ids(numbers, key_of)
    first = order.epoch_ranges[0]
    return {
        "steps": order.steps,
        "consumed_samples": order.consumed_samples,
        "ids": _digest(ids),
        "first": ids[:8].tolist(),
        "padding": _digest(order.repeated(numbers)),
        "dropped": first.dropped,
        "repeated": first.repeated,
    }


def _digest(values):
    dtype = "<i8" if values.dtype.kind == "i" else "u1"
    return hashlib.sha256(values.astype(dtype).tobytes()).hexdigest()[:16]
