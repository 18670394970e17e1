"""How a tokenize run is shown: what it has done, and what it would do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokshard.cli import terminal

if TYPE_CHECKING:
    from tokshard.tokenization.report import DryRunReport, TokenizeReport


def show_report(report: TokenizeReport) -> None:
    """Print what was written."""
    for output in report.outputs:
        terminal.say(
            f"{terminal.safe(output.prefix)}.bin, .idx: {terminal.count(output.documents)} documents, "
            f"{terminal.count(output.sequences)} sequences, {terminal.count(output.tokens)} tokens "
            f"({output.dtype}, {terminal.size(output.bin_bytes + output.idx_bytes)})"
        )
    if sum(report.rejected.values()):
        reasons = ", ".join(f"{terminal.count(n)} {reason}" for reason, n in sorted(report.rejected.items()))
        listed = f"{terminal.safe(report.outputs[0].prefix)}.tokshard/rejected.jsonl"
        terminal.say(f"rejected: {reasons} (listed in {listed})")
    terminal.say(_how(report))
    terminal.say(f"next: tokshard inspect {terminal.safe(report.outputs[0].prefix)}")


def _how(report: TokenizeReport) -> str:
    if report.up_to_date:
        return "everything is there already, made from the same inputs with the same options"
    speed = terminal.size(report.content_bytes / max(report.seconds, 1e-9))
    size = terminal.size(report.content_bytes)
    parts = [f"{size} of text in {terminal.duration(report.seconds)} ({speed}/s)"]
    made_by = report.engine["documents"]
    engines = " and ".join(name for name in ("fast", "reference") if made_by.get(name))
    if engines:
        parts.append(f"{engines} engine")
    if report.engine["compared"]:
        parts.append(f"{terminal.count(report.engine['compared'])} documents compared with the reference")
    if report.units_resumed:
        parts.append(f"{report.units_resumed} of {report.units} units were done before")
    return ", ".join(parts)


def show_plan(plan: DryRunReport) -> None:
    """Print what would be done."""
    total = sum(entry["size_bytes"] or 0 for entry in plan.inputs)
    terminal.say(f"inputs: {terminal.count(len(plan.inputs))}, {terminal.size(total)} on disk")
    for entry in plan.inputs[:10]:
        length = "stream" if entry["size_bytes"] is None else terminal.size(entry["size_bytes"])
        kind = (
            entry["format"]
            if entry["compression"] == "none"
            else f"{entry['format']}, {entry['compression']}"
        )
        terminal.say(f"  {terminal.safe(entry['path'])} ({kind}, {length})")
    if len(plan.inputs) > 10:
        terminal.say(f"  and {len(plan.inputs) - 10} more")
    terminal.say(f"outputs: {', '.join(map(terminal.safe, plan.outputs))} ({plan.state})")
    if plan.staging is not None:
        terminal.say(f"made in: {terminal.safe(plan.staging)}, then uploaded")
    name, vocabulary = terminal.tokenizer_name(plan.tokenizer), terminal.count(plan.tokenizer.vocab_size)
    dtype, eod = plan.options["dtype"], plan.options["eod_id"]
    terminal.say(f"tokenizer: {name}, {vocabulary} tokens, {dtype}, EOD {eod}")
    reason = f" ({plan.engine_reason})" if plan.engine_reason else ""
    terminal.say(f"engine: {plan.engine}{terminal.safe(reason)}, {plan.workers} workers")
