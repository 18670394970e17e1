"""Options of convert."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated, Literal

from tokshard.core.codec import Count, Positive
from tokshard.core.options import Force, Option, Options, StrPath, StrPaths, several
from tokshard.dataset.parameters import BosTreatment, SourceDtype, TokenFormat
from tokshard.errors import UsageError
from tokshard.storage.lock import Lock
from tokshard.storage.paths import check_output_prefix, is_remote

ShardSplit = Literal["train", "val", "all"]

_TOKENS = "Tokens"
_DOCUMENTS = "Documents"


@dataclass(frozen=True, kw_only=True)
class ConvertOptions(Options):
    """Options of :func:`tokshard.convert`.

    The directory of an export of tokshard also tells its dtype, tokenizer, BOS and EOD token.

    Raises:
        UsageError: An option is invalid, or does not apply to the format.
    """

    sources: Annotated[
        StrPaths,
        Option(
            "Token files, directories of these, or quoted globs, in order.",
            is_argument=True,
            metavar="SOURCE...",
        ),
    ]
    format: Annotated[TokenFormat, Option("Read this format.", name="--from")]
    output: Annotated[
        StrPath,
        Option("Write PREFIX.bin, PREFIX.idx and PREFIX.tokshard/.", aliases=("-o",), metavar="PREFIX"),
    ]
    tokenizer: Annotated[
        str | None,
        Option(
            "Record this tokenizer as that of the tokens; every id must be in its vocabulary.",
            metavar="PATH",
            group=_TOKENS,
        ),
    ] = None
    vocab_size: Annotated[
        Positive | None,
        Option("Require ids below N, if there is no --tokenizer.", group=_TOKENS, excludes="tokenizer"),
    ] = None
    dtype: Annotated[
        Literal["auto", "uint16", "int32"],
        Option(
            "Write this dtype; auto is Megatron's rule for the vocabulary, or the width of the source if the "
            "vocabulary is unknown.",
            group=_TOKENS,
        ),
    ] = "auto"
    source_dtype: Annotated[
        SourceDtype | None,
        Option(
            "Read this dtype from olmo and datatrove files, which have no header.",
            group=_TOKENS,
            default="from the boundaries of documents or the metadata",
        ),
    ] = None
    bos_id: Annotated[
        Count | None,
        Option(
            "Begin a document at each token with this id, for nanogpt.",
            metavar="ID",
            group=_DOCUMENTS,
            default="the EOD token of --tokenizer",
            requires="format=nanogpt",
        ),
    ] = None
    eod_id: Annotated[
        Count | None,
        Option(
            "End documents with token ID: in place of the BOS tokens of nanogpt; olmo and datatrove are "
            "divided after it where no file has the boundaries.",
            metavar="ID",
            group=_DOCUMENTS,
            default="the EOD token of --tokenizer; for nanogpt else --bos-id",
        ),
    ] = None
    bos: Annotated[
        BosTreatment,
        Option(
            "Replace the BOS token before a nanogpt document by an EOD token after it (move), or keep or "
            "drop it.",
            group=_DOCUMENTS,
            requires="format=nanogpt",
        ),
    ] = "move"
    split: Annotated[
        ShardSplit | None,
        Option(
            "Read these files of a nanogpt directory.",
            group=_DOCUMENTS,
            default="train; all of an export of tokshard",
            requires="format=nanogpt",
        ),
    ] = None
    force: Force = False
    lock: Lock = "flock"

    def _validate(self) -> None:
        if is_remote(self.output_prefix):
            raise UsageError(
                f"convert writes to a file system, got the URL {self.output_prefix}",
                hint="convert into a local --output, and upload its files, the manifest last",
            )
        if not self.source_names:
            raise UsageError(
                "at least one source is required",
                hint="pass token files, directories of these, or quoted globs",
            )

    @property
    def source_names(self) -> tuple[str, ...]:
        """The sources as the user named them."""
        return several(self.sources)

    @property
    def output_prefix(self) -> str:
        """The checked path prefix of the output."""
        return check_output_prefix(os.fspath(self.output))
