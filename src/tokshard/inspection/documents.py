"""Looking at one document of a dataset: its tokens, and its text where a tokenizer is known."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tokshard.dataset.reader import IndexedDataset
from tokshard.errors import UsageError
from tokshard.inspection.tokenizers import tokenizer_of
from tokshard.tokenizer.encoders import decode

SCHEMA = "tokshard.inspect-document/1"


@dataclass(frozen=True, slots=True)
class DocumentView:
    """One document of a dataset.

    Attributes:
        path_prefix: The dataset.
        document: The number of the document.
        sequence_lengths: Tokens of each of its sequences.
        tokens: Its token ids.
        text: The text that the tokens decode to, or None without a tokenizer.
    """

    path_prefix: str
    document: int
    sequence_lengths: tuple[int, ...]
    tokens: tuple[int, ...]
    text: str | None

    def to_json(self) -> dict[str, Any]:
        """Return the document as a JSON object with a ``schema`` field."""
        return {"schema": SCHEMA, **asdict(self)}


def inspect_document(
    path_prefix: str, document: int, *, tokenizer: str | None = None, multimodal: bool = False
) -> DocumentView:
    """Return one document with its tokens and, where a tokenizer is known, its text.

    Args:
        path_prefix: The dataset.
        document: The number of the document, from 0; negative numbers count from the end.
        tokenizer: The tokenizer to decode with; by default the built-in one if the dataset was made
            with it.
        multimodal: Whether the dataset has modes.

    Raises:
        UsageError: There is no such document.
        InputError: The tokenizer is not the one that the dataset was made with.
    """
    dataset = IndexedDataset(path_prefix, multimodal=multimodal)
    count = dataset.document_count
    if not -count <= document < count:
        raise UsageError(f"{path_prefix} has no document {document}: it has {count} documents, from 0")
    number = document % count
    tokens = tuple(int(token) for token in dataset.document_tokens(number))
    first, stop = (int(edge) for edge in dataset.document_indices[number : number + 2])
    decoder = tokenizer_of(path_prefix, tokenizer)
    return DocumentView(
        path_prefix=path_prefix,
        document=number,
        sequence_lengths=tuple(int(length) for length in dataset.sequence_lengths[first:stop]),
        tokens=tokens,
        text=decode(decoder, tokens) if decoder is not None else None,
    )
