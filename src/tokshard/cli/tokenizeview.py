"""How a tokenize run is shown: what it has done, and what it would do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokshard.cli import terminal

if TYPE_CHECKING:
    from tokshard import TokenizeDryRun, TokenizeReport


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
    made_by = report.encoder.documents
    encoders = " and ".join(name for name in ("fast", "reference") if made_by.get(name))
    if encoders:
        parts.append(f"{encoders} encoder")
    if report.encoder.compared:
        parts.append(f"{terminal.count(report.encoder.compared)} documents compared with the reference")
    if report.units_resumed:
        parts.append(f"{report.units_resumed} of {report.units} units were done before")
    return ", ".join(parts)


def show_dry_run(plan: TokenizeDryRun) -> None:
    """Print what would be done."""
    total = sum(source.size_bytes or 0 for source in plan.inputs)
    terminal.say(f"inputs: {terminal.count(len(plan.inputs))}, {terminal.size(total)} on disk")
    for source in plan.inputs[:10]:
        length = "stream" if source.size_bytes is None else terminal.size(source.size_bytes)
        packed = "" if source.compression == "none" else f", {source.compression}"
        terminal.say(f"  {terminal.safe(source.path)} ({source.format}{packed}, {length})")
    if len(plan.inputs) > 10:
        terminal.say(f"  and {len(plan.inputs) - 10} more")
    terminal.say(f"outputs: {', '.join(map(terminal.safe, plan.outputs))} ({plan.state})")
    if plan.local_dir is not None:
        terminal.say(f"made in: {terminal.safe(plan.local_dir)}, then uploaded")
    name, vocabulary = terminal.tokenizer_name(plan.tokenizer), terminal.count(plan.tokenizer.vocab_size)
    dtype, eod = plan.options.dtype, plan.options.eod_id
    terminal.say(f"tokenizer: {name}, {vocabulary} tokens, {dtype}, EOD {eod}")
    reason = f" ({plan.encoder_reason})" if plan.encoder_reason else ""
    terminal.say(f"encoder: {plan.encoder}{terminal.safe(reason)}, {plan.workers} workers")
