"""What the bytes of a dataset mean: ids of a vocabulary, ends of documents, text, places in inputs."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np

from tokshard.core.strict_json import MAX_JSON_BYTES
from tokshard.dataset.manifest import PROVENANCE_NAME, REJECTED_NAME, Manifest, file_of
from tokshard.dataset.reader import IndexedDataset
from tokshard.dataset.source import InputFile
from tokshard.errors import TokshardError
from tokshard.storage import fs
from tokshard.tokenizer.definition import Tokenizer, load_tokenizer
from tokshard.verification.index import IndexFacts
from tokshard.verification.inputs import examine_inputs
from tokshard.verification.report import ProductFindings
from tokshard.verification.session import Session
from tokshard.verification.tokens import TokenRules, scan_tokens
from tokshard.verification.units import Units

SAMPLE_DOCUMENTS = 100
SAMPLE_TOKENS = 4096
_UNKNOWN_ENGINE = "unknown"


def examine_meaning(
    prefix: str,
    facts: IndexFacts,
    manifest: Manifest | None,
    units: Units | None,
    findings: ProductFindings,
    session: Session,
) -> None:
    """Look at every token, decode a sample of the documents, and compare with the inputs that are here.

    Args:
        prefix: The dataset, of which the structure is sound.
        facts: What its index says.
        manifest: Its manifest, if it has one.
        units: Its units, if they can be read.
        findings: Collects what is found.
        session: What is asked for.

    Raises:
        StorageError, IntegrityError: A file cannot be read to its end.
    """
    dataset = IndexedDataset(prefix, multimodal=facts.multimodal, mmap=False)
    identity = manifest.tokenizer if manifest is not None else {}
    tokenizer = _tokenizer(prefix, identity, findings, session)
    rules = _rules(identity, manifest, tokenizer)
    if rules.limit is None:
        findings.find("vocabulary-unknown", f"{prefix}: no tokenizer is known, so any token may be right")
    if facts.header.dtype.kind in "iu":
        scan_tokens(dataset, rules, findings, session)
        if tokenizer is not None and not findings.has("token-range", "tokenizer-other"):
            _decode_sample(dataset, tokenizer, findings)
    if manifest is not None and units is not None:
        _examine_provenance(prefix, manifest, units, findings, session)
        _examine_rejected(prefix, manifest, findings)
        examine_inputs(manifest, units, findings, session)


def _tokenizer(
    prefix: str, identity: dict[str, Any], findings: ProductFindings, session: Session
) -> Tokenizer | None:
    given = session.tokenizer
    if given is None:
        return load_tokenizer(None) if identity.get("kind") == "bytes" else None
    recorded = identity.get("sha256")
    if recorded is not None and recorded != given.sha256:
        text = (
            f"{prefix} was made with another tokenizer than {given.argument}: their SHA-256 are "
            f"{recorded} and {given.sha256}"
        )
        findings.find("tokenizer-other", text)
    return given


def _rules(identity: dict[str, Any], manifest: Manifest | None, tokenizer: Tokenizer | None) -> TokenRules:
    """Return what is known of the tokens. What the manifest says of its tokenizer comes first."""
    largest = identity.get("max_token_id", tokenizer.max_token_id if tokenizer is not None else None)
    limit = largest + 1 if isinstance(largest, int) else None
    if manifest is None:
        return TokenRules(limit, None, None, None)
    eod, appended = manifest.options.get("eod"), manifest.options.get("append-eod")
    eod = eod if isinstance(eod, int) and 0 <= eod < 2**31 else None
    known = isinstance(appended, bool) and _UNKNOWN_ENGINE not in manifest.engine["documents"]
    return TokenRules(
        limit=limit,
        eod_id=eod,
        ends_with_eod=bool(appended) if known and eod is not None else None,
        eod_in_text=manifest.dataset["eod_in_text"] if known and eod is not None else None,
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
    prefix: str, manifest: Manifest, units: Units, findings: ProductFindings, session: Session
) -> None:
    path = file_of(prefix, PROVENANCE_NAME)
    if PROVENANCE_NAME not in manifest.files or not fs.isfile(path):
        return
    file = InputFile(path)
    edges = units.before("documents").tolist()
    if file.size_bytes != 8 * edges[-1] or sorted(edges) != edges:
        return

    def ascends(unit: int) -> bool:
        places = np.empty(edges[unit + 1] - edges[unit], "<i8")
        if places.size:
            file.read_into(places.data.cast("B"), 8 * edges[unit])
            session.labour.tell(places.nbytes)
        return bool((np.diff(places, prepend=-1) > 0).all())

    listed = list(range(len(edges) - 1))
    for unit, good in zip(listed, session.labour.run(ascends, listed, file.size_bytes), strict=True):
        if not good:
            text = f"{path}: the places of documents {edges[unit]} to {edges[unit + 1] - 1} do not ascend"
            findings.find("provenance-order", text, path=path, offset=8 * edges[unit])


def _examine_rejected(prefix: str, manifest: Manifest, findings: ProductFindings) -> None:
    """Count the rejected records that are listed, by reason."""
    path = file_of(prefix, REJECTED_NAME)
    if REJECTED_NAME not in manifest.files or not fs.isfile(path):
        return
    found: Counter[str] = Counter()
    with fs.open_file(path) as file:
        while line := file.readline(MAX_JSON_BYTES):
            try:
                found[str(json.loads(line)["reason"])] += 1
            except (ValueError, KeyError, TypeError, RecursionError):
                findings.find(
                    "rejected-count", f"{path}: line {found.total() + 1} is no rejected record", path=path
                )
                return
    if dict(found) != manifest.counts["rejected"]:
        text = f"{path} lists {dict(found)}, but the manifest counts {manifest.counts['rejected']}"
        findings.find("rejected-count", text, path=path)
