"""Views of tokenize: what was written, what would be done, a task of a job array, work that was removed."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from tokshard.cli import rendering
from tokshard.core.formatting import (
    count,
    counted,
    duration,
    size,
    throughput,
    tokenizer_name,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokshard import TokenizeReport
    from tokshard.text.tokenize.discard import DiscardedWork
    from tokshard.text.tokenize.report import ArrayTaskReport

_SHOWN_INPUTS = 10


def show_report(report: TokenizeReport, rules: str | None = None) -> None:
    """Print what was written, and how."""
    outputs, first = report.outputs, report.outputs[0]
    is_found = report.action == "found"
    verb = "up to date" if is_found else "written"
    facts: list[tuple[str, object]] = [(verb, output.describe()) for output in outputs]
    if report.counts is not None:
        if report.counts.rejected_total:
            path = f"{first.path_prefix}.tokshard/rejected.jsonl"
            facts.append(("rejected", f"{_listed(report.counts.rejected)} (listed in {path})"))
        if report.counts.excluded:
            facts.append(("excluded", _listed(report.counts.excluded)))
    for output in outputs:
        lost = None if output.dataset is None else output.dataset.unrepresented
        if lost is not None and lost.count:
            of_output = f" in {output.path_prefix}" if len(outputs) > 1 else ""
            facts.append((lost.name, f"{lost.describe()}{of_output}"))
    if rules is not None:
        facts.append(("preset", rules))
    facts.append(("encoder", _encoder(report)))
    if not is_found:
        if report.units_reused and first.dataset is not None:
            units = f"{count(report.units_reused)} of {counted(first.dataset.units, 'unit')}"
            facts.append(("reused", units))
        if report.bytes_of_other_options:
            units = counted(report.units_of_other_options or 0, "unit")
            removed = size(report.bytes_of_other_options)
            facts.append(("removed", f"{units} of other options or inputs ({removed})"))
        facts.append(("time", _time(report)))
    rendering.outcome([*facts, *_next_steps(report)])


def show_dry_run(report: TokenizeReport, rules: str | None) -> None:
    """Print what would be done."""
    inputs, options, tokenizer = report.inputs or (), report.options, report.outputs[0].tokenizer
    rendering.line(f"inputs: {count(len(inputs))}, {size(report.input_bytes)} on disk")
    lines = []
    for source in inputs:
        length = "stream" if source.size_bytes is None else size(source.size_bytes)
        packed = "" if source.compression == "none" else f", {source.compression}"
        lines.append(f"  {source.path} ({source.format}{packed}, {length})")
    rendering.lines(lines, _SHOWN_INPUTS, "  and {rest} more")
    for text in report.messages or ():
        rendering.line(text)
    rendering.line(f"outputs: {', '.join(output.path_prefix for output in report.outputs)} ({report.state})")
    if report.local_dir is not None:
        rendering.line(f"built in: {report.local_dir}, then uploaded")
    if tokenizer is not None:
        name, vocabulary = tokenizer_name(tokenizer), count(tokenizer.vocab_size)
        rendering.line(f"tokenizer: {name}, {vocabulary} tokens, {options.dtype}, EOD token {options.eod_id}")
    if options.subset is not None:
        rendering.line(f"subset: {options.subset}")
    if rules is not None:
        rendering.line(f"preset: {rules}")
    reason = f" ({report.encoder_reason})" if report.encoder_reason else ""
    rendering.line(f"encoder: {report.chosen_encoder}{reason}, {counted(report.workers or 1, 'worker')}")


def show_task(report: ArrayTaskReport, *, is_locked: bool) -> None:
    """Print what a task of a job array encoded."""
    name = f"task {report.task} of {report.tasks}"
    if report.state == "elsewhere":
        rendering.line(f"{name}: nothing to do, {report.holder} completes the output")
    if report.state in {"encoded", "published"}:
        units, documents = counted(report.units, "unit"), counted(report.documents, "document")
        facts = [(name, f"{units} encoded, {documents}, {counted(report.tokens, 'token')}")]
        if report.units_reused:
            facts.append(("reused", counted(report.units_reused, "unit")))
        rendering.outcome(facts)
    if report.state == "encoded":
        rendering.outcome([("time", duration(report.seconds))])
        last = "the last task to end assembles the output; or" if is_locked else "when all tasks have ended,"
        rendering.line(f"next: {last} run this command with --finish")
    if report.result is not None:
        show_report(report.result)


def show_discarded(report: DiscardedWork) -> None:
    """Print the unfinished work that was removed."""
    for path in report.removed:
        rendering.line(f"removed: {path}")
    units, held = counted(report.units, "finished unit"), size(report.size_bytes)
    rendering.line(f"{units} ({held}) removed" if report.removed else "nothing to remove: no unfinished work")


def _next_steps(report: TokenizeReport) -> list[tuple[str, object]]:
    options = report.options
    prefixes = [shlex.quote(output.path_prefix) for output in report.outputs[:: len(options.fields)]]
    found: list[tuple[str, object]] = [("next", f"tokshard inspect {prefix}") for prefix in prefixes]
    if options.holdout is not None:
        train, valid = prefixes
        found.append(("next", f"launch with --train-data-path {train} --valid-data-path {valid}"))
    return found


def _time(report: TokenizeReport) -> str:
    # An earlier run may have encoded a part of the text: it counts for no rate.
    if not report.encoded_bytes:
        return duration(report.seconds)
    text = f"{size(report.encoded_bytes)} of text"
    if report.units_reused:
        text += " encoded by this run"
    speed = throughput(report.seconds, report.encoded_bytes, report.encoded_tokens or 0, " of text")
    return f"{text} in {speed}"


def _listed(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{count(number)} {code}" for code, number in sorted(numbers.items()))


def _encoder(report: TokenizeReport) -> str:
    encoder, reason = report.encoder, report.encoder_reason
    if encoder is None:
        return report.chosen_encoder
    names = [name for name in ("fast", "reference") if encoder.documents.get(name)]
    text = " and ".join(names) or "none, there are no documents"
    if encoder.compared:
        checked = counted(encoder.compared, "document")
        text += f", {checked} checked against the reference encoder, all equal"
    if encoder.uncompared:
        text += f", {counted(encoder.uncompared, 'document')} above 1 MB not checked"
    return text + (f" ({reason})" if reason else "")
