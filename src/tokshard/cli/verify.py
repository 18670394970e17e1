"""``tokshard verify``: options, one library call, one rendering."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tokshard.cli import failures, options, terminal
from tokshard.cli.events import LogJson, recorded

if TYPE_CHECKING:
    from tokshard.core.findings import Finding
    from tokshard.verification.report import Subject, VerifyReport

FOUND_PROBLEMS = 1
_ORDER = {"error": 0, "warning": 1, "note": 2}
_LABEL_CELLS = 12


def verify(
    thing: Annotated[
        str,
        typer.Argument(
            metavar="THING",
            help="A dataset (its prefix), a cache of indexes, a blend, a plan, or a rank's manifest.",
            show_default=False,
        ),
    ],
    level: Annotated[
        str, typer.Option(metavar="structure|digest|deep", help="How thoroughly to look.")
    ] = "digest",
    subset: Annotated[
        str | None,
        typer.Option(
            metavar="PERCENT",
            help="Hold only this part of the data against digests, always the same, as 5%.",
            show_default=False,
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="Tokenizer that --level deep decodes with, and that --adopt records.", show_default=False
        ),
    ] = None,
    recursive: Annotated[
        bool,
        typer.Option(
            "--recursive", help="Everything below a directory, and all that a blend or a plan is made from."
        ),
    ] = False,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Write a manifest for datasets of other programs, if sound.")
    ] = False,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Threads; default: one for each core.", show_default=False)
    ] = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
    no_progress: options.NoProgress = False,
    log_json: LogJson = None,
) -> None:
    """Say whether a dataset, a cache, a blend or a plan is what it was when it was written.

    [bold]Examples[/bold]

    tokshard verify out/web

    tokshard verify out/web --level structure

    tokshard verify out/web --level deep --tokenizer tokenizer.json

    tokshard verify --recursive /data/v1

    structure looks at sizes, headers, counts and all entries of indexes; digest also at every byte, by the
    digests that were recorded; deep also at what the bytes mean. All findings are listed. The exit code is 1
    if there are findings but notes.
    """
    with failures.reported(as_json=as_json), recorded(log_json, "verify") as log:
        from tokshard.cli.meter import make_meter
        from tokshard.verification.job import verify as run
        from tokshard.verification.levels import parse_subset

        report = run(
            thing,
            level=level,
            subset=None if subset is None else parse_subset(subset),
            tokenizer=tokenizer,
            recursive=recursive,
            adopt=adopt,
            workers=workers,
            progress=log.following(make_meter(quiet=quiet, animated=not no_progress)),
        )
        log.warnings(f"{one.code}: {one.message}" for one in report.findings if one.is_problem)
        if as_json:
            terminal.say_json(report.to_json())
        elif not quiet:
            _show(report)
        if not report.is_sound:
            raise typer.Exit(FOUND_PROBLEMS)


def _show(report: VerifyReport) -> None:
    for subject in report.subjects:
        _show_subject(subject)
    problems = sum(one.is_problem for one in report.findings)
    found = f"{terminal.count(problems)} findings" if problems > 1 else "1 finding"
    part = "" if report.subset is None else f" of {float(report.subset * 100):g}% of the pieces"
    terminal.say(
        f"{found if problems else 'nothing is wrong'}: level {report.level}{part}, "
        f"{terminal.count(len(report.subjects))} looked at, {terminal.size(report.bytes_read)} read in "
        f"{terminal.duration(report.seconds)}"
    )


def _show_subject(subject: Subject) -> None:
    verdict = "sound" if subject.is_sound else "NOT SOUND"
    terminal.say(f"{subject.kind:<{_LABEL_CELLS}} {terminal.safe(subject.path)}: {verdict}")
    counts = [f"{terminal.count(value)} {name.replace('_', ' ')}" for name, value in subject.counts.items()]
    if counts:
        terminal.say(f"{'':<{_LABEL_CELLS}} {terminal.safe(', '.join(counts))}")
    for one in sorted(subject.findings, key=lambda finding: _ORDER[finding.severity]):
        _show_finding(one)


def _show_finding(one: Finding) -> None:
    terminal.say(f"  {one.severity}: {one.code}: {terminal.safe(one.message)}")
    if one.hint and one.is_problem:
        terminal.say(f"    hint: {terminal.safe(one.hint)}")
