"""Options of convert."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from tokshard.errors import UsageError
from tokshard.storage.lock import LockMode, check_lock_mode
from tokshard.storage.paths import check_output_prefix, is_remote

if TYPE_CHECKING:
    from tokshard.dataset.plan import TokenFormat

BosTreatment = Literal["move", "keep", "drop"]
ShardSplit = Literal["train", "val", "all"]
SourceDtype = Literal["uint8", "uint16", "uint32", "uint64"]
ConvertDtype = Literal["auto", "uint16", "int32"]

# Those of TokenFormat, whose module imports numpy.
_FORMATS = ("nanogpt", "olmo", "datatrove")
_MOST = 2**63 - 1
_DTYPES_OF_DATATROVE = ("uint16", "uint32")


@dataclass(frozen=True)
class ConvertOptions:
    """Options of :func:`tokshard.convert`.

    Attributes:
        sources: Token files, directories of these, or globs, in order. Files of a directory or glob are in
            natural order: ``part-2`` before ``part-10``. The directory of an export of tokshard tells its
            dtype, tokenizer, BOS and EOD token, too.
        format: The format of the sources: ``"nanogpt"``, ``"olmo"`` or ``"datatrove"``.
        output: Path prefix of the output.
        tokenizer: The tokenizer of the tokens, as for ``tokenize``: its identity is recorded, and every id
            must be in its vocabulary.
        vocab_size: The size of the vocabulary, if there is no ``tokenizer``.
        dtype: The dtype of the output; ``"auto"`` is Megatron's rule for the vocabulary, or the width of the
            source if the vocabulary is unknown.
        source_dtype: olmo, datatrove: the dtype of the sources, which have no header; by default it follows
            from the boundaries of documents or from the metadata.
        bos_id: nanogpt: the token before each document; by default the EOD token.
        eod_id: The token after each document; by default that of the tokenizer, for nanogpt then the BOS
            token. Documents of olmo and datatrove without boundary files end with it.
        bos: nanogpt: whether the BOS token before each document becomes an EOD token after it (``"move"``),
            stays (``"keep"``) or is dropped (``"drop"``).
        split: nanogpt: which files of a directory to read, if they are named ``train`` and ``val``; by
            default all files of an export of tokshard, else those named ``train``.
        resume: Whether an unfinished run is resumed.
        force: Whether an existing output is replaced.
        lock: The mode of the writer lock: ``"none"`` for a file system without ``flock``, if only one run
            writes the output at a time.

    Raises:
        UsageError: An option is invalid, or does not apply to the format.
    """

    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
    format: TokenFormat
    output: str | os.PathLike[str]
    tokenizer: str | None = None
    vocab_size: int | None = None
    dtype: ConvertDtype = "auto"
    source_dtype: SourceDtype | None = None
    bos_id: int | None = None
    eod_id: int | None = None
    bos: BosTreatment = "move"
    split: ShardSplit | None = None
    resume: bool = True
    force: bool = False
    lock: LockMode = "flock"

    def __post_init__(self) -> None:
        check_lock_mode(self.lock)
        _check_choice("--from", self.format, _FORMATS)
        _check_choice("--dtype", self.dtype, get_args(ConvertDtype))
        _check_choice("--bos", self.bos, get_args(BosTreatment))
        if self.split is not None:
            _check_choice("--split", self.split, get_args(ShardSplit))
        if self.source_dtype is not None:
            _check_choice("--source-dtype", self.source_dtype, self._dtypes)
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
        for name, value, least in (
            ("--vocab-size", self.vocab_size, 1),
            ("--bos-id", self.bos_id, 0),
            ("--eod-id", self.eod_id, 0),
        ):
            if value is not None and value < least:
                raise UsageError(f"{name} must be at least {least}, got {value}")
            if value is not None and value > _MOST:
                raise UsageError(f"{name} must be at most {_MOST}, got {value}")
        if self.tokenizer is not None and self.vocab_size is not None:
            raise UsageError(
                "--tokenizer and --vocab-size exclude each other", hint="pass one of them: the tokenizer"
            )
        self._check_scope()

    @property
    def _dtypes(self) -> tuple[str, ...]:
        return _DTYPES_OF_DATATROVE if self.format == "datatrove" else get_args(SourceDtype)

    def _check_scope(self) -> None:
        if self.format == "nanogpt":
            if self.source_dtype is not None:
                raise UsageError(
                    "--source-dtype does not apply to nanogpt files: their header tells the dtype",
                    hint="omit --source-dtype",
                )
            return
        given = {
            "--bos-id": self.bos_id is not None,
            "--bos": self.bos != ConvertOptions.bos,
            "--split": self.split is not None,
        }
        for name, is_given in given.items():
            if is_given:
                raise UsageError(f"{name} requires --from nanogpt", hint=f"omit {name}")

    @property
    def source_names(self) -> tuple[str, ...]:
        """The sources as the user named them."""
        sources = [self.sources] if isinstance(self.sources, str | os.PathLike) else self.sources
        return tuple(os.fspath(name) for name in sources)

    @property
    def output_prefix(self) -> str:
        """The checked path prefix of the output."""
        return check_output_prefix(os.fspath(self.output))


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        *others, last = choices
        raise UsageError(f"{name} must be {', '.join(others)} or {last}, got {value!r}")
