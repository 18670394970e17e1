"""The report of a verification, and the codes of everything that it can find.

``docs/reference/findings.md`` shows the same table of codes; a test keeps them equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Literal

from tokshard.core.codec import Document, Key
from tokshard.core.findings import Finding, FindingCollector, FindingRule
from tokshard.verification.options import Level

_COPY = "copy it again from its source, or make it again"
_REMAKE = "make the dataset again, with --force"
_REBUILD = "--rebuild makes it again"


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
            "a file is there and cannot be read, or is no regular file", "check its permissions and the disk"
        ),
        "dataset-damaged": _error(
            "the dataset that this was made from cannot be opened", "tokshard verify that dataset"
        ),
        "changed": _warning(
            "it was changed while it was looked at, so nothing can be said of it",
            "verify it when nothing writes to it any more",
        ),
        # Datasets: the files
        "unfinished": _warning(
            "a run that makes this dataset was stopped, or is under way", "run the same command again"
        ),
        "bin-missing": _error("the .bin is not there, but the .idx is", _COPY),
        "idx-missing": _error("the .idx is not there, but the .bin is", _COPY),
        "idx-header": _error("the .idx begins with other bytes than an index does", _COPY),
        "idx-version": _error("the .idx claims to be of an unknown version", _COPY),
        "idx-dtype": _error("the .idx names a type of tokens that does not exist", _COPY),
        "idx-count": _error("the .idx counts no boundary of documents, of which there is always one", _COPY),
        "idx-size": _error("the size of the .idx does not follow from its header", _COPY),
        "idx-length": _error("sequences have negative lengths", _COPY),
        "idx-pointer": _error("sequences do not begin where those before them end", _COPY),
        "idx-document": _error("boundaries of documents decrease or lie outside", _COPY),
        "bin-size": _error("the sequences do not end where the .bin ends", "copy both files again"),
        # Datasets: what the manifest says
        "unverified": _note(
            "there is no manifest: the structure is sound, nothing is known of the content",
            "tokshard verify --adopt writes a manifest, by which later changes are found",
        ),
        "adopted": _note("a manifest was written for files of unknown origin"),
        "manifest-damaged": _error("the manifest cannot be read", _COPY),
        "manifest-changed": _error("the manifest is not as it was written: its seal is broken", _COPY),
        "manifest-count": _error("counts in the manifest contradict each other", _COPY),
        "manifest-index": _error(
            "the manifest says other things of the index than the index itself", _REMAKE
        ),
        "file-missing": _error("a file that the manifest lists is not there", _COPY),
        "file-size": _error("a file has another size than the manifest says", _REMAKE),
        "file-unlisted": _warning(
            "a file of ours lies beside the manifest, which does not list it", "remove it, or copy all again"
        ),
        "units-damaged": _error("a line of units.jsonl is no unit", _COPY),
        "units-count": _error("the units do not add up to what the manifest says", _COPY),
        "units-index": _error("the units do not end where documents end in the index", _COPY),
        "units-digest": _error("the digests of the units do not make those in the manifest", _COPY),
        # Digests of datasets
        "bin-digest": _error("a piece of the .bin is not what was written", _COPY),
        "idx-digest": _error("the .idx is not what was written", _COPY),
        "file-digest": _error("a file beside the manifest is not what was written", _COPY),
        # Datasets: what the bytes mean
        "token-range": _error(
            "tokens are no ids of the vocabulary", "tokenize again with the tokenizer that the job uses"
        ),
        "vocabulary-unknown": _note(
            "no tokenizer is known, so no token can be out of its range", "give --tokenizer"
        ),
        "eod-missing": _error("documents do not end with the EOD token, though all should", _REMAKE),
        "eod-count": _error("EOD tokens within documents are not as many as the manifest says", _REMAKE),
        "tokenizer-other": _error(
            "the tokenizer given is not the one that made the dataset", "give the one that made it"
        ),
        "undecodable": _error("a document cannot be decoded", "check that the tokenizer is the right one"),
        "provenance-order": _error("the places of documents in their inputs do not ascend", _REMAKE),
        "rejected-count": _error("rejected.jsonl lists other records than the manifest counts", _REMAKE),
        "input-missing": _note("inputs are not here and were not compared"),
        "input-size-only": _note(
            "of inputs nothing but their sizes was compared: tables of several columns, of a merged dataset "
            "or without pyarrow, and compressed inputs with lines too long or a damaged end"
        ),
        "input-changed": _warning(
            "an input is not what was tokenized", "tokenize again, or put the input back as it was"
        ),
        # Index caches
        "cache-incomplete": _error(
            "files of an index are not there: Megatron would build all anew", _REBUILD
        ),
        "cache-description": _error("a description cannot be understood", _REBUILD),
        "cache-name": _error("a description is not the text that its name is the hash of", _REBUILD),
        "cache-array": _error("an array is cut or is none that numpy has written", _REBUILD),
        "cache-shape": _error("arrays do not have the shapes and types that belong together", _REBUILD),
        "cache-sidecar": _error("our file beside the arrays cannot be read, or is another's", _REBUILD),
        "cache-digest": _error("an array is not what was written", _REBUILD),
        "cache-stale": _error("an index was made from another content of its dataset", _REBUILD),
        "cache-content": _error("an array is not what follows from the dataset", _REBUILD),
        "cache-foreign": _note(
            "an index was not made by tokshard: nothing is known of its content",
            "--level deep builds and compares",
        ),
        "cache-alone": _note("the dataset of an index is not here and was not compared"),
        "cache-leftover": _note(
            "a lock or temporary file is left of a builder", "the next build of the same index removes it"
        ),
        # Blends
        "blend-damaged": _error("the blend.json cannot be read, or was changed", _REBUILD),
        "blend-source-missing": _error(
            "a dataset of a blend is not there", "put it where the blend expects it"
        ),
        "blend-source-changed": _error("a dataset is not the one that was blended", _REBUILD),
        "blend-samples": _error("a blend counts on other samples of a source than its index has", _REBUILD),
        "blend-hash": _error("files of a blend are named by another hash than its document says", _REBUILD),
        "blend-order": _error("the order of a blend does not follow from its weights", _REBUILD),
        "blend-certificate": _error("a figure of the certificate is not what is counted again", _REBUILD),
        # Plans
        "plan-damaged": _error("the plan.json cannot be read, or was changed", "make the plan again"),
        "plan-rank": _error(
            "the manifest of a rank is damaged, or does not follow from the plan", "make the plan again"
        ),
        "plan-rank-missing": _error("the manifest of a rank is not there", "copy the plan's whole directory"),
        "plan-file-missing": _error(
            "a file that the plan reads is not there", "put it where the plan expects it"
        ),
        "plan-file-changed": _error("a file has changed since the plan was made", "make the plan again"),
        "plan-proof": _error(
            "the proof that a plan goes on where another stopped does not hold", "make the plan again"
        ),
        "plan-coverage": _error(
            "counted over all ranks, samples are lost or read twice", "make the plan again"
        ),
    }
)


ProductKind = Literal["dataset", "index", "blend", "plan", "rank"]


@dataclass(frozen=True, slots=True)
class VerifiedProduct:
    """One product that was examined."""

    kind: Annotated[ProductKind, Key("kind", "dataset, index (of a cache), blend, plan or rank.")]
    path: Annotated[str, Key("path", "The path prefix of a dataset; the main file of other products.")]
    is_sound: Annotated[bool, Key("sound", "Whether there are no findings but notes.")]
    counts: Annotated[dict[str, int], Key("counts", "What was counted on the way, by name.")]
    findings: Annotated[tuple[Finding, ...], Key("findings", "In the order of the checks.")]


@dataclass(frozen=True, slots=True)
class VerifyReport(Document):
    """What a verification has found."""

    SCHEMA = "tokshard.verify/1"

    path: Annotated[str, Key("path", "What was to be verified.")]
    level: Annotated[Level, Key("level", "How thoroughly: each level includes those before it.")]
    subset_percent: Annotated[
        float | None, Key("subset_percent", "Share of the pieces whose digests were checked; null for all.")
    ]
    is_sound: Annotated[bool, Key("sound", "Whether there are no findings but notes.")]
    bytes_read: Annotated[int, Key("bytes_read", "Bytes that were read.", minimum=0)]
    seconds: Annotated[float, Key("seconds", "Duration.", minimum=0)]
    products: Annotated[tuple[VerifiedProduct, ...], Key("products", "From datasets to plans.")]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Everything that was found."""
        return tuple(finding for product in self.products for finding in product.findings)


class ProductFindings(FindingCollector):
    """Findings about one product of a kind that can be verified."""

    def __init__(self, kind: ProductKind, path: str) -> None:
        super().__init__(RULES, path)
        self.kind = kind

    def find_changed(self) -> None:
        """Find that another program has changed the product: earlier findings may be about no one state."""
        self.findings.clear()
        self.find("changed", f"{self.path} was changed while it was looked at")

    def close(self) -> VerifiedProduct:
        """Return the verified product."""
        return VerifiedProduct(self.kind, self.path, self.is_sound, dict(self.counts), tuple(self.findings))
