"""The tokenizer that a dataset's manifest records."""

from __future__ import annotations

from tokshard.dataset.manifest import Manifest
from tokshard.dataset.tokenizer_identity import compare_definitions
from tokshard.errors import MissingExtraError, StorageError, TokenizerError
from tokshard.storage import fs
from tokshard.text.tokenizer.definition import Tokenizer, load_tokenizer, tokenizer_without_file
from tokshard.text.tokenizer.encoders import decode
from tokshard.text.tokenizer.tiktoken_files import TikTokenizerSettings


def recorded_tokenizer(manifest: Manifest | None) -> Tokenizer | None:
    """Return the tokenizer that a manifest records, with its library loaded.

    None if it is unknown, its file is not at the recorded path any more or has changed, or its library is
    not installed.

    Raises:
        StorageError: The file is there, and reading it failed.
    """
    if manifest is None or manifest.tokenizer is None:
        return None
    if (known := tokenizer_without_file(manifest.tokenizer)) is not None:
        return known
    path = manifest.tokenizer_path
    if path is None:
        return None
    try:
        settings = TikTokenizerSettings.of_encoding(manifest.tokenizer.name)
        tokenizer = load_tokenizer(path, need_eod=False, tiktoken=settings)
        if compare_definitions(manifest.tokenizer, tokenizer.identity).verdict == "different":
            return None
        decode(tokenizer, [])
    except (TokenizerError, MissingExtraError) as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno not in fs.ABSENT:
            raise StorageError("read", path, cause) from error
        return None
    return tokenizer
