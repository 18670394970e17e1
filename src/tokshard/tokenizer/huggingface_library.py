"""The library `tokenizers`, behind one interface: the only module that imports it.

Version 1.0, of which there are pre-releases, has another interface than 0.22 and 0.23: it loads files only,
and switches truncation and padding off by attributes. The installed version is recognized by its
features when a tokenizer is loaded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

from tokshard.storage import syscalls
from tokshard.storage.files import write_atomically
from tokshard.storage.scratch import scratch_directory
from tokshard.tokenizer.huggingface import SPLITS_SPECIAL_TOKENS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


_SPLITS = f'{{"{SPLITS_SPECIAL_TOKENS}":true,'.encode()


class LoadedTokenizer(Protocol):
    """A tokenizer loaded by the library, without truncation and padding."""

    def encode(
        self, texts: list[str], *, special_tokens: bool
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Return the ids of all texts, in order, and the number of ids of each text.

        Runs on one thread. ``special_tokens``: whether the post-processor applies.
        """

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens shown."""

    def token(self, token_id: int) -> str | None:
        """Return the name of a token in the vocabulary; None if there is no such token."""

    def pieces(self, text: str) -> list[str]:
        """Return the normalized pieces of a text that the model gets, added tokens left out.

        Only for a tokenizer with :data:`~tokshard.tokenizer.huggingface.EMPTY_MODEL`.
        """


def load(content: bytes) -> LoadedTokenizer:
    """Load a ``tokenizer.json``. Raises whatever the library raises for one that it refuses.

    It may begin with the key :data:`SPLITS_SPECIAL_TOKENS`, which the library itself does not know.

    Example:
        >>> definition = b'{"model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "b"}}'
        >>> ids, lengths = load(definition).encode(["a", "b"], special_tokens=False)
        >>> ids.tolist(), lengths.tolist()
        ([0, 1], [1, 1])
    """
    # The worker processes run in parallel: threads in each would compete with them. 1.0 does not read it.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import tokenizers

    splits = content.startswith(_SPLITS)
    if splits:
        content = b"{" + content[len(_SPLITS) :]
    if hasattr(tokenizers.Tokenizer, "from_buffer"):
        library = tokenizers.Tokenizer.from_buffer(content)
        library.no_truncation()
        library.no_padding()
        library.encode_special_tokens = splits
        return _Version0(library)
    with _file_with(content) as path:
        loaded: Any = tokenizers.Tokenizer.from_file(path)
    loaded.truncation = None
    loaded.padding = None
    loaded.encode("a", add_special_tokens=False)  # it refuses regular expressions only here
    return _Version1(loaded, splits_special_tokens=splits)


@cache
def is_version_1() -> bool:
    """Return whether version 1 is installed; the library is not imported.

    Its Unicode tables are newer, and it starts threads when a tokenizer is loaded: a process that forks must
    not load one.
    """
    return int(version("tokenizers").split(".")[0]) >= 1


class _Version0:
    def __init__(self, library: Any) -> None:
        self._library = library

    def encode(
        self, texts: list[str], *, special_tokens: bool
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        import numpy as np

        encodings = self._library.encode_batch_fast(texts, add_special_tokens=special_tokens)
        ids = [encoding.ids for encoding in encodings]
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        return np.fromiter(chain.from_iterable(ids), np.uint32, int(lengths.sum())), lengths

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._library.decode(ids, skip_special_tokens=False))

    def token(self, token_id: int) -> str | None:
        found: str | None = self._library.id_to_token(token_id)
        return found

    def pieces(self, text: str) -> list[str]:
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


class _Version1:
    def __init__(self, library: Any, *, splits_special_tokens: bool) -> None:
        self._library = library
        self._options = {"encode_special_tokens": splits_special_tokens}

    def encode(
        self, texts: list[str], *, special_tokens: bool
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        import numpy as np

        # Not encode_batch: it starts threads, which no variable of its own turns off.
        encode, options = self._library.encode, self._options
        arrays = [encode(text, add_special_tokens=special_tokens, **options).ids_array for text in texts]
        lengths = np.fromiter(map(len, arrays), np.int64, len(arrays))
        return np.concatenate(arrays) if arrays else np.empty(0, np.uint32), lengths

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._library.decode(ids, skip_special_tokens=False))

    def token(self, token_id: int) -> str | None:
        found: list[str] = self._library.decode_tokens([token_id])
        return found[0] if found else None

    def pieces(self, text: str) -> list[str]:
        raise NotImplementedError("version 1 does not show them")


@contextmanager
def _file_with(content: bytes) -> Iterator[str]:
    """Create a file with these bytes, in memory on Linux: the tokenizer's own file may have changed."""
    if not hasattr(os, "memfd_create"):
        with scratch_directory() as directory:
            path = os.path.join(directory, "tokenizer.json")
            write_atomically(path, content)
            yield path
        return
    descriptor = os.memfd_create("tokenizer.json")
    try:
        path = f"/proc/self/fd/{descriptor}"
        syscalls.write(descriptor, content, path)
        yield path
    finally:
        os.close(descriptor)
