"""Checks of the documents' own ids: each id, and the table in which they are searched."""

from __future__ import annotations

from tokshard.dataset.document_ids import DocumentIds, id_hash
from tokshard.dataset.manifest import IDS_INDEX_NAME, IDS_NAME, Manifest, file_of
from tokshard.errors import IntegrityError
from tokshard.storage import fs
from tokshard.verification.context import VerifyContext
from tokshard.verification.report import ProductFindings

_BLOCK_DOCUMENTS = 1 << 16


def examine_ids(prefix: str, manifest: Manifest, findings: ProductFindings, context: VerifyContext) -> None:
    """Compare the ids of a dataset with the table of their hashes, and count the documents that share one.

    The entries of the table differ, ascend, and each is that of a document: so each document has one.
    """
    if not manifest.has_ids or not all(
        fs.isfile(file_of(prefix, name)) for name in (IDS_NAME, IDS_INDEX_NAME)
    ):
        return
    path = file_of(prefix, IDS_INDEX_NAME)
    try:
        ids = DocumentIds(prefix, manifest.dataset.documents)
        ids.check_ends()
    except IntegrityError as error:
        findings.find("ids-index", error.message, path=error.path or path)
        return

    def repeated_ids(begin: int) -> int | str:
        stop = min(begin + _BLOCK_DOCUMENTS, len(ids))
        context.runner.count_bytes(24 * (stop - begin))
        return _examine(ids, begin, stop)

    blocks = list(range(0, len(ids), _BLOCK_DOCUMENTS))
    repeated = 0
    for found in context.runner.run(repeated_ids, blocks, ids.table.nbytes + ids.ends.nbytes):
        if isinstance(found, str):
            findings.find("ids-index", f"{path}: {found}", path=path)
            return
        repeated += found
    findings.counts |= {"ids": len(ids), "repeated_ids": repeated}


def _examine(ids: DocumentIds, begin: int, stop: int) -> int | str:
    # The number of entries whose id is that of the entry before; or a problem.
    first = max(0, begin - 1)
    table = ids.table[first:stop]
    hashes, documents = table[:, 0], table[:, 1]
    ascends = (hashes[1:] > hashes[:-1]) | ((hashes[1:] == hashes[:-1]) & (documents[1:] > documents[:-1]))
    if not ascends.all():
        return f"entries {first} to {stop - 1} must ascend"
    before, repeated = None, 0
    for place, (hashed, document) in enumerate(table.tolist(), first):
        if document >= len(ids):
            return f"entry {place} must be of a document below {len(ids)}, got {document}"
        encoded = ids.encoded(document)
        if id_hash(encoded) != hashed:
            return f"entry {place} contradicts the id of document {document}"
        try:
            encoded.decode("utf-8")
        except UnicodeDecodeError:
            return f"the id of document {document} must be UTF-8"
        repeated += place >= begin and encoded == before
        before = encoded
    return repeated
