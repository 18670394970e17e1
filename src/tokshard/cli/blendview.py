"""Screens of ``tokshard blend``: the dry run, the certificates of a blend, and the entries of its cache."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

import tokshard
from tokshard.cli import rendering, terminal, views

if TYPE_CHECKING:
    from tokshard.blending.job import BlendDryRun, BlendHits, BlendReport, SplitForecast


def show_dry_run(dry_run: BlendDryRun) -> None:
    """Print what each split would hold."""
    for split in dry_run.splits:
        _show_forecast(split)


def _show_forecast(split: SplitForecast) -> None:
    from tokshard.core.formatting import percent
    from tokshard.inspection.facts import KINDS

    terminal.say(f"{split.name}: {KINDS[split.kind]}, {terminal.count(split.samples)} samples")
    rows = [
        (
            source.prefix,
            percent(source.weight),
            terminal.count(source.draws),
            terminal.count(source.samples),
            f"{source.epochs_drawn:.2f}",
            terminal.count(source.tokens_per_epoch),
        )
        for source in split.sources
    ]
    rendering.table(("source", "share", "samples", "in its index", "epochs", "tokens of an epoch"), rows)
    terminal.say("")


def show_hits(hits: BlendHits) -> None:
    """Print the conditions of the entries of a cache."""
    for entry in hits.entries:
        reason = "" if entry.condition == "fresh" else f": it {terminal.safe(entry.detail)}"
        name = "the blend" if entry.prefix is None else terminal.safe(entry.prefix)
        terminal.say(f"{entry.condition:<8} {entry.hash} {entry.split} of {name}{reason}")
    fresh = sum(entry.condition == "fresh" for entry in hits.entries)
    terminal.say(f"{fresh} of {len(hits.entries)} sets of files are there and fresh")


def show_report(report: BlendReport, *, for_megatron: bool, size_arguments: Sequence[str]) -> None:
    """Print the certificate of each split, and what was done.

    Args:
        report: The blend.
        for_megatron: Whether a Megatron job can find the files.
        size_arguments: The arguments of the job that its sizes come from, if they were given.
    """
    views.show(tokshard.describe(report.document))
    terminal.say("")
    actions = [entry.action for entry in report.entries]
    done = ", ".join(f"{actions.count(name)} {name}" for name in dict.fromkeys(actions) if name)
    cache, seconds = report.document.cache_directory, terminal.duration(report.seconds)
    terminal.say(f"{terminal.safe(report.path)}, {terminal.safe(cache)}: {done} in {seconds}")
    if for_megatron and report.plan is not None and not report.plan.has_own_seeds:
        from tokshard.blending.emission import emit_megatron_args

        there = report.plan.config.training_path(cache)
        words = emit_megatron_args(report.plan, there, size_arguments=size_arguments)
        terminal.say(
            f"next: give the job {terminal.safe(shlex.join(words))}, and its whole command to tokshard doctor"
        )
