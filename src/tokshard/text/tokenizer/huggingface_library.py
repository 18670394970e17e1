"""The library `tokenizers`: the only module that imports it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class LoadedTokenizer:
    """A tokenizer loaded by the library, without truncation and padding."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def split_special_tokens(self) -> None:
        """Encode text that spells a special token as ordinary text from now on."""
        self._library.encode_special_tokens = True

    def encode(
        self, texts: list[str], *, special_tokens: bool
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Return the ids of all texts, in order, and the number of ids of each text.

        Runs on one thread. ``special_tokens``: whether the post-processor applies.
        """
        import numpy as np

        encodings = self._library.encode_batch_fast(texts, add_special_tokens=special_tokens)
        ids = [encoding.ids for encoding in encodings]
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        return np.fromiter(chain.from_iterable(ids), np.uint32, int(lengths.sum())), lengths

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens shown."""
        return str(self._library.decode(ids, skip_special_tokens=False))

    def token(self, token_id: int) -> str | None:
        """Return the name of a token in the vocabulary; None if there is no such token."""
        found: str | None = self._library.id_to_token(token_id)
        return found

    def pieces(self, text: str) -> list[str]:
        """Return the normalized pieces of a text that the model gets, added tokens left out.

        Only for a tokenizer with :data:`~tokshard.text.tokenizer.huggingface.EMPTY_MODEL`.
        """
        library, pieces = self._library, []
        for between in self._between_added_tokens(text):
            normalized = library.normalizer.normalize_str(between) if library.normalizer else between
            split = library.pre_tokenizer.pre_tokenize_str(normalized) if library.pre_tokenizer else None
            pieces += [normalized] if split is None else [piece for piece, _ in split]
        return pieces

    def _between_added_tokens(self, text: str) -> Iterator[str]:
        end = 0
        # With a model, its tokens after a dropped character have wrong offsets.
        for begin, stop in self._library.encode(text, add_special_tokens=False).offsets:
            yield text[end:begin]
            end = stop
        yield text[end:]


def load(content: bytes) -> LoadedTokenizer:
    """Load a ``tokenizer.json``. Raises whatever the library raises for one that it refuses.

    Example:
        >>> definition = b'{"model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "b"}}'
        >>> ids, lengths = load(definition).encode(["a", "b"], special_tokens=False)
        >>> ids.tolist(), lengths.tolist()
        ([0, 1], [1, 1])
    """
    # The worker processes run in parallel: threads in each would compete with them.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import tokenizers

    library = tokenizers.Tokenizer.from_buffer(content)
    library.no_truncation()
    library.no_padding()
    return LoadedTokenizer(library)
