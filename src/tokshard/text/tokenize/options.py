"""Options of tokenize."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal, Self

from tokshard.core.codec import Count, Positive
from tokshard.core.options import RUN, Force, Option, Options, StrPaths, parse_bytes, several
from tokshard.dataset.encoding_options import TEXT, EncodingOptions
from tokshard.errors import UsageError
from tokshard.storage.lock import Lock
from tokshard.storage.paths import check_output_prefix
from tokshard.storage.remote import hub
from tokshard.text.corpus.fields import FieldPath
from tokshard.text.tokenizer.tiktoken_files import TOKENIZER, TikTokenizerSettings

_ERRORS = "Bad records"
_rare_text = partial(Option, group=TEXT, is_rare=True)
_rare_tokenizer = partial(Option, group=TOKENIZER, is_rare=True)
_rare_run = partial(Option, group=RUN, is_rare=True)
CLUSTER = "Ray cluster"
_rare_array = partial(Option, group="Job arrays", is_rare=True)
_EXAMPLE = "pass for example --array-task 0/8"


@dataclass(frozen=True, kw_only=True)
class TokenizeOptions(EncodingOptions):
    r"""Options of :func:`tokshard.tokenize`.

    In a name of ``fields`` dots separate keys: ``meta.text`` is the field ``text`` of the object ``meta``,
    ``messages.0.content`` a field of the first item of a list; in ``meta\.text`` the dot is part of the key.
    Several fields are tokenized into a dataset each, which are named ``PREFIX_<field>_document``.

    With ``preset="megatron"`` this is the name for one field, too, and added tokens that Megatron does not
    find without ``special_tokens`` are an error. Megatron's defaults are those of the command line only: it
    does not append the EOD token.

    Attributes:
        tiktoken: Settings for the file of a Megatron TikTokenizer, a ``TikTokenizerSettings`` of
            :mod:`tokshard.text.tokenizer.tiktoken_files`.

    Raises:
        UsageError: An option is invalid.
    """

    inputs: Annotated[
        StrPaths,
        Option(
            "JSONL (plain, .gz, .bz2, .xz or .zst), Parquet or Arrow files; also quoted globs, directories, "
            "@list.txt, URLs such as s3://bucket/*.jsonl, files of the Hugging Face Hub "
            "(hf://datasets/ORG/NAME/GLOB), - for stdin, or one sources.toml.",
            is_argument=True,
            metavar="INPUT...",
        ),
    ] = ()
    output: Annotated[
        str | None,
        Option(
            "Write PREFIX.bin, PREFIX.idx and PREFIX.tokshard/. PREFIX can be a URL.",
            aliases=("-o",),
            metavar="PREFIX",
            default="the input's name without suffixes",
        ),
    ] = None
    config: Annotated[
        str | None,
        _rare_text(
            "Read this config of a dataset of the Hugging Face Hub named without a path.",
            metavar="NAME",
            default="the only one",
        ),
    ] = None
    split: Annotated[
        str | None,
        _rare_text(
            "Read this split of the dataset, or of a directory that save_to_disk wrote.",
            metavar="NAME",
            default="the only one",
        ),
    ] = None
    tokenizer: Annotated[
        str | None,
        Option(
            "Use this tokenizer file (tokenizer.json, SentencePiece, tiktoken), a directory with one, its "
            "URL, or hf:ORG/NAME. null:N reads text that is token ids below N.",
            metavar="PATH",
            default="built-in bytes",
            group=TOKENIZER,
        ),
    ] = None
    vocab_file: Annotated[
        str | None,
        _rare_tokenizer(
            "Use this vocab.json of a GPT-2 tokenizer, with --merge-file, instead of --tokenizer.",
            metavar="PATH",
            requires="merge_file",
            excludes="tokenizer",
        ),
    ] = None
    merge_file: Annotated[
        str | None,
        _rare_tokenizer("Use this merges.txt with --vocab-file.", metavar="PATH", requires="vocab_file"),
    ] = None
    tiktoken: TikTokenizerSettings = field(default_factory=TikTokenizerSettings)
    vocab_size: Annotated[
        Positive | None,
        _rare_tokenizer(
            "Without --tokenizer: read token ids below N from the field. For the file of a Megatron "
            "TikTokenizer: use N tokens, special tokens included.",
            default="131072 for a TikTokenizer",
        ),
    ] = None
    files_beside: Annotated[
        bool,
        _rare_tokenizer(
            "Also read the settings in the tokenizer's directory, such as tokenizer_config.json."
        ),
    ] = True
    eod: Annotated[
        str | None,
        Option(
            "Use this token, or token id, as the EOD token.",
            metavar="TOKEN",
            default="the tokenizer's EOS token",
            group=TOKENIZER,
        ),
    ] = None
    encoder: Annotated[
        Literal["auto", "fast", "reference"],
        Option("Choose the encoder of text; both write the same tokens.", group=TOKENIZER),
    ] = "auto"
    dtype: Annotated[
        Literal["auto", "uint16", "int32"],
        _rare_tokenizer(
            "Store tokens as this type; auto is Megatron's choice, by the size of the vocabulary."
        ),
    ] = "auto"
    transformers: Annotated[
        str | None,
        _rare_tokenizer(
            "Read a tokenizer directory whose settings change ids with the transformers of this Python, for "
            "example /envs/train/bin/python or 'docker run -i IMAGE python'; by default with the "
            "transformers that is installed here.",
            metavar="PYTHON",
            excludes="files_beside=False",
        ),
    ] = None
    on_error: Annotated[
        Literal["fail", "skip"],
        Option(
            "Stop at a bad record, or skip it and list it in PREFIX.tokshard/rejected.jsonl.", group=_ERRORS
        ),
    ] = "fail"
    max_errors: Annotated[
        Count | None,
        Option(
            "With --on-error skip: stop after more than N bad records.",
            default="no limit",
            group=_ERRORS,
            is_rare=True,
            requires="on_error=skip",
        ),
    ] = None
    max_document_bytes: Annotated[
        Positive | None,
        Option(
            "Reject records above SIZE.",
            metavar="SIZE",
            parse=parse_bytes,
            default="16MB or 4MB",
            group=_ERRORS,
        ),
    ] = None
    workers: Annotated[Positive | None, Option("Run N worker processes.", default="all cores", group=RUN)] = (
        None
    )
    resume: Annotated[bool, _rare_run("Reuse the finished units of an unfinished run.")] = True
    force: Force = False
    lock: Lock = "flock"
    preset: Annotated[
        Literal["megatron"] | None,
        Option(
            "Accept the options of Megatron's preprocess_data.py, with its defaults and output names.",
            group=RUN,
            excludes=("sample", "limit", "max_tokens", "holdout", "special_tokens_in_text=split"),
            reason="preprocess_data.py has no such option",
        ),
    ] = None

    def _validate(self) -> None:
        super()._validate()
        if self.preset is not None and self.split is not None:
            raise UsageError(
                "--split is not supported with --preset megatron, where it abbreviates --split-sentences",
                hint="leave out --preset megatron, or pass the files of the split as inputs",
            )
        self._check_fields()
        if not self.input_names:
            raise UsageError(
                "INPUT is required", hint="pass files, globs, directories, @list.txt, or - for stdin"
            )
        _ = self.prefix

    def _check_fields(self) -> None:
        paths = [FieldPath.parse(name) for name in self.fields]
        keys = [] if self.holdout_key is None else [FieldPath.parse(self.holdout_key)]
        for option, path in [
            *(("--field", path) for path in paths),
            *(("--holdout-key", key) for key in keys),
        ]:
            if not all(path.keys):
                raise UsageError(
                    f"{option} must name keys that are not empty, got {path.name!r}",
                    hint=rf"escape a dot that is part of a key with a backslash: {option} 'meta\.text'",
                )
        if not paths:
            raise UsageError("--field must name at least one field")
        if len({path.keys for path in paths}) != len(paths):
            raise UsageError(f"--field must name different fields, got {', '.join(self.fields)}")
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
    def has_limits(self) -> bool:
        """True if the run ends at a number of documents or tokens."""
        return self.limit is not None or self.max_tokens is not None

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
    def names_tokenizer(self) -> bool:
        """True if the tokenizer is not the built-in one."""
        return self.tokenizer is not None or self.vocab_file is not None

    @property
    def input_names(self) -> tuple[str, ...]:
        """The inputs as a tuple."""
        return several(self.inputs)

    @property
    def prefix(self) -> str:
        """The path or URL prefix of the output: as given, or made of the name of the only input.

        Raises:
            UsageError: It is not given, and there is not exactly one named input; or it names no file.

        Example:
            >>> TokenizeOptions(inputs="data/corpus.jsonl.gz").prefix
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
            >>> TokenizeOptions(inputs="a.jsonl", fields=("text", "title")).output_prefixes("out/web")
            ('out/web_text_document', 'out/web_title_document')
            >>> TokenizeOptions(inputs="a.jsonl", holdout=0.001).output_prefixes("out/web")
            ('out/web_train', 'out/web_valid')
        """
        prefixes = [prefix] if self.holdout is None else [f"{prefix}_train", f"{prefix}_valid"]
        if not self._field_names_in_output:
            return tuple(prefixes)
        names = [FieldPath.parse(field).file_name for field in self.fields]
        return tuple(f"{start}_{name}_document" for start in prefixes for name in names)

    @property
    def _field_names_in_output(self) -> bool:
        return self.preset is not None or len(self.fields) > 1


@dataclass(frozen=True, kw_only=True)
class DistributionOptions(Options):
    """Options of ``tokshard tokenize`` that divide a run among machines.

    Raises:
        UsageError: An option is invalid, or options cannot be used together.
    """

    array_task: Annotated[
        str | None, _rare_array("Encode share I of N of the units, from 0/N.", metavar="I/N")
    ] = None
    finish: Annotated[
        bool,
        _rare_array("Make the dataset of the units that array tasks have encoded.", excludes=("array_task",)),
    ] = False
    executor: Annotated[
        Literal["local", "ray"],
        Option(
            "Run on this machine or on a Ray cluster.",
            group=CLUSTER,
            is_rare=True,
            excludes=("array_task", "finish"),
        ),
    ] = "local"


@dataclass(frozen=True)
class ArrayTask:
    """One task of a job array.

    Attributes:
        index: Number of the task, from 0.
        count: Number of tasks.

    Raises:
        UsageError: There is no such task.
    """

    index: int
    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UsageError(f"--array-task {self}: the number of tasks must be at least 1", hint=_EXAMPLE)
        if not 0 <= self.index < self.count:
            raise UsageError(
                f"--array-task {self}: tasks are numbered from 0, the last is {self.count - 1}/{self.count}",
                hint="number the array from 0, for example with Slurm's --array=0-7",
            )

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the task that ``--array-task`` names.

        Example:
            >>> ArrayTask.parse("3/8")
            ArrayTask(index=3, count=8)
        """
        found = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
        if found is None:
            raise UsageError(f"--array-task must be I/N, got {text!r}", hint=_EXAMPLE)
        return cls(int(found[1]), int(found[2]))
