"""Options of all commands that build indexes for a Megatron job: its tokenizer, and its sizes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from tokshard.errors import UsageError
from tokshard.gpt_index.sizes import Sizes, TrainingArguments, training_sizes

if TYPE_CHECKING:
    from tokshard.index_cache.description import JobSettings

DEFAULT_SPLIT_WARNING = "the split is Megatron's '969, 30, 1', which keeps 3.1% of the data from training"


@dataclass(frozen=True)
class NamingOptions:
    """Options about the tokenizer of the training job, on which the names of cache files depend.

    Attributes:
        like: A description that the job wrote; it gives the tokenizer's identifiers, and all that no
            other option gives.
        tokenizer_identifiers: A JSON file with the tokenizer's identifiers, or these themselves.
        megatron: The version of Megatron Core of the job, for its preset of identifiers.
        tokenizer_type: Megatron's ``--tokenizer-type``, for the preset.
        tokenizer_model: Megatron's ``--tokenizer-model``, for the preset.
        vocab_size: Megatron's ``--vocab-size``, for the preset of a NullTokenizer.

    Raises:
        UsageError: Two options contradict each other, or one has no effect.
    """

    like: str | os.PathLike[str] | None = None
    tokenizer_identifiers: str | os.PathLike[str] | dict[str, Any] | None = None
    megatron: str | None = None
    tokenizer_type: str | None = None
    tokenizer_model: str | None = None
    vocab_size: int | None = None

    def __post_init__(self) -> None:
        ways = {
            "--like": self.like,
            "--tokenizer-identifiers": self.tokenizer_identifiers,
            "--megatron": self.megatron,
        }
        given = [name for name, value in ways.items() if value is not None]
        if len(given) > 1:
            raise UsageError(f"{' and '.join(given)} say the same thing: give one of them")
        for name in ("tokenizer_type", "tokenizer_model", "vocab_size"):
            if getattr(self, name) is not None and self.megatron is None:
                raise UsageError(
                    f"--{name.replace('_', '-')} is of no use without --megatron",
                    hint="the names of Megatron's cache files depend on its version",
                )

    @property
    def are_given(self) -> bool:
        """Whether the tokenizer of the job is known, so that Megatron will find the files."""
        return not (self.like is None and self.tokenizer_identifiers is None and self.megatron is None)

    def settings(self) -> JobSettings | None:
        """Return the settings of the job that ``like`` describes.

        Raises:
            InputError: It cannot be read, or is no description.
        """
        from tokshard.index_cache.description import settings_from_cache

        return None if self.like is None else settings_from_cache(os.fspath(self.like))

    def identifiers(self) -> dict[str, Any] | None:
        """Return the tokenizer's identifiers; None if the tokenizer is not known.

        Raises:
            InputError: A file cannot be read or holds none.
            UsageError: There is no such preset.
        """
        from tokshard.index_cache import identifiers

        if (settings := self.settings()) is not None:
            return settings.tokenizer
        if isinstance(self.tokenizer_identifiers, dict):
            return self.tokenizer_identifiers
        if self.tokenizer_identifiers is not None:
            return identifiers.read_identifiers(os.fspath(self.tokenizer_identifiers))
        if self.megatron is None:
            return None
        details = {} if self.vocab_size is None else {"vocab_size": self.vocab_size}
        return identifiers.megatron_identifiers(
            self.megatron,
            self.tokenizer_type or identifiers.HUGGING_FACE,
            self.tokenizer_model,
            **details,
        )


@dataclass(frozen=True)
class TrainingOptions:
    """Arguments of a Megatron job that decide its sizes, as far as they are given.

    See :class:`~tokshard.gpt_index.sizes.TrainingArguments`.

    Raises:
        UsageError: They are not complete, or one is out of range.

    Example:
        >>> TrainingOptions(train_iters=100, global_batch_size=8, eval_interval=40, eval_iters=2).sizes
        Sizes(train=800, valid=48, test=16)
        >>> TrainingOptions(train_iters=50, global_batch_size=8, skip_train=True).words()
        ['--train-iters', '50', '--global-batch-size', '8', '--skip-train']
    """

    train_iters: int | None = None
    train_samples: int | None = None
    global_batch_size: int | None = None
    eval_interval: int | None = None
    eval_iters: int | None = None
    eval_global_batch_size: int | None = None
    start_eval_at_iter: int | None = None
    skip_train: bool = False
    full_validation: bool = False

    def __post_init__(self) -> None:
        given = self._given()
        if given and self.train_iters is None and self.train_samples is None:
            raise UsageError(
                f"--{next(iter(given)).replace('_', '-')} needs --train-iters or --train-samples",
                hint="give the arguments of the job as it will be started",
            )
        if given and self.global_batch_size is None:
            raise UsageError("the sizes of a job need --global-batch-size")
        self.sizes  # noqa: B018 - raises for arguments that are out of range

    @property
    def sizes(self) -> Sizes | None:
        """The samples that the job asks for; None if no argument is given."""
        given = self._given()
        return training_sizes(TrainingArguments(**given)) if given else None

    def words(self) -> list[str]:
        """Return the arguments, as words of a launch command; without ``full_validation``."""
        words = []
        for name, value in self._given().items():
            if name != "full_validation":
                words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
        return words

    def _given(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None and value is not False}


def neutral_identifiers(prefix: str) -> dict[str, Any]:
    """Return identifiers for data whose job is not known: no version of Megatron has such names.

    Args:
        prefix: A dataset; the tokenizer in its manifest, if it has one, is among the identifiers.
    """
    from tokshard.dataset.manifest import read_manifest
    from tokshard.index_cache.identifiers import NEUTRAL

    manifest = read_manifest(prefix)
    identity = manifest.tokenizer if manifest is not None else None
    return {"class": NEUTRAL, **({"kind": identity.kind, "sha256": identity.sha256} if identity else {})}


def check_path_as(pairs: Sequence[tuple[str, str]], paths: Sequence[str]) -> None:
    """Refuse pairs of ``--path-as`` that change no path: the names would not be those that are intended.

    Args:
        pairs: Pairs (path here, path at training time).
        paths: The datasets and the cache, as they are written.

    Raises:
        UsageError: There is one.
    """
    for local, training in pairs:
        root = local.rstrip("/") + "/"
        if not any(path == local or path.startswith(root) for path in paths):
            raise UsageError(
                f"--path-as {local}={training} changes nothing: no dataset is written so",
                hint="for example data/web is not under ./data",
            )
