"""The report of a verification, and the codes of everything that it can find.

``docs/reference/findings.md`` shows the same table of codes; a test keeps them equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from tokshard.checks.verify.options import Level
from tokshard.core.codec import Amount, Count, Document, Record
from tokshard.core.findings import Finding, FindingCollector, FindingRule, finding_lines
from tokshard.core.formatting import count, counted, duration, size
from tokshard.core.presentation import Block, FactList, Section, Table
from tokshard.dataset.products import Kind
from tokshard.errors import OlderVersionError, TokshardError

_SHOWN_FINDINGS = 1000

_COPY = "copy it again from its source, or rebuild it"
_REMAKE = "run tokshard tokenize or tokshard merge again with --force"
_REBUILD = "run tokshard build-indices or tokshard blend again with --rebuild"
_REBLEND = "run tokshard blend again with --rebuild --force"
_REEXPORT = "run tokshard export again with --force"
_REPLAN = "run tokshard shard-plan again with --force"


def _error(meaning: str, remedy: str) -> FindingRule:
    return FindingRule("error", meaning, remedy)


def _warning(meaning: str, remedy: str) -> FindingRule:
    return FindingRule("warning", meaning, remedy)


def _note(meaning: str, remedy: str | None = None) -> FindingRule:
    return FindingRule("note", meaning, remedy)


RULES: Mapping[str, FindingRule] = MappingProxyType(
    {
        # Any product
        "unreadable": _error(
            "a file cannot be read, or is not a regular file", "check its permissions and the disk"
        ),
        "dataset-damaged": _error(
            "the dataset that this was built from cannot be opened", "run tokshard verify on that dataset"
        ),
        "older-version": _error(
            "an earlier version of tokshard wrote it, in a format that is no longer read",
            "build it again with the same command",
        ),
        "changed": _warning(
            "it changed during the verification, so the result is invalid",
            "run verify again when no process writes it",
        ),
        # Datasets: the files
        "unfinished": _warning(
            "a run that builds this dataset was interrupted, or is still active", "run the same command again"
        ),
        "bin-missing": _error("the .bin is missing", _COPY),
        "idx-missing": _error("the .idx is missing", _COPY),
        "idx-header": _error("the .idx does not begin with the magic bytes of an index", _COPY),
        "idx-version": _error("the .idx has an unknown version", _COPY),
        "idx-dtype": _error("the .idx has an unknown dtype code", _COPY),
        "idx-count": _error("the .idx has a document count of 0 (it must include the final boundary)", _COPY),
        "idx-size": _error("the size of the .idx contradicts its header", _COPY),
        "idx-length": _error("sequences have negative lengths", _COPY),
        "idx-pointer": _error("sequences do not begin where the previous ones end", _COPY),
        "idx-document": _error("document boundaries decrease or are out of range", _COPY),
        "bin-size": _error("the sequences end before or after the end of the .bin", "copy both files again"),
        # Datasets: what the manifest says
        "unverified": _note(
            "there is no manifest: the structure is valid, the content is unverified",
            "run tokshard verify --adopt to write a manifest, which makes later changes detectable",
        ),
        "manifest-older": _note(
            "the manifest is of an earlier version of tokshard, which is not read: the content is unverified",
            "run tokshard verify --adopt --tokenizer TOKENIZER PREFIX to write a new one",
        ),
        "adopted": _note("a manifest was written for files of unknown origin"),
        "manifest-damaged": _error("the manifest cannot be read", _COPY),
        "manifest-changed": _error("the manifest was changed: its seal does not match", _COPY),
        "manifest-count": _error("counts in the manifest contradict each other", _COPY),
        "manifest-index": _error("the manifest contradicts the index", _REMAKE),
        "shuffled": _note("the documents are in a random order"),
        "file-missing": _error("a file that the manifest lists is missing", _COPY),
        "file-size": _error("the size of a file contradicts the manifest", _REMAKE),
        "file-unlisted": _warning(
            "a tokshard file next to the manifest is not listed in it",
            "remove it, or copy the whole dataset again",
        ),
        "units-damaged": _error("a line of units.jsonl or pieces.jsonl is invalid", _COPY),
        "units-count": _error("the sums of the units or pieces contradict the manifest", _COPY),
        "units-index": _error("the units or pieces do not end where documents end in the index", _COPY),
        "units-digest": _error("the digests of the units or pieces contradict the manifest", _COPY),
        # Digests of datasets
        "bin-digest": _error("a piece of the .bin does not match its digest", _COPY),
        "idx-digest": _error("the .idx does not match its digest", _COPY),
        "file-digest": _error("a file next to the manifest does not match its digest", _COPY),
        # Datasets: what the bytes mean
        "token-dtype": _error(
            "the tokens are floating-point numbers, but token ids are integers", "tokenize the text again"
        ),
        "token-range": _error(
            "tokens are negative, or outside the vocabulary", "tokenize again with the job's tokenizer"
        ),
        "vocabulary-unknown": _note(
            "the tokenizer is unknown, so token ids cannot be checked", "pass --tokenizer"
        ),
        "eod-missing": _error("documents do not end with the EOD token", _REMAKE),
        "eod-count": _error("the number of EOD tokens within documents contradicts the manifest", _REMAKE),
        "special-missing": _error(
            "texts do not have the tokens that --special-tokens adds (such as BOS), as the manifest records",
            _REMAKE,
        ),
        "special-in-text": _warning(
            "special tokens occur within text: the text spells them, and they became control tokens",
            "tokenize again with --special-tokens-in-text split and without --preset megatron, or "
            "remove such strings from the text",
        ),
        "tokenizer-other": _error(
            "the tokenizer passed is not that of the dataset",
            "pass the tokenizer that the dataset was encoded with",
        ),
        "tokenizer-changed": _error(
            "a dataset has another tokenizer than the product that uses it records",
            "restore the dataset, or build the product again",
        ),
        "tokenizer-mismatch": _error(
            "datasets that are used together have different tokenizers: equal ids mean different text",
            "tokenize all of them again with one tokenizer",
        ),
        "tokenizer-mismatch-allowed": _warning(
            "different tokenizers were allowed by --allow-tokenizer-mismatch: equal ids mean different text",
            "tokenize all of them again with one tokenizer",
        ),
        "tokenizer-unchecked": _note("tokenizers are unknown or cannot be compared, and were not compared"),
        "undecodable": _error(
            "a document cannot be decoded", "check that --tokenizer is the tokenizer of the dataset"
        ),
        "provenance-order": _error("the positions of documents in their inputs do not ascend", _REMAKE),
        "order-incomplete": _error("order.bin does not have the number of each document once", _REMAKE),
        "rejected-count": _error("the number of records in rejected.jsonl contradicts the manifest", _REMAKE),
        "input-missing": _note("inputs were not found and not compared"),
        "input-changed": _warning(
            "the size or the modification time of an input has changed since it was tokenized",
            "tokenize again, or restore the input",
        ),
        # Index caches
        "cache-incomplete": _error(
            "files of an index are missing: Megatron would rebuild all of them",
            "run tokshard build-indices or tokshard blend again",
        ),
        "cache-description": _error("a description cannot be read", _REBUILD),
        "cache-name": _error("a description contradicts the hash in its name", _REBUILD),
        "cache-array": _error("an array is truncated or is not a .npy file of numpy", _REBUILD),
        "cache-shape": _error("the shapes or dtypes of arrays contradict each other", _REBUILD),
        "cache-sidecar": _error("the sidecar file cannot be read, or belongs to another index", _REBUILD),
        "cache-digest": _error("an array does not match its digest", _REBUILD),
        "cache-stale": _error("an index was built from other content of its dataset", _REBUILD),
        "cache-content": _error(
            "an array or its sidecar differs from the one built from the dataset", _REBUILD
        ),
        "cache-foreign": _note(
            "an index was not built by tokshard: its content is unverified",
            "pass --level deep to build and compare it",
        ),
        "cache-alone": _note("the dataset of an index was not found and not compared"),
        "cache-leftover": _note(
            "a lock or temporary file is left from an interrupted build",
            "the next build of the same index removes it",
        ),
        # Blends
        "blend-damaged": _error("the blend.json cannot be read, or was changed", _REBLEND),
        "blend-source-missing": _error(
            "a dataset of a blend is missing", "restore it at the path recorded in the blend"
        ),
        "blend-source-changed": _error("a dataset has changed since it was blended", _REBLEND),
        "blend-file-changed": _error("a file has changed since the blend was built", _REBLEND),
        "blend-samples": _error("the samples of a source in the blend contradict its index", _REBLEND),
        "blend-order": _error("the weights of a blend contradict the description of its order", _REBLEND),
        "blend-certificate": _error("a figure of the certificate is wrong", _REBLEND),
        # Plans
        "plan-damaged": _error("the plan.json cannot be read, or was changed", _REPLAN),
        "plan-rank": _error(
            "the manifest of a rank is damaged, or contradicts the plan", "run tokshard shard-plan again"
        ),
        "plan-rank-missing": _error(
            "the manifest of a rank is missing", "copy the complete directory of the plan"
        ),
        "plan-file-missing": _error(
            "a file that the plan reads is missing", "restore it at the path recorded in the plan"
        ),
        "plan-file-changed": _error("a file has changed since the plan was built", _REPLAN),
        "plan-coverage": _error("over all ranks, samples are read twice in an epoch", _REPLAN),
        # Exports
        "export-damaged": _error("the manifest of an export cannot be read, or was changed", _REEXPORT),
        "export-unfinished": _warning(
            "an export was interrupted, or is still active", "run the same command again"
        ),
        "export-file-missing": _error("a file that the manifest of an export lists is missing", _REEXPORT),
        "export-file-size": _error("the size of a file contradicts the manifest of an export", _REEXPORT),
        "export-file-digest": _error("a file of an export does not match its digest", _REEXPORT),
        "export-other-files": _warning(
            "files of the format that the manifest of an export does not list: readers read them, too",
            "move them to another directory",
        ),
        "export-source-changed": _warning("a dataset has changed since it was exported", _REEXPORT),
        "export-source-missing": _note("the dataset of an export was not found and not compared"),
    }
)


TokenRole = Literal["eod", "prefix", "suffix", "unknown"]
_ROLES: Mapping[TokenRole, str] = {
    "eod": "EOD",
    "prefix": "added before texts",
    "suffix": "added after texts",
    "unknown": "unknown characters",
}


@dataclass(frozen=True, slots=True)
class SpecialTokenCount(Record):
    """Counts of one special token."""

    id: Count
    token: str | None
    roles: tuple[TokenRole, ...]
    occurrences: Count
    starts: Count
    ends: Count
    elsewhere: Count
    first_elsewhere: Count | None


@dataclass(frozen=True, slots=True)
class SpecialTokenAudit(Record):
    """The special tokens of a dataset, counted at level deep."""

    documents: Count
    tokens: tuple[SpecialTokenCount, ...]

    def lines(self) -> Iterator[str]:
        """Return the counts for people."""
        yield f"special tokens in {counted(self.documents, 'non-empty document')}:"
        for found in self.tokens:
            text = f"{found.token} ({found.id})" if found.token is not None else str(found.id)
            roles = "".join(f", {_ROLES[role]}" for role in found.roles)
            first = f" (first in document {found.first_elsewhere})" if found.elsewhere else ""
            yield (
                f"  {text}{roles}: begins {self._share(found.starts)}, ends {self._share(found.ends)}, "
                f"elsewhere {count(found.elsewhere)}{first}"
            )

    def _share(self, number: int) -> str:
        # Rounded towards the middle: 100% is all, and 0% is none.
        if number in {0, self.documents}:
            return count(number) if not number else f"{count(number)} (100%)"
        tenths = min(max(round(1000 * number / self.documents), 1), 999)
        return f"{count(number)} ({tenths / 10:g}%)"


@dataclass(frozen=True, slots=True)
class VerifiedProduct(Record):
    """One product that was examined."""

    kind: Kind
    path: str
    sound: bool
    counts: dict[str, int]
    findings: tuple[Finding, ...]
    special_tokens: SpecialTokenAudit | None = None

    def blocks(self) -> Iterator[Block]:
        """Return the verdict, the counts and the findings for people."""
        facts: list[tuple[str, object]] = [
            (self.kind, f"{self.path}: {'sound' if self.sound else 'NOT SOUND'}")
        ]
        if self.counts:
            counts = (f"{count(number)} {_noun(name, number)}" for name, number in self.counts.items())
            facts.append(("", ", ".join(counts)))
        if self.special_tokens is not None:
            facts += [("", line) for line in self.special_tokens.lines()]
        yield FactList(facts)
        yield from finding_lines(self.findings, "  ")


def _noun(name: str, number: int) -> str:
    # Of names such as "inputs_compared".
    words = name.split("_")
    return " ".join(words if number != 1 else [word.removesuffix("s") for word in words])


@dataclass(frozen=True, slots=True)
class VerifyReport(Document):
    """Report of a verification."""

    SCHEMA = "tokshard.verify/2"

    path: str
    level: Level
    subset_percent: float | None
    sound: bool
    bytes_read: Count
    seconds: Amount
    products: tuple[VerifiedProduct, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of all products."""
        return tuple(finding for product in self.products for finding in product.findings)

    def sections(self, *, recursive: bool = False) -> list[Section]:
        """Return the verdict on each product for people; ``recursive`` is the option of the verification."""
        problems = sum(finding.is_problem for finding in self.findings)
        verdict = counted(problems, "finding") if problems else "no problems found"
        part = "" if self.subset_percent is None else f" of {self.subset_percent:g}% of the pieces"
        products = f"{counted(len(self.products), 'product')} verified"
        work = f"{size(self.bytes_read)} read in {duration(self.seconds)}"
        lines = [f"{verdict}: level {self.level}{part}, {products}, {work}"]
        if not recursive and {product.kind for product in self.products} == {"plan"}:
            lines.append(f"next: tokshard verify --recursive {self.path} (also its indexes and datasets)")
        return [Section("", [*(block for product in self.products for block in product.blocks()), *lines])]

    def findings_section(self) -> Section:
        """Return the findings for the page of the product."""
        if not self.findings:
            return Section("Verification", [f"No problems found at level {self.level}."])
        rows = [
            (
                finding.severity,
                finding.code,
                finding.message,
                finding.hint or "",
                (finding.path or "") + ("" if finding.offset is None else f", byte {finding.offset}"),
            )
            for finding in self.findings[:_SHOWN_FINDINGS]
        ]
        more = f", of which the first {count(len(rows))} are shown" if len(self.findings) > len(rows) else ""
        text = f"{counted(len(self.findings), 'finding')} at level {self.level}{more}."
        header = ("severity", "code", "finding", "hint", "location")
        return Section("Verification", [text, Table(header, rows, left=range(5))])


class ProductFindings(FindingCollector):
    """Findings about one product of a kind that can be verified."""

    def __init__(self, kind: Kind, path: str) -> None:
        super().__init__(RULES, path)
        self.kind = kind
        self.special_tokens: SpecialTokenAudit | None = None

    def find_error(self, code: str, error: TokshardError, *, path: str | None = None) -> None:
        """Add a finding that reports a caught error; a file of an earlier version is not damaged."""
        code = "older-version" if isinstance(error, OlderVersionError) else code
        super().find_error(code, error, path=path)

    def find_changed(self) -> None:
        """Replace all findings by one: another program changed the product during the verification."""
        self.findings.clear()
        self.find("changed", f"{self.path} was changed during the verification")

    def close(self) -> VerifiedProduct:
        """Return the verified product."""
        return VerifiedProduct(
            self.kind,
            self.path,
            self.sound,
            dict(self.counts),
            tuple(self.findings),
            self.special_tokens,
        )
