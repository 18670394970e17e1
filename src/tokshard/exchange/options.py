"""Options of export and convert."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

from tokshard.core.codec import Bounds, Count, Positive
from tokshard.core.options import Force, Option, Options, StrPath, StrPaths, parse_bytes, several
from tokshard.dataset.parameters import BosTreatment, SourceDtype, TokenFormat
from tokshard.errors import UsageError
from tokshard.storage.lock import Lock
from tokshard.storage.paths import check_output_prefix, is_remote

FormatName = Literal["olmo", "nanogpt", "datatrove", "parquet"]
"""The formats of other trainers: each is a module of this package."""
HeaderName = Literal["fineweb", "automodel"]
ShardSplit = Literal["train", "val", "all"]

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
_samples = partial(Option, group="Samples", requires="samples")
_files = partial(Option, group="Files")
_nanogpt = partial(Option, group="nanogpt", requires="to=nanogpt")
_tokens = partial(Option, group="Tokens")
_documents = partial(Option, group="Documents")


@dataclass(frozen=True, kw_only=True)
class ExportOptions(Options):
    """Options of :func:`tokshard.export`.

    Raises:
        UsageError: An option is invalid, or does not apply to the format.
    """

    source: Annotated[
        StrPath,
        Option(
            "Path prefix of a dataset; with --samples a blend, plan or dataset with an index.",
            is_argument=True,
            metavar="PREFIX",
        ),
    ]
    to: Annotated[FormatName, Option("Write this format.")]
    output: Annotated[StrPath, Option("Write the files into DIR.", aliases=("-o",), metavar="DIR")]
    samples: Annotated[
        bool, _samples("Export samples in training order instead of documents.", requires=())
    ] = False
    split: Annotated[
        str | None, _samples("Export the samples of this split.", metavar="NAME", default="train")
    ] = None
    last_label: Annotated[
        bool | None,
        _samples(
            "Write the last label of each sample, one more token. By default not for olmo.", is_rare=True
        ),
    ] = None
    pad_id: Annotated[
        Count | None, _samples("Fill samples that are shorter with this token.", is_rare=True)
    ] = None
    name: Annotated[
        str | None,
        _files("Begin file names with this text.", metavar="NAME", default="by format", is_rare=True),
    ] = None
    shard_tokens: Annotated[
        Positive | None,
        _files(
            "Limit the tokens of a shard.", default="that of the format's own writer", excludes="shard_size"
        ),
    ] = None
    shard_size: Annotated[
        Annotated[int, Bounds(8)] | None,
        _files("Limit the bytes of the tokens of a shard instead.", metavar="SIZE", parse=parse_bytes),
    ] = None
    vocab_size: Annotated[
        Positive | None,
        _files("Choose the dtype for a vocabulary of N tokens.", default="the recorded one"),
    ] = None
    dtype: Annotated[
        str | None,
        _files(
            "Write tokens of this dtype.",
            metavar="NAME",
            default="the smallest that holds the vocabulary",
            is_rare=True,
        ),
    ] = None
    tokenizer_name: Annotated[
        str | None,
        _files(
            "Name the tokenizer in the metadata of datatrove.",
            metavar="NAME",
            default="the recorded path",
            is_rare=True,
            requires="to=datatrove",
        ),
    ] = None
    bos_id: Annotated[
        Count | None, _nanogpt("Begin each document with this token.", default="the EOD token")
    ] = None
    eod_id: Annotated[
        Count | None,
        _nanogpt("Leave out this token at the end of documents.", default="the recorded one", is_rare=True),
    ] = None
    val_shards: Annotated[
        Count | None, _nanogpt("Name the first N shards val.", default="1", is_rare=True)
    ] = None
    header: Annotated[
        HeaderName | None,
        _nanogpt("Write this header.", default="fineweb for uint16, else automodel", is_rare=True),
    ] = None
    force: Force = False
    lock: Lock = "flock"

    def _validate(self) -> None:
        directory = self.directory
        if is_remote(directory):
            raise UsageError(
                f"export writes to a file system, got the URL {directory}",
                hint="export into a local --output, and upload the directory",
            )
        if not directory or "\0" in directory:
            raise UsageError(f"--output must be a directory, got {directory!r}")
        if self.name is not None and not _NAME.fullmatch(self.name):
            raise UsageError(
                f"--name must be the beginning of a file name, got {self.name!r}",
                hint="use letters, digits, dots, hyphens and underscores",
            )
        named = self.tokenizer_name
        if named is not None and (not named.isprintable() or not named or "|" in named):
            raise UsageError(f"--tokenizer-name must be printable text without |, got {named!r}")

    @property
    def directory(self) -> str:
        """The directory of the output."""
        return os.fspath(self.output)


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
        _tokens(
            "Record this tokenizer as that of the tokens; every id must be in its vocabulary.", metavar="PATH"
        ),
    ] = None
    vocab_size: Annotated[
        Positive | None,
        _tokens("Require ids below N, if there is no --tokenizer.", excludes="tokenizer"),
    ] = None
    dtype: Annotated[
        Literal["auto", "uint16", "int32"],
        _tokens(
            "Write this dtype; auto is Megatron's rule for the vocabulary, or the width of the source if the "
            "vocabulary is unknown."
        ),
    ] = "auto"
    source_dtype: Annotated[
        SourceDtype | None,
        _tokens(
            "Read this dtype from olmo and datatrove files, which have no header.",
            default="from the boundaries of documents or the metadata",
        ),
    ] = None
    bos_id: Annotated[
        Count | None,
        _documents(
            "Begin a document at each token with this id, for nanogpt.",
            metavar="ID",
            default="the EOD token of --tokenizer",
            requires="format=nanogpt",
        ),
    ] = None
    eod_id: Annotated[
        Count | None,
        _documents(
            "End documents with token ID: in place of the BOS tokens of nanogpt; olmo and datatrove are "
            "divided after it where no file has the boundaries.",
            metavar="ID",
            default="the EOD token of --tokenizer; for nanogpt else --bos-id",
        ),
    ] = None
    bos: Annotated[
        BosTreatment,
        _documents(
            "Replace the BOS token before a nanogpt document by an EOD token after it (move), or keep or "
            "drop it.",
            requires="format=nanogpt",
        ),
    ] = "move"
    split: Annotated[
        ShardSplit | None,
        _documents(
            "Read these files of a nanogpt directory.",
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
