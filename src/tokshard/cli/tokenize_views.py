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
    written_dataset,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokshard import TokenizeDryRun, TokenizeReport
    from tokshard.text.tokenize.discard import DiscardedWork
    from tokshard.text.tokenize.report import ArrayTaskReport

_SHOWN_INPUTS = 10


def show_report(report: TokenizeReport, rules: str | None = None) -> None:
    """Print what was written, and how."""
    first = report.outputs[0].prefix
    verb = "up to date" if report.up_to_date else "written"
    facts: list[tuple[str, object]] = [(verb, written_dataset(output)) for output in report.outputs]
    if sum(report.rejected.values()):
        facts.append(("rejected", f"{_listed(report.rejected)} (listed in {first}.tokshard/rejected.jsonl)"))
    if report.excluded:
        facts.append(("excluded", _listed(report.excluded)))
    for output in report.outputs:
        if (lost := output.unrepresented) is not None and lost.count:
            of_output = f" in {output.prefix}" if len(report.outputs) > 1 else ""
            facts.append((lost.name, f"{lost.describe()}{of_output}"))
    if rules is not None:
        facts.append(("preset", rules))
    facts.append(("encoder", _encoder(report)))
    if not report.up_to_date:
        if report.units_reused:
            units = f"{count(report.units_reused)} of {counted(report.units, 'unit')}"
            facts.append(("reused", units))
        if report.bytes_of_other_options:
            units = counted(report.units_of_other_options, "unit")
            removed = size(report.bytes_of_other_options)
            facts.append(("removed", f"{units} of other options or inputs ({removed})"))
        facts.append(("time", _time(report)))
    rendering.outcome([*facts, *_next_steps(report)])


def show_dry_run(plan: TokenizeDryRun, rules: str | None) -> None:
    """Print what would be done."""
    total = sum(source.size_bytes or 0 for source in plan.inputs)
    rendering.line(f"inputs: {count(len(plan.inputs))}, {size(total)} on disk")
    inputs = []
    for source in plan.inputs:
        length = "stream" if source.size_bytes is None else size(source.size_bytes)
        packed = "" if source.compression == "none" else f", {source.compression}"
        inputs.append(f"  {source.path} ({source.format}{packed}, {length})")
    rendering.lines(inputs, _SHOWN_INPUTS, "  and {rest} more")
    for text in plan.messages:
        rendering.line(text)
    rendering.line(f"outputs: {', '.join(plan.outputs)} ({plan.state})")
    if plan.local_dir is not None:
        rendering.line(f"built in: {plan.local_dir}, then uploaded")
    name, vocabulary = tokenizer_name(plan.tokenizer), count(plan.tokenizer.vocab_size)
    dtype, eod = plan.options.dtype, plan.options.eod_id
    rendering.line(f"tokenizer: {name}, {vocabulary} tokens, {dtype}, EOD token {eod}")
    if plan.options.subset is not None:
        rendering.line(f"subset: {plan.options.subset}")
    if rules is not None:
        rendering.line(f"preset: {rules}")
    reason = f" ({plan.encoder_reason})" if plan.encoder_reason else ""
    rendering.line(f"encoder: {plan.encoder}{reason}, {counted(plan.workers, 'worker')}")


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
    outputs = report.outputs
    prefixes = [shlex.quote(output.prefix) for output in outputs if output.field == outputs[0].field]
    found: list[tuple[str, object]] = [("next", f"tokshard inspect {prefix}") for prefix in prefixes]
    if outputs[0].split is not None:
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
    return f"{text} in {throughput(report.seconds, report.encoded_bytes, report.encoded_tokens, ' of text')}"


def _listed(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{count(number)} {code}" for code, number in sorted(numbers.items()))


def _encoder(report: TokenizeReport) -> str:
    names = [name for name in ("fast", "reference") if report.encoder.documents.get(name)]
    text = " and ".join(names) or "none, there are no documents"
    if report.encoder.compared:
        checked = counted(report.encoder.compared, "document")
        text += f", {checked} checked against the reference encoder, all equal"
    if report.encoder.uncompared:
        text += f", {counted(report.encoder.uncompared, 'document')} above 1 MB not checked"
    return text + (f" ({report.encoder_reason})" if report.encoder_reason else "")
