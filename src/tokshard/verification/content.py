"""Checks of the content of a dataset: token ids, document ends, text, positions in inputs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.dataset.manifest import (
    PROVENANCE_NAME,
    REJECTED_NAME,
    UNKNOWN_ENCODER,
    Manifest,
    file_of,
)
from tokshard.dataset.reader import IndexedDataset
from tokshard.dataset.records import RejectionRecord, read_records
from tokshard.dataset.source import FileTokens, InputFile, open_data
from tokshard.dataset.tokenizer_identity import TokenizerIdentity, compare_definitions
from tokshard.errors import IntegrityError, TokshardError
from tokshard.storage import fs
from tokshard.storage.paths import bin_path
from tokshard.tokenizer.definition import Tokenizer, tokenizer_without_file
from tokshard.verification.context import VerifyContext
from tokshard.verification.index import IndexFacts
from tokshard.verification.inputs import Units, examine_inputs
from tokshard.verification.report import ProductFindings

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BLOCK_TOKENS = 1 << 21
_TASK_BYTES = 64 << 20
_TASK_DOCUMENTS = 1 << 18


@dataclass(frozen=True, slots=True)
class TokenRules:
    """Expectations about the tokens.

    Attributes:
        limit: Ids must be below this; None if the vocabulary is unknown.
        eod_id: The EOD token; None if unknown.
        ends_with_eod: Whether every document with tokens ends with it; None if unknown.
        eod_in_text: The number of other EOD tokens; None if unknown.
    """

    limit: int | None
    eod_id: int | None
    ends_with_eod: bool | None
    eod_in_text: int | None


@dataclass(slots=True)
class TokenTally:
    """Counts of a scan.

    Attributes:
        outside: Tokens that are not in the vocabulary.
        first_outside: The first of them: (its number in the ``.bin``, its id).
        eod: EOD tokens.
        documents: Documents with tokens.
        without_eod: Those of them that do not end with EOD.
        first_without: The first of these.
    """

    outside: int = 0
    first_outside: tuple[int, int] | None = None
    eod: int = 0
    documents: int = 0
    without_eod: int = 0
    first_without: int | None = None

    def merge(self, later: TokenTally) -> None:
        """Add the counts of the following part."""
        self.outside += later.outside
        self.eod += later.eod
        self.documents += later.documents
        self.without_eod += later.without_eod
        if self.first_outside is None:
            self.first_outside = later.first_outside
        if self.first_without is None:
            self.first_without = later.first_without


def scan_tokens(
    dataset: IndexedDataset, rules: TokenRules, findings: ProductFindings, context: VerifyContext
) -> TokenTally:
    """Read all tokens and check them against the rules.

    Raises:
        IntegrityError, StorageError: The ``.bin`` cannot be read to its end.
    """
    size = dataset.index.token_count * dataset.dtype.itemsize
    path = bin_path(dataset.path_prefix)
    tokens = FileTokens(open_data(path), dataset.dtype)
    tally = TokenTally()
    for found in context.runner.run(
        lambda part: _scan(dataset, tokens, rules, part, context), _parts(dataset, size), size
    ):
        tally.merge(found)
    findings.counts["tokens_checked"] = dataset.index.token_count
    if tally.first_outside is not None:
        token, identifier = tally.first_outside
        offset = token * dataset.dtype.itemsize
        text = (
            f"{path} at byte {offset}: token {identifier} must be below {rules.limit} "
            f"(of all tokens, {tally.outside:,} are not)"
        )
        findings.find("token-range", text, path=path, offset=offset)
    if rules.ends_with_eod and tally.first_without is not None:
        text = (
            f"{dataset.path_prefix}: document {tally.first_without} does not end with EOD ({rules.eod_id}) "
            f"(of {tally.documents:,} documents with tokens, {tally.without_eod:,} do not)"
        )
        findings.find("eod-missing", text, path=path)
    appended = tally.documents - tally.without_eod if rules.ends_with_eod else 0
    if rules.eod_in_text is not None and tally.eod - appended != rules.eod_in_text:
        text = (
            f"{dataset.path_prefix}: the text of documents must contain EOD ({rules.eod_id}) "
            f"{rules.eod_in_text} times by the manifest, got {tally.eod - appended}"
        )
        findings.find("eod-count", text, path=path)
    return tally


def _parts(dataset: IndexedDataset, size: int) -> list[tuple[int, int]]:
    # Many ranges where there are many tokens, and never too many documents in one.
    count = dataset.document_count
    parts = max(1, -(-size // _TASK_BYTES), -(-count // _TASK_DOCUMENTS))
    edges = [count * part // parts for part in range(parts + 1)]
    return [(first, stop) for first, stop in pairwise(edges) if stop > first]


def _scan(
    dataset: IndexedDataset,
    tokens: FileTokens,
    rules: TokenRules,
    part: tuple[int, int],
    context: VerifyContext,
) -> TokenTally:
    first, stop = part
    ends = _document_ends(dataset, first, stop)
    tally = TokenTally()
    filled = np.flatnonzero(np.diff(ends) > 0)
    tally.documents = len(filled)
    last = ends[filled + 1] - 1
    for begin in range(int(ends[0]), int(ends[-1]), _BLOCK_TOKENS):
        count = min(_BLOCK_TOKENS, int(ends[-1]) - begin)
        block = tokens.read(begin, count)
        context.runner.count_bytes(block.nbytes)
        if rules.limit is not None:
            _look_for_outside(tally, block, rules.limit, begin)
        if rules.eod_id is not None:
            tally.eod += int(np.count_nonzero(block == rules.eod_id))
            low, high = np.searchsorted(last, (begin, begin + count))
            wrong = np.flatnonzero(block[last[low:high] - begin] != rules.eod_id)
            tally.without_eod += len(wrong)
            if len(wrong) and tally.first_without is None:
                tally.first_without = first + int(filled[low + wrong[0]])
    return tally


def _look_for_outside(tally: TokenTally, block: NDArray[Any], limit: int, begin: int) -> None:
    # Minimum and maximum first: almost always they settle it, in half the time.
    if block.size and int(block.min()) >= 0 and int(block.max()) < limit:
        return
    wrong = np.flatnonzero((block < 0) | (block >= limit))
    tally.outside += len(wrong)
    if tally.first_outside is None and len(wrong):
        tally.first_outside = begin + int(wrong[0]), int(block[wrong[0]])


def _document_ends(dataset: IndexedDataset, first: int, stop: int) -> NDArray[np.int64]:
    # int64 of shape (documents + 1,), in tokens.
    edges = dataset.document_indices[first : stop + 1]
    index = dataset.index
    pointers = index.sequence_pointers
    inside = np.minimum(edges, max(index.sequence_count - 1, 0))
    if not index.sequence_count:
        return np.zeros(len(edges), np.int64)
    return np.where(edges < index.sequence_count, pointers[inside] // index.dtype.itemsize, index.token_count)


SAMPLE_DOCUMENTS = 100
SAMPLE_TOKENS = 4096


def examine_meaning(
    prefix: str,
    facts: IndexFacts,
    manifest: Manifest | None,
    units: Units | None,
    findings: ProductFindings,
    context: VerifyContext,
) -> None:
    """Check every token, decode a sample of the documents, and compare with the available inputs.

    Raises:
        StorageError, IntegrityError: A file cannot be read to its end.
    """
    dataset = IndexedDataset(prefix, multimodal=facts.multimodal, mmap=False)
    identity = manifest.tokenizer if manifest is not None else None
    tokenizer = _tokenizer(prefix, identity, findings, context)
    rules = _rules(identity, manifest, tokenizer)
    if rules.limit is None:
        findings.find(
            "vocabulary-unknown", f"{prefix}: the tokenizer is unknown, so token ids cannot be checked"
        )
    if facts.header.dtype.kind in "iu":
        scan_tokens(dataset, rules, findings, context)
        if tokenizer is not None and not findings.has("token-range", "tokenizer-other"):
            _decode_sample(dataset, tokenizer, findings)
    if manifest is not None and units is not None:
        _examine_provenance(prefix, manifest, units, findings, context)
        _examine_rejected(prefix, manifest, findings)
        examine_inputs(manifest, units, findings, context)


def _tokenizer(
    prefix: str, identity: TokenizerIdentity | None, findings: ProductFindings, context: VerifyContext
) -> Tokenizer | None:
    given = context.tokenizer
    if given is None:
        return tokenizer_without_file(identity) if identity is not None else None
    given = given.like(identity)
    comparison = compare_definitions(identity, given.identity)
    if comparison.verdict == "different":
        details = ", ".join(comparison.details)
        text = f"{prefix} was encoded with another tokenizer than {given.argument}: {details}"
        findings.find("tokenizer-other", text)
    return given


def _rules(
    identity: TokenizerIdentity | None, manifest: Manifest | None, tokenizer: Tokenizer | None
) -> TokenRules:
    # The tokenizer of the manifest comes first.
    described = identity or tokenizer
    limit = described.max_token_id + 1 if described is not None else None
    if manifest is None:
        return TokenRules(limit, None, None, None)
    eod, appended = manifest.options.eod_id, manifest.options.append_eod
    eod = eod if eod is not None and eod < 2**31 else None
    known = appended is not None and UNKNOWN_ENCODER not in manifest.encoder.documents
    return TokenRules(
        limit=limit,
        eod_id=eod,
        ends_with_eod=bool(appended) if known and eod is not None else None,
        eod_in_text=manifest.dataset.eod_in_text if known and eod is not None else None,
    )


def _decode_sample(dataset: IndexedDataset, tokenizer: Tokenizer, findings: ProductFindings) -> None:
    from tokshard.tokenizer.encoders import decode

    count = dataset.document_count
    sample = sorted({place * count // SAMPLE_DOCUMENTS for place in range(SAMPLE_DOCUMENTS)} if count else ())
    findings.counts["documents_decoded"] = len(sample)
    for document in sample:
        first = int(dataset.document_indices[document])
        last = int(dataset.document_indices[document + 1])
        try:
            for sequence in range(first, last)[:1]:
                length = min(int(dataset.sequence_lengths[sequence]), SAMPLE_TOKENS)
                decode(tokenizer, dataset.get(sequence, 0, length).tolist())
        except TokshardError as error:
            text = f"document {document} of {dataset.path_prefix} cannot be decoded: {error.message}"
            findings.find("undecodable", text, hint=error.hint)


def _examine_provenance(
    prefix: str, manifest: Manifest, units: Units, findings: ProductFindings, context: VerifyContext
) -> None:
    path = file_of(prefix, PROVENANCE_NAME)
    if manifest.files.provenance is None or not fs.isfile(path):
        return
    file = InputFile(path)
    edges = units.before("documents").tolist()
    if file.size_bytes != 8 * edges[-1] or sorted(edges) != edges:
        return

    def ascends(unit: int) -> bool:
        places = np.empty(edges[unit + 1] - edges[unit], "<i8")
        if places.size:
            file.read_into(places.data.cast("B"), 8 * edges[unit])
            context.runner.count_bytes(places.nbytes)
        return bool((np.diff(places, prepend=-1) > 0).all())

    listed = list(range(len(edges) - 1))
    for unit, good in zip(listed, context.runner.run(ascends, listed, file.size_bytes), strict=True):
        if not good:
            text = f"{path}: the positions of documents {edges[unit]} to {edges[unit + 1] - 1} must ascend"
            findings.find("provenance-order", text, path=path, offset=8 * edges[unit])


def _examine_rejected(prefix: str, manifest: Manifest, findings: ProductFindings) -> None:
    path = file_of(prefix, REJECTED_NAME)
    if manifest.files.rejected is None or not fs.isfile(path):
        return
    found: Counter[str] = Counter()
    try:
        for record in read_records(RejectionRecord, path):
            found[record.reason] += 1
    except IntegrityError as error:
        findings.find("rejected-count", error.message, path=path)
        return
    if dict(found) != manifest.counts.rejected:
        text = f"{path} must list {manifest.counts.rejected} by the manifest, got {dict(found)}"
        findings.find("rejected-count", text, path=path)
