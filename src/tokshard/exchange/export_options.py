"""Options of export."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Annotated, Literal

from tokshard.core.codec import Bounds, Count, Positive
from tokshard.core.options import Force, Option, Options, StrPath, parse_bytes
from tokshard.errors import UsageError
from tokshard.storage.lock import Lock
from tokshard.storage.paths import is_remote

FormatName = Literal["olmo", "nanogpt", "datatrove", "parquet"]
"""The formats of other trainers: each is a module of this package."""
HeaderName = Literal["fineweb", "automodel"]

_SAMPLES = "Samples"
_FILES = "Files"
_NANOGPT = "nanogpt"
_FOR_NANOGPT = f"to={_NANOGPT}"
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")


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
        bool, Option("Export samples in training order instead of documents.", group=_SAMPLES)
    ] = False
    split: Annotated[
        str | None,
        Option(
            "Export the samples of this split.",
            metavar="NAME",
            group=_SAMPLES,
            default="train",
            requires="samples",
        ),
    ] = None
    last_label: Annotated[
        bool | None,
        Option(
            "Write the last label of each sample, one more token. By default not for olmo.",
            group=_SAMPLES,
            is_rare=True,
            requires="samples",
        ),
    ] = None
    pad_id: Annotated[
        Count | None,
        Option(
            "Fill samples that are shorter with this token.", group=_SAMPLES, is_rare=True, requires="samples"
        ),
    ] = None
    name: Annotated[
        str | None,
        Option(
            "Begin file names with this text.",
            metavar="NAME",
            group=_FILES,
            default="by format",
            is_rare=True,
        ),
    ] = None
    shard_tokens: Annotated[
        Positive | None,
        Option(
            "Limit the tokens of a shard.",
            group=_FILES,
            default="that of the format's own writer",
            excludes="shard_size",
        ),
    ] = None
    shard_size: Annotated[
        Annotated[int, Bounds(8)] | None,
        Option(
            "Limit the bytes of the tokens of a shard instead.",
            metavar="SIZE",
            group=_FILES,
            parse=parse_bytes,
        ),
    ] = None
    vocab_size: Annotated[
        Positive | None,
        Option("Choose the dtype for a vocabulary of N tokens.", group=_FILES, default="the recorded one"),
    ] = None
    dtype: Annotated[
        str | None,
        Option(
            "Write tokens of this dtype.",
            metavar="NAME",
            group=_FILES,
            default="the smallest that holds the vocabulary",
            is_rare=True,
        ),
    ] = None
    tokenizer_name: Annotated[
        str | None,
        Option(
            "Name the tokenizer in the metadata of datatrove.",
            metavar="NAME",
            group=_FILES,
            default="the recorded path",
            is_rare=True,
            requires="to=datatrove",
        ),
    ] = None
    bos_id: Annotated[
        Count | None,
        Option(
            "Begin each document with this token.",
            group=_NANOGPT,
            default="the EOD token",
            requires=_FOR_NANOGPT,
        ),
    ] = None
    eod_id: Annotated[
        Count | None,
        Option(
            "Leave out this token at the end of documents.",
            group=_NANOGPT,
            default="the recorded one",
            is_rare=True,
            requires=_FOR_NANOGPT,
        ),
    ] = None
    val_shards: Annotated[
        Count | None,
        Option(
            "Name the first N shards val.", group=_NANOGPT, default="1", is_rare=True, requires=_FOR_NANOGPT
        ),
    ] = None
    header: Annotated[
        HeaderName | None,
        Option(
            "Write this header.",
            group=_NANOGPT,
            default="fineweb for uint16, else automodel",
            is_rare=True,
            requires=_FOR_NANOGPT,
        ),
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
