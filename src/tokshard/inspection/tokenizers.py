"""Looking at a tokenizer."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tokshard.dataset.manifest import read_manifest
from tokshard.dataset.plan import TokenizerIdentity
from tokshard.errors import InputError
from tokshard.tokenization.options import TokenizeOptions
from tokshard.tokenization.plan import choose_dtype
from tokshard.tokenizer.definition import Tokenizer, load_tokenizer
from tokshard.tokenizer.encoders import fast_encoder_refusal

SCHEMA = "tokshard.inspect-tokenizer/1"


@dataclass(frozen=True, slots=True)
class TokenizerSummary:
    """What a tokenizer is.

    Attributes:
        argument: How it was named.
        identity: Its identity, as manifests record it.
        dtype: The token dtype that ``--dtype auto`` chooses.
        eod_token: The EOD token, or None if it is not plain which one it is.
        eod_id: Its id.
        max_token_id: The largest id.
        engine: The engine that ``--engine auto`` chooses for a large corpus.
        engine_reason: Why it is not the fast one.
    """

    argument: str
    identity: TokenizerIdentity
    dtype: str
    eod_token: str | None
    eod_id: int | None
    max_token_id: int
    engine: str
    engine_reason: str | None

    def to_json(self) -> dict[str, Any]:
        """Return the summary as a JSON object with a ``schema`` field."""
        return {"schema": SCHEMA, **asdict(self)}


def inspect_tokenizer(argument: str) -> TokenizerSummary:
    """Summarise a tokenizer.

    Raises:
        TokenizerError: It cannot be read.
    """
    tokenizer = load_tokenizer(argument, need_eod=False)
    reason = fast_encoder_refusal(tokenizer, special_tokens=False)
    return TokenizerSummary(
        argument=argument,
        identity=tokenizer.identity,
        dtype=choose_dtype(tokenizer, TokenizeOptions()),
        eod_token=tokenizer.eod_token,
        eod_id=tokenizer.eod_id,
        max_token_id=tokenizer.max_token_id,
        engine="reference" if reason else "fast",
        engine_reason=reason,
    )


def tokenizer_of(path_prefix: str, argument: str | None) -> Tokenizer | None:
    """Return the tokenizer to show the tokens of a dataset with; None where none is known.

    Args:
        path_prefix: The dataset.
        argument: The tokenizer that a user names; by default the built-in one if the dataset was made
            with it.

    Raises:
        InputError: The dataset was made with another one.
        TokenizerError: It cannot be read.
    """
    manifest = read_manifest(path_prefix)
    recorded = manifest.tokenizer if manifest is not None else None
    if argument is None:
        return load_tokenizer(None) if recorded is not None and recorded.kind == "bytes" else None
    tokenizer = load_tokenizer(argument, need_eod=False)
    if recorded is not None and recorded.sha256 != tokenizer.sha256:
        raise InputError(
            f"{path_prefix} was made with another tokenizer than {argument}: their SHA-256 are "
            f"{recorded.sha256} and {tokenizer.sha256}",
            hint="pass the tokenizer that the dataset was made with",
        )
    return tokenizer
