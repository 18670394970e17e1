"""Every token of a dataset, once: whether it is in the vocabulary, and where EOD stands."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.dataset.reader import IndexedDataset
from tokshard.dataset.source import FileTokens, open_data
from tokshard.storage.paths import bin_path
from tokshard.verification.report import ProductFindings
from tokshard.verification.session import Session

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BLOCK_TOKENS = 1 << 21
_TASK_BYTES = 64 << 20
_TASK_DOCUMENTS = 1 << 18


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What is known of the tokens.

    Attributes:
        limit: Ids are below this; None where no vocabulary is known.
        eod_id: The EOD token; None where it is not known.
        ends_with_eod: Whether every document with tokens ends with it; None where that is not known.
        eod_in_text: How many others there are; None where that is not known.
    """

    limit: int | None
    eod_id: int | None
    ends_with_eod: bool | None
    eod_in_text: int | None


@dataclass(slots=True)
class TokenTally:
    """What was counted.

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
        """Add what was counted behind."""
        self.outside += later.outside
        self.eod += later.eod
        self.documents += later.documents
        self.without_eod += later.without_eod
        if self.first_outside is None:
            self.first_outside = later.first_outside
        if self.first_without is None:
            self.first_without = later.first_without


def scan_tokens(
    dataset: IndexedDataset, rules: TokenRules, findings: ProductFindings, session: Session
) -> TokenTally:
    """Read all tokens and hold them against the rules.

    Args:
        dataset: The dataset.
        rules: What is known of its tokens.
        findings: Collects what is found.
        session: What is asked for.

    Returns:
        What was counted.

    Raises:
        IntegrityError, StorageError: The ``.bin`` cannot be read to its end.
    """
    size = dataset.index.token_count * dataset.dtype.itemsize
    path = bin_path(dataset.path_prefix)
    tokens = FileTokens(open_data(path), dataset.dtype)
    tally = TokenTally()
    for found in session.labour.run(
        lambda part: _scan(dataset, tokens, rules, part, session), _parts(dataset, size), size
    ):
        tally.merge(found)
    findings.counts["tokens_checked"] = dataset.index.token_count
    if tally.first_outside is not None:
        token, identifier = tally.first_outside
        offset = token * dataset.dtype.itemsize
        text = (
            f"{path} at byte {offset}: token {identifier} is not below {rules.limit}; "
            f"{tally.outside} of all tokens are not"
        )
        findings.find("token-range", text, path=path, offset=offset)
    if rules.ends_with_eod and tally.first_without is not None:
        text = (
            f"{dataset.path_prefix}: document {tally.first_without} does not end with EOD ({rules.eod_id}); "
            f"{tally.without_eod} of {tally.documents} documents with tokens do not"
        )
        findings.find("eod-missing", text, path=path)
    appended = tally.documents - tally.without_eod if rules.ends_with_eod else 0
    if rules.eod_in_text is not None and tally.eod - appended != rules.eod_in_text:
        text = (
            f"{dataset.path_prefix}: EOD ({rules.eod_id}) stands {tally.eod - appended} times in the text of "
            f"documents, but the manifest says {rules.eod_in_text}"
        )
        findings.find("eod-count", text, path=path)
    return tally


def _parts(dataset: IndexedDataset, size: int) -> list[tuple[int, int]]:
    """Return ranges of documents: many where there are many tokens, and never too many in one."""
    count = dataset.document_count
    parts = max(1, -(-size // _TASK_BYTES), -(-count // _TASK_DOCUMENTS))
    edges = [count * part // parts for part in range(parts + 1)]
    return [(first, stop) for first, stop in pairwise(edges) if stop > first]


def _scan(
    dataset: IndexedDataset, tokens: FileTokens, rules: TokenRules, part: tuple[int, int], session: Session
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
        session.labour.tell(block.nbytes)
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
    """Return where documents begin, in tokens, and where the last one ends: int64 of shape (n + 1,)."""
    edges = dataset.document_indices[first : stop + 1]
    index = dataset.index
    pointers = index.sequence_pointers
    inside = np.minimum(edges, max(index.sequence_count - 1, 0))
    if not index.sequence_count:
        return np.zeros(len(edges), np.int64)
    return np.where(edges < index.sequence_count, pointers[inside] // index.dtype.itemsize, index.token_count)
