"""Several sources in one TOML file: each is a run of :func:`tokshard.tokenize` of its own.

    tokenizer = "tokenizer.json"     # options for all sources

    [[source]]
    input = "web/*.jsonl.zst"
    output = "data/web"

    [[source]]
    input = ["code.parquet"]
    field = "content"
    output = "data/code"
    on_error = "skip"

A key is the name of an option with ``_`` or ``-``; ``input`` holds the inputs. Paths are relative to the
working directory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokshard.core.codec import Amount, Document, Record
from tokshard.core.error_report import ErrorReport, report_of
from tokshard.core.formatting import count, counted, duration, shown_path
from tokshard.core.options import Declared, all_options, make_options
from tokshard.core.presentation import Section, Table
from tokshard.core.progress import Progress, SilentProgress
from tokshard.core.toml import check_keys, check_tables, parse_toml
from tokshard.errors import InputError, UsageError, known_error
from tokshard.storage.reading import read_text
from tokshard.text.tokenize.options import TokenizeOptions
from tokshard.text.tokenize.report import TokenizeReport
from tokshard.text.tokenize.run import tokenize

if TYPE_CHECKING:
    from tokshard.text.tokenize.workers.executor import Executor
    from tokshard.text.tokenize.workers.ray_cluster import RayOptions

_OF_SOURCES = ("input", "output")
_EXAMPLE = 'write for example [[source]], input = "web/*.jsonl" and output = "data/web"'


@dataclass(frozen=True, slots=True)
class SourceResult(Record):
    """The result of one source: the report of its run, or its error."""

    output: str
    report: TokenizeReport | None = None
    error: ErrorReport | None = None


@dataclass(frozen=True, slots=True)
class SourcesReport(Document):
    """What :func:`tokenize_sources` did, by source."""

    SCHEMA = "tokshard.tokenize-sources/2"

    sources: tuple[SourceResult, ...]
    seconds: Amount

    @property
    def errors(self) -> tuple[tuple[str, ErrorReport], ...]:
        """The outputs of the sources that failed, and their errors."""
        return tuple((source.output, source.error) for source in self.sources if source.error is not None)

    def sections(self) -> list[Section]:
        """Return a table of the sources."""
        header = ("source", "result", "documents", "tokens", "time")
        table = Table(header, [_row(source) for source in self.sources], left=(0, 1), hide=("documents",))
        failed = f", {len(self.errors)} failed" if self.errors else ""
        summary = f"time: {counted(len(self.sources), 'source')}{failed} in {duration(self.seconds)}"
        retry = ["next: run the same command again; finished sources are skipped"] if self.errors else []
        return [Section("", [table, summary, *retry])]


def _row(source: SourceResult) -> tuple[str, ...]:
    path, report = shown_path(source.output), source.report
    if report is None:
        return path, "failed", "-", "-", "-"
    result = "up to date" if report.action == "found" else report.action
    documents = tokens = "-"
    if report.counts is not None:
        documents = count(report.counts.documents)
        tokens = count(sum(output.tokens for output in report.outputs))
    return path, result, documents, tokens, duration(report.seconds)


def _read_sources(path: str, common: Mapping[str, Any]) -> list[TokenizeOptions]:
    """Return the options of each source in a TOML file; no input is read."""
    table = parse_toml(read_text(path, "file of sources", hint=_EXAMPLE), path, hint="fix the file")
    source_name = ""
    try:
        shared = _values({key: value for key, value in table.items() if key != "source"}, _OF_SOURCES)
        sources = []
        for number, own in enumerate(check_tables(table.get("source", []), "source")):
            source_name = f"source[{number}]: "
            sources.append(make_options(TokenizeOptions, {**shared, **common, **_values(own)}))
        source_name = ""
        _check_outputs(sources)
    except (InputError, UsageError) as error:
        kind = UsageError if isinstance(error, UsageError) else InputError
        hint = error.hint or "run `tokshard tokenize --help-all` for its options"
        raise kind(f"{path}: {source_name}{error}", hint=hint) from error
    return sources


def _values(table: Mapping[str, Any], refused: Sequence[str] = ()) -> dict[str, Any]:
    """Return the values of a table by fields; text for a number is read as on the command line."""
    options = {_key(option): option for option in all_options(TokenizeOptions)}
    named = {key.replace("-", "_"): value for key, value in table.items()}
    if "preset" in named:  # it changes the defaults of a command line
        raise InputError("preset cannot be set in the file", hint="pass --preset on the command line")
    for key in refused:
        if key in named:
            raise InputError(f"{key} must be set in a source", hint=_EXAMPLE)
    check_keys(named, list(options), "")
    values = {}
    for key, value in named.items():
        option = options[key]
        is_word = isinstance(value, str) and option.kind in {int, float}
        try:
            values[option.field] = option.parse_word(value) if is_word else value
        except ValueError as error:
            raise InputError(f"{key} {error}") from None
    return values


def _key(option: Declared) -> str:
    return "input" if option.option.is_argument else option.name.removeprefix("--").replace("-", "_")


def _check_outputs(sources: list[TokenizeOptions]) -> None:
    if not sources:
        raise InputError("there must be at least one source", hint=_EXAMPLE)
    numbers: dict[str, int] = {}
    for number, options in enumerate(sources):
        for prefix in options.output_prefixes(options.prefix):
            path = prefix if "://" in prefix else os.path.abspath(prefix)
            if path in numbers:
                raise UsageError(
                    f"source[{numbers[path]}] and source[{number}] have the same output {prefix}",
                    hint="choose another output for one of them",
                )
            numbers[path] = number


def tokenize_sources(
    path: str,
    common: Mapping[str, Any] | None = None,
    *,
    dry_run: bool = False,
    executor: RayOptions | Executor | None = None,
    progress: Progress | None = None,
) -> SourcesReport:
    """Run :func:`tokshard.tokenize` for each source in a TOML file; one that fails stops no other.

    Args:
        path: The file; see ``docs/how-to/tokenize-sources.md`` for its format.
        common: Values by the fields of :class:`~tokshard.TokenizeOptions` for all sources. They replace the
            options for all sources in the file, and a source's own options replace both.
        dry_run: See :func:`tokshard.tokenize`.
        executor: See :func:`tokshard.tokenize`.
        progress: Receives the progress of each run.

    Raises:
        InputError: The file cannot be read or is not TOML, a key is unknown, or a value has the wrong type.
        UsageError: The options of a source are invalid, or two sources have the same output.

    Example:
        >>> report = tokenize_sources("sources.toml", {"workers": 8})  # doctest: +SKIP
        >>> [source.output for source in report.sources if source.error is None]  # doctest: +SKIP
        ['data/web', 'data/code']
    """
    started = time.monotonic()
    sources = _read_sources(path, common or {})
    listener = progress or SilentProgress()
    results = []
    for number, options in enumerate(sources, 1):
        listener.message(f"source {number} of {len(sources)}: {options.prefix}")
        try:
            report = tokenize(options, dry_run=dry_run, executor=executor, progress=progress)
            results.append(SourceResult(options.prefix, report))
        except Exception as error:
            known = known_error(error)
            if known is None:
                raise
            listener.message(f"failed: {known.message}")
            results.append(SourceResult(options.prefix, error=report_of(known)))
    return SourcesReport(tuple(results), time.monotonic() - started)
