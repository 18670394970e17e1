"""``tokshard verify``: options, one call, one rendering."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

import tokshard
from tokshard import VerifyOptions
from tokshard.cli import failures, options, terminal
from tokshard.cli.events import recorded
from tokshard.cli.options import LogJson

if TYPE_CHECKING:
    from tokshard import VerifiedProduct, VerifyReport
    from tokshard.core.findings import Finding

FOUND_PROBLEMS = 1
_ORDER = {"error": 0, "warning": 1, "note": 2}
_LABEL_CELLS = 12


def verify(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="A dataset (its path prefix), index cache, blend, plan, or rank manifest.",
            show_default=False,
        ),
    ],
    level: Annotated[
        str,
        typer.Option(
            metavar="structure|digest|deep", help="Check structure, also digests, or also the content."
        ),
    ] = VerifyOptions.level,
    subset: Annotated[
        str | None,
        typer.Option(
            metavar="PERCENT",
            help="Check digests of a fixed subset of the data, for example 5%.",
            show_default=False,
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="Tokenizer that --level deep decodes with, and that --adopt records.", show_default=False
        ),
    ] = VerifyOptions.tokenizer,
    recursive: Annotated[
        bool,
        typer.Option(
            "--recursive",
            help="Verify everything below a directory, and everything that a blend or a plan is made from.",
        ),
    ] = VerifyOptions.recursive,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Write a manifest for datasets of other programs, if sound.")
    ] = VerifyOptions.adopt,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Threads; default: one for each core.", show_default=False)
    ] = VerifyOptions.workers,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
    no_progress: options.NoProgress = False,
    log_json: LogJson = None,
) -> None:
    """Verify a dataset, index cache, blend or plan against its recorded digests.

    [bold]Examples[/bold]

    tokshard verify out/web

    tokshard verify out/web --level structure

    tokshard verify out/web --level deep --tokenizer tokenizer.json

    tokshard verify --recursive /data/v1

    The level structure checks sizes, headers, counts and all entries of indexes; digest also every byte,
    against the recorded digests; deep also what the bytes mean. All findings are listed. The exit code is 1
    if there are findings other than notes.
    """
    with failures.reported(as_json=as_json), recorded(log_json, "verify") as log:
        from tokshard.cli.meter import make_meter

        report = tokshard.verify(
            VerifyOptions(path, level, subset, tokenizer, recursive, adopt, workers),  # type: ignore[arg-type]
            progress=log.following(make_meter(quiet=quiet, animated=not no_progress)),
        )
        log.warnings(f"{found.code}: {found.message}" for found in report.findings if found.is_problem)
        if as_json:
            terminal.say_json(report.to_json())
        elif not quiet:
            _show(report)
        if not report.is_sound:
            raise typer.Exit(FOUND_PROBLEMS)


def _show(report: VerifyReport) -> None:
    for product in report.products:
        _show_product(product)
    problems = sum(finding.is_problem for finding in report.findings)
    found = terminal.counted(problems, "finding") if problems else "no problems found"
    part = "" if report.subset_percent is None else f" of {report.subset_percent:g}% of the pieces"
    terminal.say(
        f"{found}: level {report.level}{part}, {terminal.counted(len(report.products), 'product')} verified, "
        f"{terminal.size(report.bytes_read)} read in {terminal.duration(report.seconds)}"
    )


def _show_product(product: VerifiedProduct) -> None:
    verdict = "sound" if product.is_sound else "NOT SOUND"
    terminal.say(f"{product.kind:<{_LABEL_CELLS}} {terminal.safe(product.path)}: {verdict}")
    counts = [f"{terminal.count(value)} {name.replace('_', ' ')}" for name, value in product.counts.items()]
    if counts:
        terminal.say(f"{'':<{_LABEL_CELLS}} {terminal.safe(', '.join(counts))}")
    for finding in sorted(product.findings, key=lambda finding: _ORDER[finding.severity]):
        _show_finding(finding)


def _show_finding(finding: Finding) -> None:
    terminal.say(f"  {finding.severity}: {finding.code}: {terminal.safe(finding.message)}")
    if finding.hint and finding.is_problem:
        terminal.say(f"    hint: {terminal.safe(finding.hint)}")
