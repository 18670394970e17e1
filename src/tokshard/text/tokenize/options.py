"""Options of tokenize."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from tokshard.core.megatron_defaults import SEED
from tokshard.errors import UsageError
from tokshard.storage.lock import LockMode, check_lock_mode
from tokshard.storage.paths import check_output_prefix
from tokshard.storage.remote import hub
from tokshard.text.corpus.fields import FieldNames, FieldPath
from tokshard.text.corpus.selection import check_seed, parse_share
from tokshard.text.tokenizer.tiktoken_files import TikTokenizerPattern, TikTokenizerSettings

EncoderChoice = Literal["auto", "reference", "fast"]
DtypeChoice = Literal["auto", "uint16", "int32"]
ErrorChoice = Literal["fail", "skip"]

_MOST = 2**63 - 1  # the integers of JSON documents


@dataclass(frozen=True)
class TokenizeOptions:
    r"""Options of :func:`tokshard.tokenize`.

    Attributes:
        inputs: Files, globs, directories, ``@list.txt`` or ``-`` for stdin; all but the last may be URLs.
            Also datasets of the Hugging Face Hub: ``hf://datasets/ORG/NAME[@REVISION]/GLOB``; without a glob,
            the Hub's conversion to Parquet.
        output: Path prefix of the output, or a URL prefix, where it is uploaded when it is finished; by
            default the name of the only input without its suffixes.
        tokenizer: A ``tokenizer.json`` or another tokenizer file, its directory, a URL of one of these, or
            ``hf:ID``; None for the built-in byte-level tokenizer.
        vocab_file: The ``vocab.json`` of a GPT-2 tokenizer, instead of ``tokenizer``.
        merge_file: The ``merges.txt`` for ``vocab_file``.
        tiktoken_pattern: Pattern of a Megatron TikTokenizer, ``"v1"`` or ``"v2"``; None for ``"v2"``.
        tiktoken_num_special_tokens: Number of special tokens of a TikTokenizer; None for 1,000.
        tiktoken_special_tokens: Names of the first special tokens of a TikTokenizer; None for Megatron's.
        vocab_size: Number of tokens of a TikTokenizer, special ones included; None for 131,072.
        files_beside: Whether the settings in the tokenizer's directory, such as ``tokenizer_config.json``,
            are read.
        eod: The EOD token or its id; None for the tokenizer's own.
        append_eod: Whether the EOD token is appended to each document.
        special_tokens: Whether the special tokens that the tokenizer defines for each text are added (BOS
            and so on).
        fields: The JSON fields or columns to tokenize, each into a separate dataset. ``meta.text`` is the
            field ``text`` of the object ``meta``, ``messages.0.content`` a field of the first item of a
            list; in ``meta\.text`` the dot is part of the key.
        name_by_field: Whether the outputs are named ``PREFIX_<field>_document`` even if there is one field.
        workers: Most worker processes; None for one for each core.
        encoder: ``"reference"``, ``"fast"``, or ``"auto"``: the fast one where it is equal.
        dtype: The dtype of the tokens; ``"auto"`` is Megatron's rule.
        on_error: ``"fail"`` stops at the first bad record, ``"skip"`` lists it and continues.
        max_errors: With ``"skip"``: more bad records than this are an error; None for no limit.
        max_document_bytes: Records larger than this are rejected; None for 16 MB with the fast encoder, and
            4 MB with the reference encoder.
        unit_bytes: Input bytes of a unit of work.
        sample: The share of the records that are read, such as 0.01 or ``"1%"``, chosen by a hash of their
            positions; None for all.
        sample_seed: The seed of that hash.
        limit: The most documents: the first of those that remain; None for no limit.
        max_tokens: The most tokens of all outputs together: the dataset ends before the first document that
            would exceed it; None for no limit.
        holdout: The share of the documents in the validation split, such as 0.001 or ``"0.1%"``, chosen by a
            hash of their texts; None for no splits. The outputs are ``PREFIX_train`` and ``PREFIX_valid``.
        holdout_key: The JSON field or column whose value is hashed instead of the texts, a string or an
            integer; None for the texts.
        holdout_seed: The seed of that hash.
        provenance: Whether the position of each document's record in its input is recorded.
        resume: Whether an unfinished run of the same plan is resumed.
        force: Whether an existing output is replaced.
        lock: The mode of the writer lock: ``"none"`` for a file system without ``flock``, if only one run
            writes the output at a time.
        local_dir: Where an output with a URL is built before it is uploaded; None for the user's cache.
        keep_local: Whether the local files of an uploaded output are kept.
        transformers: A command that starts the Python of the training environment, such as
            ``/envs/train/bin/python``, whose transformers reads a tokenizer directory with settings that
            change ids; None for transformers as it is installed here.
        strict_tokenizer: Whether added tokens that Megatron does not find without ``special_tokens`` are an
            error.
        config: The config of the datasets of the Hub that are named without a glob; None for the only one.
        split: The split of these datasets, or of directories that ``save_to_disk`` of the ``datasets``
            library wrote; None for the only one.

    Raises:
        UsageError: A value is invalid.
    """

    inputs: str | Sequence[str]
    output: str | None = None
    tokenizer: str | None = None
    eod: str | None = None
    append_eod: bool = True
    special_tokens: bool = False
    vocab_file: str | None = None
    merge_file: str | None = None
    tiktoken_pattern: TikTokenizerPattern | None = None
    tiktoken_num_special_tokens: int | None = None
    tiktoken_special_tokens: Sequence[str] | None = None
    vocab_size: int | None = None
    files_beside: bool = True
    fields: Sequence[str] = ("text",)
    name_by_field: bool = False
    workers: int | None = None
    encoder: EncoderChoice = "auto"
    dtype: DtypeChoice = "auto"
    on_error: ErrorChoice = "fail"
    max_errors: int | None = None
    max_document_bytes: int | None = None
    unit_bytes: int = 16 << 20
    sample: float | str | None = None
    sample_seed: int = SEED
    limit: int | None = None
    max_tokens: int | None = None
    holdout: float | str | None = None
    holdout_key: str | None = None
    holdout_seed: int = SEED
    provenance: bool = True
    resume: bool = True
    force: bool = False
    lock: LockMode = "flock"
    local_dir: str | None = None
    keep_local: bool = False
    transformers: str | None = None
    strict_tokenizer: bool = False
    config: str | None = None
    split: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", tuple(self.fields))
        _check_choice("encoder", self.encoder, ("auto", "reference", "fast"))
        _check_choice("dtype", self.dtype, ("auto", "uint16", "int32"))
        _check_choice("on-error", self.on_error, ("fail", "skip"))
        check_lock_mode(self.lock)
        _check_at_least("workers", self.workers, 1)
        _check_at_least("max-errors", self.max_errors, 0)
        _check_at_least("max-document-bytes", self.max_document_bytes, 1)
        _check_at_least("unit-size", self.unit_bytes, 1)
        if self.max_errors is not None and self.on_error != "skip":
            raise UsageError("--max-errors requires --on-error skip")
        self._check_selection()
        self._check_fields()
        self._check_tokenizer_files()
        if not self.input_names:
            raise UsageError(
                "INPUT is required", hint="pass files, globs, directories, @list.txt, or - for stdin"
            )
        _ = self.prefix

    def _check_selection(self) -> None:
        if self.sample is not None:
            parse_share("sample", self.sample, whole=True)
        elif self.sample_seed != SEED:
            raise UsageError("--sample-seed requires --sample", hint="pass --sample, for example --sample 1%")
        check_seed("sample-seed", self.sample_seed)
        if self.holdout is not None:
            parse_share("holdout", self.holdout, whole=False)
        elif self.holdout_key is not None or self.holdout_seed != SEED:
            name = "--holdout-seed" if self.holdout_key is None else "--holdout-key"
            raise UsageError(f"{name} requires --holdout", hint="pass --holdout, for example --holdout 0.1%")
        check_seed("holdout-seed", self.holdout_seed)
        _check_at_least("limit", self.limit, 1)
        _check_at_least("max-tokens", self.max_tokens, 1)
        for option, value in (("limit", self.limit), ("max-tokens", self.max_tokens)):
            if value is not None and value > _MOST:
                raise UsageError(f"--{option} must be at most {_MOST}, got {value}")

    @property
    def sample_share(self) -> float | None:
        """The share of the records that are read; None for all."""
        return None if self.sample is None else parse_share("sample", self.sample, whole=True)

    @property
    def holdout_share(self) -> float | None:
        """The share of the documents in the validation split; None for no splits."""
        return None if self.holdout is None else parse_share("holdout", self.holdout, whole=False)

    @property
    def has_limits(self) -> bool:
        """True if the run ends at a number of documents or tokens."""
        return self.limit is not None or self.max_tokens is not None

    def _check_tokenizer_files(self) -> None:
        if (self.vocab_file is None) != (self.merge_file is None):
            raise UsageError(
                "--vocab-file and --merge-file require each other",
                hint="pass both, or --tokenizer with a file that contains vocabulary and merges",
            )
        if self.vocab_file is not None and self.tokenizer is not None:
            raise UsageError("--vocab-file and --tokenizer exclude each other", hint="leave out one of them")
        if self.transformers is not None and not self.files_beside:
            raise UsageError(
                "--transformers and --no-files-beside exclude each other",
                hint="leave out --transformers: it is about the files beside the tokenizer",
            )
        if self.tiktoken_pattern is not None:
            _check_choice("tiktoken-pattern", self.tiktoken_pattern, ("v1", "v2"))
        _check_at_least("tiktoken-num-special-tokens", self.tiktoken_num_special_tokens, 1)
        _check_at_least("vocab-size", self.vocab_size, 1)

    @property
    def tokenizer_json(self) -> str | None:
        """The local ``tokenizer.json`` that the fast encoder may encode with; None if there is none."""
        path = self.tokenizer or ""
        if os.path.isdir(path):
            path = os.path.join(path, "tokenizer.json")
        is_usable = self.encoder != "reference" and path.endswith(".json") and os.path.isfile(path)
        return path if is_usable else None

    @property
    def tokenizer_settings(self) -> dict[str, Any]:
        """The JSON arguments of :func:`~tokshard.text.tokenizer.definition.load_tokenizer` for any file."""
        return {
            "eod": self.eod,
            "need_eod": self.append_eod,
            "transformers": self.transformers,
            "files_beside": self.files_beside,
        }

    @property
    def tiktoken_settings(self) -> TikTokenizerSettings | None:
        """The settings of a TikTokenizer; None for Megatron's defaults."""
        given = {
            "pattern": self.tiktoken_pattern,
            "num_special_tokens": self.tiktoken_num_special_tokens,
            "special_tokens": self.tiktoken_special_tokens and tuple(self.tiktoken_special_tokens),
            "vocab_size": self.vocab_size,
        }
        given = {name: value for name, value in given.items() if value is not None}
        return replace(TikTokenizerSettings(), **given) if given else None  # type: ignore[arg-type]

    def _check_fields(self) -> None:
        paths = [FieldPath.parse(field) for field in self.fields]
        for path in paths:
            if not all(path.keys):
                raise UsageError(
                    f"--field must name keys that are not empty, got {path.name!r}",
                    hint=r"escape a dot that is part of a key with a backslash: --field 'meta\.text'",
                )
        if not paths:
            raise UsageError("--field must name at least one field")
        if len({path.keys for path in paths}) != len(paths):
            raise UsageError(f"--field must name different fields, got {', '.join(self.fields)}")
        if self.holdout_key is not None and not all(FieldPath.parse(self.holdout_key).keys):
            raise UsageError(
                f"--holdout-key must name keys that are not empty, got {self.holdout_key!r}",
                hint=r"escape a dot that is part of a key with a backslash: --holdout-key 'meta\.id'",
            )
        if not self._field_names_in_output:
            return
        names = [path.file_name for path in paths]
        if any("/" in name or "\0" in name for name in names):
            raise UsageError(
                f"--field must not contain a slash as a part of output names, got {', '.join(self.fields)}",
                hint="tokenize this field alone, without --preset",
            )
        if len(set(names)) != len(names):
            raise UsageError(
                f"--field must name fields with different output names, got {', '.join(self.fields)}",
                hint="tokenize these fields one by one, each with its own --output PREFIX",
            )

    @property
    def field_names(self) -> FieldNames:
        """The fields that are read."""
        return FieldNames(self.fields, self.holdout_key)

    @property
    def input_names(self) -> tuple[str, ...]:
        """The inputs as a tuple."""
        return (self.inputs,) if isinstance(self.inputs, str) else tuple(self.inputs)

    @property
    def prefix(self) -> str:
        """The path or URL prefix of the output: as given, or made of the name of the only input.

        Raises:
            UsageError: It is not given, and there is not exactly one named input; or it names no file.

        Example:
            >>> TokenizeOptions("data/corpus.jsonl.gz").prefix
            'corpus'
        """
        if self.output is not None:
            return check_output_prefix(self.output)
        first, *others = self.input_names
        if others or first == "-" or first.startswith("@") or os.path.isdir(first):
            raise UsageError(
                "--output is required with several inputs, a list, a directory or stdin",
                hint="pass --output PREFIX",
            )
        if (dataset := hub.parse_dataset(first)) is not None and not dataset.path:
            return dataset.repository.rpartition("/")[2]
        name = os.path.basename(first)
        stem = name.split(".", 1)[0] if not name.startswith(".") else ""
        if not stem or any(character in stem for character in "*?["):
            raise UsageError(f"cannot derive an output name from {first!r}", hint="pass --output PREFIX")
        return stem

    def output_prefixes(self, prefix: str) -> tuple[str, ...]:
        """Return the path prefix of each dataset: those of the fields of the training split come first.

        With a holdout, the name of the split is appended; with several fields, the keys joined by dots.

        Example:
            >>> TokenizeOptions("a.jsonl", fields=("text", "title")).output_prefixes("out/web")
            ('out/web_text_document', 'out/web_title_document')
            >>> TokenizeOptions("a.jsonl", holdout="0.1%").output_prefixes("out/web")
            ('out/web_train', 'out/web_valid')
        """
        prefixes = [prefix] if self.holdout is None else [f"{prefix}_train", f"{prefix}_valid"]
        if not self._field_names_in_output:
            return tuple(prefixes)
        names = [FieldPath.parse(field).file_name for field in self.fields]
        return tuple(f"{start}_{name}_document" for start in prefixes for name in names)

    @property
    def _field_names_in_output(self) -> bool:
        return self.name_by_field or len(self.fields) > 1


def _check_choice(option: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UsageError(f"--{option} must be {', '.join(choices)}, got {value!r}")


def _check_at_least(option: str, value: int | None, least: int) -> None:
    if value is not None and value < least:
        raise UsageError(f"--{option} must be at least {least}, got {value}")
