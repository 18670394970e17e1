"""How a blend is shown: the plan, the certificate with the drift over the run, and what was done."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tokshard.cli import rendering, terminal
from tokshard.cli.views import show_split

if TYPE_CHECKING:
    from tokshard.blending.builder import BlendPlan, SplitPlan
    from tokshard.blending.hits import Hit
    from tokshard.blending.job import BlendReport

DRY_RUN_SCHEMA = "tokshard.blend-dry-run/1"
HITS_SCHEMA = "tokshard.blend-hits/1"


def plan_json(plan: BlendPlan) -> dict[str, Any]:
    """Return a plan as a JSON object with a ``schema`` field."""
    return {
        "schema": DRY_RUN_SCHEMA,
        "warnings": list(plan.warnings),
        "splits": [_split_json(one) for one in plan.splits],
    }


def show_plan(plan: BlendPlan) -> None:
    """Print what each split would hold."""
    for split in plan.splits:
        _show_split_plan(split)


def _show_split_plan(split: SplitPlan) -> None:
    from tokshard.core.formatting import percent
    from tokshard.inspection.facts import KINDS

    terminal.say(f"{split.name}: {KINDS[split.kind]}, {terminal.count(split.samples)} samples")
    rows = [
        (
            one.request.prefix,
            percent(one.share),
            terminal.count(one.draws),
            terminal.count(one.epochs.samples),
            f"{one.draws * one.epochs.sequence_length / one.epochs.tokens_per_epoch:.2f}",
            terminal.count(one.epochs.tokens_per_epoch),
        )
        for one in split.sources
    ]
    rendering.table(("source", "share", "samples", "in its index", "epochs", "tokens of an epoch"), rows)
    terminal.say("")


def hits_json(hits: list[Hit]) -> dict[str, Any]:
    """Return the states of a cache as a JSON object with a ``schema`` field."""
    return {
        "schema": HITS_SCHEMA,
        "fresh": all(hit.state == "fresh" for hit in hits),
        "files": [hit.to_json() for hit in hits],
    }


def show_hits(hits: list[Hit]) -> None:
    """Print the states of a cache."""
    for hit in hits:
        reason = "" if hit.state == "fresh" else f": it {terminal.safe(hit.reason)}"
        terminal.say(f"{hit.state:<8} {hit.hash} {hit.split} of {terminal.safe(hit.name)}{reason}")
    fresh = sum(hit.state == "fresh" for hit in hits)
    terminal.say(f"{fresh} of {len(hits)} sets of files are there and fresh")


def show_report(report: BlendReport, *, for_megatron: bool, size_arguments: Sequence[str]) -> None:
    """Print the certificate of each split, and what was done.

    Args:
        report: What was done.
        for_megatron: Whether a Megatron job can find the files.
        size_arguments: The arguments of the job that its sizes come from, if they were given.
    """
    for split in report.document.splits.values():
        show_split(split)
        terminal.say("")
    actions = [one.action for one in report.indices] + list(report.blends.values())
    done = ", ".join(f"{actions.count(name)} {name}" for name in dict.fromkeys(actions) if name)
    cache, seconds = report.document.cache_directory, terminal.duration(report.seconds)
    terminal.say(f"{terminal.safe(report.document.path)}, {terminal.safe(cache)}: {done} in {seconds}")
    if for_megatron and not any(_has_own_seed(report, split) for split in report.plan.splits):
        from tokshard.blending.emission import emit_megatron_args

        there = report.plan.config.training_path(cache)
        words = emit_megatron_args(report.plan, there, size_arguments=size_arguments)
        terminal.say(
            f"next: give the job {terminal.safe(shlex.join(words))}, and its whole command to tokshard doctor"
        )


def _has_own_seed(report: BlendReport, split: SplitPlan) -> bool:
    return any(one.request.seed != report.plan.config.seed for one in split.sources)


def _split_json(split: SplitPlan) -> dict[str, Any]:
    return {
        "name": split.name,
        "kind": split.kind,
        "samples": split.samples,
        "size": split.size,
        "weights": split.weights,
        "sources": [
            {
                "prefix": one.request.prefix,
                "share": one.share,
                "draws": one.draws,
                "num_samples": one.request.num_samples,
                "samples": one.epochs.samples,
                "epochs": one.epochs.epochs,
                "tokens_per_epoch": one.epochs.tokens_per_epoch,
            }
            for one in split.sources
        ],
    }
