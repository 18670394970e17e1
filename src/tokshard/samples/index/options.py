"""Options of all commands that build indexes for a Megatron job: its tokenizer, and its sizes."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from tokshard.core import megatron_defaults
from tokshard.errors import InputError, UsageError
from tokshard.samples.index.packing import Packing, PackMethod, packing_of
from tokshard.samples.index.seed import check_seed
from tokshard.samples.index.sizes import Sizes, TrainingArguments, training_sizes
from tokshard.samples.index.splits import SPLITS, Split, parse_split
from tokshard.storage.lock import LockMode, check_lock_mode

if TYPE_CHECKING:
    from tokshard.dataset.layout import IndexTable
    from tokshard.dataset.tokenizer_agreement import JobTokenizer
    from tokshard.samples.index.description import GPTDatasetDescription, JobSettings
    from tokshard.samples.index.epochs import EpochPlan, SplitSize
    from tokshard.samples.index.index import GPTDatasetIndex

MISSING_SIZE = "the number of samples is required"
MISSING_SIZE_HINT = (
    "pass --num-samples 10M,20k (none is one epoch), --epochs 1, or the arguments of the job: "
    "--train-iters, --global-batch-size, --eval-interval, --eval-iters"
)
DEFAULT_SPLIT_WARNING = (
    f"the split is Megatron's {megatron_defaults.SPLIT!r}, "
    "which reserves 3.1% of the data for validation and test"
)


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
        tokenizer: A copy of the job's tokenizer on this machine, with which the datasets are compared; None
            for the path that the identifiers contain, if it can be read here.

    Raises:
        UsageError: Two options contradict each other, or one has no effect.
    """

    like: str | os.PathLike[str] | None = None
    tokenizer_identifiers: str | os.PathLike[str] | dict[str, Any] | None = None
    megatron: str | None = None
    tokenizer_type: str | None = None
    tokenizer_model: str | None = None
    vocab_size: int | None = None
    tokenizer: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        ways = {
            "--like": self.like,
            "--tokenizer-identifiers": self.tokenizer_identifiers,
            "--megatron": self.megatron,
        }
        given = [name for name, value in ways.items() if value is not None]
        if len(given) > 1:
            raise UsageError(f"{' and '.join(given)} exclude each other")
        for name in ("tokenizer_type", "tokenizer_model", "vocab_size"):
            if getattr(self, name) is not None and self.megatron is None:
                raise UsageError(
                    f"--{name.replace('_', '-')} requires --megatron",
                    hint="pass --megatron VERSION: the names of the cache files depend on it",
                )

    @property
    def are_given(self) -> bool:
        """True if the tokenizer of the job is known, so that Megatron will find the files."""
        return not (self.like is None and self.tokenizer_identifiers is None and self.megatron is None)

    def settings(self) -> JobSettings | None:
        """Return the settings of the job that ``like`` describes.

        Raises:
            InputError: It cannot be read, or is no description.
        """
        from tokshard.samples.index.description import settings_from_cache

        return None if self.like is None else settings_from_cache(os.fspath(self.like))

    def identifiers(self) -> dict[str, Any] | None:
        """Return the tokenizer's identifiers; None if the tokenizer is not known.

        Raises:
            InputError: A file cannot be read or holds none.
            UsageError: There is no such preset.
        """
        from tokshard.samples.index import identifiers

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

    def job_tokenizer(self, path_as: Sequence[tuple[str, str]] = ()) -> JobTokenizer | None:
        """Return the tokenizer of the job; None if nothing is known of it.

        Raises:
            UsageError, InputError: See :meth:`identifiers`; or ``tokenizer`` cannot be read.
        """
        from tokshard.samples.index.tokenizer_check import job_tokenizer

        return job_tokenizer(self.identifiers(), path_as, self.tokenizer)


@dataclass(frozen=True)
class TrainingOptions:
    """Arguments of a Megatron job that decide its sizes, as far as they are given.

    The attributes are Megatron's arguments of the same names.

    Raises:
        UsageError: The number of steps or samples, or the batch size, is missing.

    Example:
        >>> TrainingOptions(train_iters=100, global_batch_size=8, eval_interval=40, eval_iters=2).sizes()
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
                f"--{next(iter(given)).replace('_', '-')} requires --train-iters or --train-samples",
                hint="pass the same arguments as in the launch command of the job",
            )
        if given and self.global_batch_size is None:
            raise UsageError("--train-iters and --train-samples require --global-batch-size")

    def sizes(self, megatron: str | None = None) -> Sizes | None:
        """Return the samples that the job requests; None if no argument is given.

        Args:
            megatron: The version of Megatron Core of the job, if it is known. Only for 0.15 there is a
                default of ``eval_interval``.

        Raises:
            UsageError: An argument is missing or out of range.
        """
        given = self._given()
        return training_sizes(TrainingArguments(**given), megatron) if given else None

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
    from tokshard.samples.index.identifiers import NEUTRAL

    manifest = read_manifest(prefix)
    identity = manifest.tokenizer if manifest is not None else None
    return {"class": NEUTRAL, **({"kind": identity.kind, "sha256": identity.digest} if identity else {})}


def check_path_as(pairs: Sequence[tuple[str, str]], paths: Sequence[str]) -> None:
    """Refuse pairs of ``--path-as`` that change no path: the names would not be those that are intended.

    Args:
        pairs: Pairs (path here, path at training time).
        paths: The datasets and the cache, as they are written.
    """
    for local, training in pairs:
        if not effective_pairs([(local, training)], paths):
            raise UsageError(
                f"--path-as {local}={training} has no effect: no path begins with {local}",
                hint="write the path as the dataset is named: data/web is not under ./data",
            )


def effective_pairs(pairs: Sequence[tuple[str, str]], paths: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return the pairs (path here, path at training time) that change a path."""
    return tuple(
        (local, training)
        for local, training in pairs
        if any(path == local or path.startswith(local.rstrip("/") + "/") for path in paths)
    )


def check_packed_cache(directory: str | os.PathLike[str] | None) -> None:
    """Check that packed indexes get a directory of their own: their files have the names of unpacked ones.

    Raises:
        UsageError: It is None, so that they would go to the directory that jobs use by default.
    """
    if directory is None:
        raise UsageError(
            "--pack best-fit requires --cache-dir: packed indexes have the same file names as those that "
            "Megatron builds",
            hint="pass a directory for packed indexes, for example --cache-dir cache-packed",
        )


@dataclass(frozen=True)
class BuildIndicesOptions:
    """Options of :func:`tokshard.build_indices`.

    One index is built for each dataset, sequence length, size and split. What no option gives is taken from
    ``naming.like``, then from Megatron.

    Attributes:
        prefixes: The path prefixes of the datasets.
        sequence_lengths: The tokens of a sample.
        split: The split string.
        seed: The seed of all shuffles.
        extra_token: Whether each sample has one more token, the last label.
        drop_last_partial: Whether validation drops its last, partial sample.
        pack: ``"concat"`` for Megatron's samples; ``"best-fit"`` packs whole documents into samples, which
            requires a ``cache_directory``.
        max_documents_per_sample: Documents of a packed sample at most; None for any number.
        pad_multiple: The room of each document of a packed sample is a multiple of this many tokens.
        num_samples: Sizes: the samples of training, validation and testing; None in it is one epoch.
        epochs: Sizes as epochs of the training split; validation and testing get none.
        surplus: The samples built beyond those, as a fraction.
        training: The arguments of the job that decide a size.
        global_batch_size: The samples of a step, which reports mention; None for that of ``training``.
        naming: The tokenizer of the job.
        path_as: Pairs (path here, path at training time).
        cache_directory: Megatron's ``--data-cache-path``; None for a directory beside each dataset.
        rebuild: Whether to replace indexes that are stale, damaged or not built by tokshard.
        lock: The mode of the writer lock: ``"none"`` for a file system without ``flock``, if only one run
            writes the cache at a time.
        allow_tokenizer_mismatch: Whether datasets of different tokenizers, or of another one than the job's,
            may be used.
        workers: Threads; None for one for each core.
        requests: The indexes themselves, instead of datasets, lengths, sizes and what else decides about
            them; ``--from-launch`` sets it.

    Raises:
        UsageError: Something is missing, or a value is out of range.
    """

    prefixes: tuple[str, ...] = ()
    sequence_lengths: tuple[int, ...] = ()
    split: str | None = None
    seed: int | None = None
    extra_token: bool = True
    drop_last_partial: bool = True
    pack: PackMethod = "concat"
    max_documents_per_sample: int | None = None
    pad_multiple: int | None = None
    num_samples: tuple[Sizes, ...] = ()
    epochs: tuple[int, ...] = ()
    surplus: float = 0.0
    training: TrainingOptions = TrainingOptions()
    global_batch_size: int | None = None
    naming: NamingOptions = NamingOptions()
    path_as: tuple[tuple[str, str], ...] = ()
    cache_directory: str | os.PathLike[str] | None = None
    rebuild: bool = False
    lock: LockMode = "flock"
    allow_tokenizer_mismatch: bool = False
    workers: int | None = None
    requests: tuple[IndexRequest, ...] = ()

    def __post_init__(self) -> None:
        check_lock_mode(self.lock)
        if self.requests:
            if self.prefixes or self.sequence_lengths or self.sizes or self.epochs:
                raise UsageError("requests and datasets exclude each other", hint="pass only one of them")
            self._check_packing({request.sequence_length for request in self.requests})
            return
        if not self.prefixes:
            raise UsageError("at least one dataset is required", hint="pass for example data/web")
        if not self.sequence_lengths and self.naming.like is None:
            raise UsageError("the sequence length is required", hint="pass for example --seq-length 4096")
        if not self.sizes and not self.epochs and self.naming.like is None:
            raise UsageError(MISSING_SIZE, hint=MISSING_SIZE_HINT)
        if any(epochs < 1 for epochs in self.epochs):
            raise UsageError(f"--epochs must be at least 1, got {min(self.epochs)}")
        if not 0 <= self.surplus < math.inf:
            raise UsageError(f"--surplus must be at least 0, got {self.surplus:g}")
        if self.seed is not None:
            check_seed(self.seed)
        if self.split is not None:
            parse_split(self.split)
        check_path_as(self.path_as, (*self.prefixes, os.fspath(self.cache_directory or "")))
        self._check_packing(self.sequence_lengths)

    def _check_packing(self, sequence_lengths: Iterable[int]) -> None:
        if self.packing is not None:
            check_packed_cache(self.cache_directory)
            for length in sequence_lengths:
                self.packing.check_sequence_length(length)

    @property
    def packing(self) -> Packing | None:
        """The packing of whole documents; None for concatenation."""
        return packing_of(self.pack, self.max_documents_per_sample, self.pad_multiple)

    @property
    def sizes(self) -> tuple[Sizes, ...]:
        """The sizes in samples that are given."""
        training = self.training.sizes(self.naming.megatron)
        return (*self.num_samples, *((training,) if training else ()))

    def early_warnings(self) -> tuple[str, ...]:
        """Return the warnings that a user needs before the indexes are built.

        Raises:
            InputError: The description of ``naming.like`` cannot be read.
        """
        like = self.naming.settings()
        if like is None:
            return () if self.split is not None or self.requests else (DEFAULT_SPLIT_WARNING,)
        if like.split is None or self.sizes or self.epochs:
            return ()
        shares = zip(SPLITS, parse_split(self.split or like.split).matrix, strict=True)
        return tuple(
            f"--like does not contain the number of {name} samples, so its index is not built"
            for name, share in shares
            if share and name not in like.num_samples
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRequest:
    """One index to build or to find.

    Attributes:
        prefix: The path prefix of the dataset.
        training_path: The path prefix as the training job will give it, which enters the hash.
        split_name: train, valid or test.
        num_samples: Samples asked for; None for one epoch.
        sequence_length: Tokens of a sample.
        tokenizer: Megatron's identifiers of the tokenizer; None if they are unknown.
        extra_token: Megatron's ``add_extra_token_to_sequence``. It does not enter the hash.
        drop_last_partial: Megatron's ``drop_last_partial_validation_sequence``, which has a meaning for
            validation only. It does not enter the hash.
        packing: The packing of whole documents; None for Megatron's concatenation. It does not enter the
            hash.

    Raises:
        UsageError: The split has no such name, or the seed cannot be one.
    """

    prefix: str
    training_path: str
    split_name: str
    split: Split
    num_samples: int | None
    sequence_length: int
    seed: int = megatron_defaults.SEED
    tokenizer: Any
    extra_token: bool = True
    drop_last_partial: bool = True
    packing: Packing | None = None

    def __post_init__(self) -> None:
        if self.split_name not in SPLITS:
            raise UsageError(f"split must be one of {', '.join(SPLITS)}, got {self.split_name!r}")
        check_seed(self.seed)

    @property
    def is_built(self) -> bool:
        """True if Megatron builds this split at all: one without a share is left out."""
        return self.split.matrix[SPLITS.index(self.split_name)] is not None

    @property
    def drops_last_partial(self) -> bool:
        """True if tokens that do not fill a sample are dropped; only validation can keep them."""
        return self.drop_last_partial or self.split_name != "valid"

    def sequences(self, count: int) -> range | None:
        """Return the numbers of the sequences of the split; None if it is not built."""
        return self.split.ranges(count)[SPLITS.index(self.split_name)]

    def size(self, table: IndexTable) -> SplitSize:
        """Return the size of the split of a dataset, with the report of packed samples; all lengths are read.

        Raises:
            UsageError: Its samples cannot be packed.
            InputError: The split has no sequences, or documents to pack consist of several sequences.
        """
        from tokshard.samples.index.epochs import SplitSize  # help pages must not load numpy

        sequences = self.sequences(table.sequence_count)
        if not sequences:
            raise InputError(
                f"the split {self.split.text!r} has none of the {table.sequence_count:,} sequences, and "
                "Megatron would loop forever",
                hint="pass a larger share for the split in --split, or 0 to skip it",
            )
        if self.packing is not None:
            from tokshard.samples.index.best_fit import EpochPacks, check_documents
            from tokshard.samples.index.packing_report import PackingReport

            check_documents(table.document_indices, self.prefix)
            packs = EpochPacks.of(table.sequence_lengths, sequences, self.sequence_length, self.packing)
            report = PackingReport.of(packs, extra_token=self.extra_token) if packs.tokens else None
            return replace(packs.size, report=report)
        lengths = table.sequence_lengths[sequences.start : sequences.stop]
        return SplitSize(len(sequences), int(lengths.sum(dtype="int64")))

    def plan(self, size: SplitSize) -> EpochPlan:
        """Return the plan of the index, given the size of its split.

        Raises:
            UsageError, InputError: See :func:`~tokshard.samples.index.epochs.plan_epochs`.
        """
        from tokshard.samples.index.epochs import plan_epochs

        return plan_epochs(
            sequences=size.sequences,
            tokens_per_epoch=size.tokens,
            packed=size.packed,
            sequence_length=self.sequence_length,
            num_samples=self.num_samples,
            extra_token=self.extra_token,
            drop_last_partial=self.drops_last_partial,
        )

    def build(self, table: IndexTable) -> GPTDatasetIndex:
        """Build the index.

        Raises:
            UsageError, InputError: See :meth:`size` and :meth:`plan`.
        """
        from tokshard.samples.index.index import GPTDatasetIndex

        return GPTDatasetIndex.build(
            table.sequence_lengths,
            self.sequences(table.sequence_count) or range(0),
            sequence_length=self.sequence_length,
            seed=self.seed,
            num_samples=self.num_samples,
            extra_token=self.extra_token,
            drop_last_partial=self.drops_last_partial,
            packing=self.packing,
        )

    def description(self) -> GPTDatasetDescription:
        """Return the description that the names of the cache files depend on."""
        from tokshard.samples.index.description import GPTDatasetDescription

        return GPTDatasetDescription(
            dataset_path=self.training_path,
            num_samples=self.num_samples,
            index_split=self.split_name,
            random_seed=self.seed,
            sequence_length=self.sequence_length,
            split=self.split.text,
            split_matrix=self.split.matrix_json(),
            tokenizer=self.tokenizer,
        )
