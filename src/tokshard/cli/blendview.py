"""Screens of ``tokshard blend``: the dry run, the certificates of a blend, and the entries of its cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tokshard
from tokshard.cli import rendering, terminal, views
from tokshard.core.formatting import percent

if TYPE_CHECKING:
    from tokshard import BlendDryRun, BlendHits, BlendOptions, BlendReport, SplitForecast


def show(made: BlendDryRun | BlendReport, options: BlendOptions) -> None:
    """Print what each split would hold; or its certificate, and what was done."""
    if isinstance(made, tokshard.BlendReport):
        _show_report(made, options)
    else:
        for split in made.splits:
            _show_forecast(split)


def _show_forecast(split: SplitForecast) -> None:
    terminal.say(f"{split.name}: {split.kind_name}, {terminal.count(split.samples)} samples")
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


def _show_report(report: BlendReport, options: BlendOptions) -> None:
    views.show(tokshard.describe(report.document))
    terminal.say("")
    actions = [entry.action for entry in report.entries]
    done = ", ".join(f"{actions.count(name)} {name}" for name in dict.fromkeys(actions) if name)
    cache, seconds = report.document.cache_directory, terminal.duration(report.seconds)
    terminal.say(f"{terminal.safe(report.path)}, {terminal.safe(cache)}: {done} in {seconds}")
    if options.naming.are_given and not report.plan.has_own_seeds:
        words = terminal.safe(tokshard.emit_megatron(report.plan, options))
        terminal.say(f"next: give the job {words}, and its whole command to tokshard doctor")
