"""Reports of tokenize."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from tokshard.core.codec import Amount, Count, Document, Positive
from tokshard.core.formatting import count, counted, duration, size, throughput
from tokshard.core.presentation import Section, labeled, outcome, planned
from tokshard.dataset.counts import Counts
from tokshard.dataset.manifest import SourceFile
from tokshard.dataset.parameters import TokenizeParameters
from tokshard.dataset.report import BuildReport, DatasetProduct
from tokshard.dataset.tokenizer_identity import TokenizerIdentity, tokenizer_name
from tokshard.text.tokenize.part import ENCODED_CONTENT


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeReport(BuildReport):
    """The datasets that :func:`tokshard.tokenize` wrote, found up to date, or would write."""

    SCHEMA = "tokshard.tokenize/2"

    outputs: tuple[DatasetProduct, ...]
    options: TokenizeParameters
    input_bytes: Count
    inputs: tuple[SourceFile, ...] | None = None
    messages: tuple[str, ...] | None = None
    workers: Positive | None = None
    local_dir: str | None = None
    chosen_encoder: Literal["reference", "fast", "none"]
    encoder_reason: str | None = None
    counts: Counts | None = None
    units_reused: Count | None = None
    encoded_bytes: Count | None = None
    encoded_tokens: Count | None = None

    def sections(self, preset: str | None = None) -> list[Section]:
        """Return what was done, or would be done, for people; ``preset`` is the name of applied rules."""
        if self.action == "planned":
            return [self._planned(preset)]
        outputs, first = self.outputs, self.outputs[0]
        facts = [*self._record_facts(), ("preset", preset), ("encoder", self._encoder())]
        if self.units_reused and first.dataset is not None:
            facts.append(("reused", f"{count(self.units_reused)} of {counted(first.dataset.units, 'unit')}"))
        prefixes = [shlex.quote(output.path_prefix) for output in outputs[:: len(self.options.fields)]]
        next_steps = [f"tokshard inspect {prefix}" for prefix in prefixes]
        if self.options.holdout is not None:
            train, valid = prefixes
            next_steps.append(f"launch with --train-data-path {train} --valid-data-path {valid}")
        written = [output.describe() for output in outputs]
        return [outcome(self.action, written, facts, self._time(), next_steps)]

    def _record_facts(self) -> Iterator[tuple[str, object]]:
        if self.counts is not None:
            path = f"{self.outputs[0].path_prefix}.tokshard/rejected.jsonl"
            rejected = _numbers(self.counts.rejected)
            yield "rejected", self.counts.rejected_total and f"{rejected} (listed in {path})"
            yield "excluded", _numbers(self.counts.excluded or {})
        for output in self.outputs:
            lost = None if output.counts is None else output.counts.unrepresented
            if lost is not None and lost.count:
                of_output = f" in {output.path_prefix}" if len(self.outputs) > 1 else ""
                yield lost.name, f"{lost.describe()}{of_output}"

    def _planned(self, preset: str | None) -> Section:
        options, tokenizer = self.options, self.outputs[0].tokenizer
        prefixes = ", ".join(output.path_prefix for output in self.outputs)
        reason = f" ({self.encoder_reason})" if self.encoder_reason else ""
        if options.vocab_size is not None:
            reason = f" (token ids below {count(options.vocab_size)} are written as they are)"
        facts = [
            ("inputs", f"{len(self.inputs or ())}, {size(self.input_bytes)} on disk"),
            ("outputs", f"{prefixes} ({self.state})"),
            ("built in", self.local_dir and f"{self.local_dir}, then uploaded"),
            ("tokenizer", tokenizer and self._tokenizer(tokenizer)),
            ("subset", options.subset),
            ("preset", preset),
            ("encoder", f"{self.chosen_encoder}{reason}, {counted(self.workers or 1, 'worker')}"),
        ]
        inputs = []
        for source in self.inputs or ():
            packed = "" if source.compression == "none" else f", {source.compression}"
            length = "stream" if source.size_bytes is None else size(source.size_bytes)
            inputs.append(f"{source.path} ({source.format}{packed}, {length})")
        return planned(facts, inputs, self.messages or ())

    def _tokenizer(self, tokenizer: TokenizerIdentity) -> str:
        name, tokens = tokenizer_name(tokenizer), counted(tokenizer.vocab_size, "token")
        return f"{name}, {tokens}, {self.options.dtype}, EOD token {self.options.eod_id}"

    def _time(self) -> str:
        # An earlier run may have encoded a part of the text: it counts for no rate.
        if not self.encoded_bytes:
            return duration(self.seconds)
        kind = ENCODED_CONTENT[self.chosen_encoder]
        text = f"{size(self.encoded_bytes)}{kind}{' encoded by this run' if self.units_reused else ''}"
        return f"{text} in {throughput(self.seconds, self.encoded_bytes, self.encoded_tokens or 0, kind)}"

    def _encoder(self) -> str:
        counts, reason = self.counts, self.encoder_reason
        if self.chosen_encoder == "none" and counts is not None:
            return f"none, {counted(counts.documents, 'document')} of token ids written as they are"
        if counts is None:
            return self.chosen_encoder
        names = [name for name in ("fast", "reference") if counts.encoders.get(name)]
        text = " and ".join(names) or "none, there are no documents"
        if counts.compared:
            checked = counted(counts.compared, "document")
            text += f", {checked} checked against the reference encoder, all equal"
        if counts.uncompared:
            text += f", {counted(counts.uncompared, 'document')} above 1 MB not checked"
        return text + (f" ({reason})" if reason else "")


def _numbers(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{count(number)} {code}" for code, number in sorted(numbers.items()))


@dataclass(frozen=True, slots=True)
class ArrayTaskReport(Document):
    """The result of :func:`tokshard.tokenize_array_task`.

    The state is ``"encoded"``: the units of this task are encoded; or ``"up-to-date"``: the output exists.
    """

    SCHEMA = "tokshard.tokenize-array/2"

    task: Count
    tasks: Positive
    state: Literal["encoded", "up-to-date"]
    units: Count
    units_reused: Count
    documents: Count
    tokens: Count
    seconds: Amount

    def sections(self) -> list[Section]:
        """Return what the task did for people."""
        name = f"task {self.task} of {self.tasks}"
        if self.state == "up-to-date":
            return [Section("", labeled([(name, "nothing to do, the output is up to date")]))]
        units, documents = counted(self.units, "unit"), counted(self.documents, "document")
        facts: list[tuple[str, object]] = [
            (name, f"{units} encoded, {documents}, {counted(self.tokens, 'token')}"),
            ("reused", self.units_reused and counted(self.units_reused, "unit")),
            ("time", duration(self.seconds)),
            ("next", "when all tasks have ended, run this command with --finish instead of --array-task"),
        ]
        return [Section("", labeled(facts))]
