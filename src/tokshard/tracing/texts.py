"""The text of tokens, where it is known what made them."""

from __future__ import annotations

from functools import cached_property

from tokshard.dataset.reader import IndexedDataset
from tokshard.inspection.tokenizers import tokenizer_of
from tokshard.tokenizer.encoders import decode


class Texts:
    """The text of parts of a dataset's sequences; its files are opened at the first question.

    Args:
        path_prefix: The dataset.
        multimodal: Whether its sequences have modes.
        tokenizer: See :func:`~tokshard.inspection.tokenizers.tokenizer_of`.
    """

    def __init__(self, path_prefix: str, *, multimodal: bool, tokenizer: str | None) -> None:
        self._path_prefix = path_prefix
        self._multimodal = multimodal
        self._tokenizer = tokenizer_of(path_prefix, tokenizer)

    @property
    def is_known(self) -> bool:
        """Whether the tokenizer is known."""
        return self._tokenizer is not None

    @cached_property
    def _dataset(self) -> IndexedDataset:
        return IndexedDataset(self._path_prefix, self._multimodal)

    def of(self, sequence: int, first: int, stop: int) -> str | None:
        """Return the text of some tokens of a sequence; None where the tokenizer is not known."""
        if self._tokenizer is None:
            return None
        found = self._dataset.get(sequence, first, stop - first)
        tokens = found[0] if self._multimodal else found
        return decode(self._tokenizer, tokens.tolist())
