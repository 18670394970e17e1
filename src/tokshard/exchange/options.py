"""Options of export."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal, get_args

from tokshard.errors import UsageError
from tokshard.storage.lock import LockMode, check_lock_mode
from tokshard.storage.paths import is_remote

FormatName = Literal["olmo", "nanogpt", "datatrove", "parquet"]
"""The formats of other trainers."""
HeaderName = Literal["fineweb", "automodel"]

_MOST = 2**63 - 1
_LEAST_SHARD_TOKENS = 1
_OF_NANOGPT = {
    "eod_id": "--eod-id",
    "bos_id": "--bos-id",
    "val_shards": "--val-shards",
    "header": "--header",
}
_OF_SAMPLES = {"split": "--split", "last_label": "--last-label", "pad_id": "--pad-id"}


@dataclass(frozen=True)
class ExportOptions:
    """Options of :func:`tokshard.export`.

    Attributes:
        source: The path prefix of a dataset (or one of its files); with ``samples`` a blend, a plan, or a
            dataset or cache with a sample index.
        to: The format.
        output: The directory of the output.
        samples: Whether to export samples in training order instead of documents.
        split: The split of the samples; ``"train"`` by default.
        last_label: Whether each sample has one more token, the last label. By default it has if the readers
            of the format expect it: for ``datatrove`` and ``parquet``, but not for ``olmo``.
        pad_id: The token id that fills samples that are shorter than the others.
        name: The beginning of the file names; by default that of the format's own writer.
        dtype: The dtype of the tokens in the output; by default the format's rule.
        vocab_size: The size of the vocabulary, for that rule; by default that of the recorded tokenizer.
        shard_tokens: The tokens of a shard; by default the number of the format's own writer.
        shard_bytes: The bytes of tokens of a shard, instead of ``shard_tokens``.
        eod_id: nanogpt: the token that ends documents, which is replaced; by default the recorded EOD token.
        bos_id: nanogpt: the token that begins each document; by default the EOD token.
        val_shards: nanogpt: the number of shards, from the first, that are named ``val``.
        header: nanogpt: the header of the files: ``"fineweb"`` for uint16 alone, ``"automodel"`` with the
            item size. By default ``"fineweb"`` for uint16 and ``"automodel"`` for uint32.
        tokenizer_name: datatrove: the name of the tokenizer in the metadata; by default the recorded path of
            its file.
        resume: Whether an unfinished export is resumed.
        force: Whether an existing output is replaced.
        lock: The mode of the writer lock: ``"none"`` for a file system without ``flock``, if only one run
            writes the output at a time.

    Raises:
        UsageError: An option is invalid, or does not apply to the format.
    """

    source: str | os.PathLike[str]
    to: FormatName
    output: str | os.PathLike[str]
    samples: bool = False
    split: str | None = None
    last_label: bool | None = None
    pad_id: int | None = None
    name: str | None = None
    dtype: str | None = None
    vocab_size: int | None = None
    shard_tokens: int | None = None
    shard_bytes: int | None = None
    eod_id: int | None = None
    bos_id: int | None = None
    val_shards: int | None = None
    header: HeaderName | None = None
    tokenizer_name: str | None = None
    resume: bool = True
    force: bool = False
    lock: LockMode = "flock"

    def __post_init__(self) -> None:
        check_lock_mode(self.lock)
        if self.to not in (names := get_args(FormatName)):
            raise UsageError(f"--to must be one of {', '.join(names)}, got {self.to!r}")
        directory = os.fspath(self.output)
        if is_remote(directory):
            raise UsageError(
                f"export writes to a file system, got the URL {directory}",
                hint="export into a local --output, and upload the directory",
            )
        if not directory or "\0" in directory:
            raise UsageError(f"--output must be a directory, got {directory!r}")
        self._check_numbers()
        self._check_scope()

    def _check_numbers(self) -> None:
        if self.shard_tokens is not None and self.shard_bytes is not None:
            raise UsageError("--shard-tokens and --shard-size exclude each other", hint="pass one of them")
        for option, value, least in (
            ("--shard-tokens", self.shard_tokens, _LEAST_SHARD_TOKENS),
            ("--shard-size", self.shard_bytes, 8),
            ("--vocab-size", self.vocab_size, 1),
            ("--eod-id", self.eod_id, 0),
            ("--bos-id", self.bos_id, 0),
            ("--pad-id", self.pad_id, 0),
            ("--val-shards", self.val_shards, 0),
        ):
            if value is not None and value < least:
                raise UsageError(f"{option} must be at least {least}, got {value}")
            if value is not None and value > _MOST:
                raise UsageError(f"{option} must be at most {_MOST}, got {value}")
        if self.name is not None and not _is_plain(self.name):
            raise UsageError(
                f"--name must be the beginning of a file name, got {self.name!r}",
                hint="use letters, digits, dots, hyphens and underscores",
            )
        named = self.tokenizer_name
        if named is not None and (not named.isprintable() or not named or "|" in named):
            raise UsageError(f"--tokenizer-name must be printable text without |, got {named!r}")
        if self.header not in (None, *get_args(HeaderName)):
            raise UsageError(f"--header must be {' or '.join(get_args(HeaderName))}, got {self.header!r}")

    def _check_scope(self) -> None:
        def refuse(options: dict[str, str], needed: str) -> None:
            for field, option in options.items():
                if (value := getattr(self, field)) is not None and value is not False:
                    raise UsageError(f"{option} requires {needed}", hint=f"omit {option}")

        if self.to != "nanogpt":
            refuse(_OF_NANOGPT, "--to nanogpt")
        elif self.samples:
            raise UsageError(
                "samples cannot be exported to nanogpt: its readers cut the tokens at BOS tokens or at their "
                "own positions",
                hint="export the documents, or the samples --to olmo, datatrove or parquet",
            )
        if self.to != "datatrove":
            refuse({"tokenizer_name": "--tokenizer-name"}, "--to datatrove")
        if not self.samples:
            refuse(_OF_SAMPLES, "--samples")
            if self.last_label is not None:
                raise UsageError("--last-label requires --samples", hint="omit --last-label")

    @property
    def directory(self) -> str:
        """The directory of the output."""
        return os.fspath(self.output)


def _is_plain(name: str) -> bool:
    return (
        bool(name)
        and name.isascii()
        and not name.startswith(".")
        and len(name) <= 200
        and all(character.isalnum() or character in "._-" for character in name)
    )
