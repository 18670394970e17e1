"""Options of all commands that build indexes for a Megatron job, and the request of an index."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from tokshard.core import megatron_rules
from tokshard.core.codec import Bounds, Count, Positive
from tokshard.core.options import RUN, Option, Options, StrPath, parse_pair
from tokshard.errors import InputError, UsageError
from tokshard.samples.index.packing import Packing, PackMethod, packing_of
from tokshard.samples.index.seed import Seed, check_seed
from tokshard.samples.index.sizes import MAX_EPOCHS, Sizes, Surplus, TrainingOptions
from tokshard.samples.index.splits import SPLITS, Split, parse_split
from tokshard.storage.lock import Lock

if TYPE_CHECKING:
    from tokshard.dataset.layout import IndexTable
    from tokshard.dataset.tokenizer_agreement import JobTokenizer
    from tokshard.samples.index.description import GPTDatasetDescription, JobSettings
    from tokshard.samples.index.epoch_plan import EpochPlan
    from tokshard.samples.index.epochs import SplitSize
    from tokshard.samples.index.index import GPTDatasetIndex

SAMPLES = "Samples"
SIZES = "Number of samples"
NAMES = "File names that a Megatron job looks up"

MISSING_SIZE = "the number of samples is required"
MISSING_SIZE_HINT = (
    "pass --num-samples 10M,20k (none is one epoch), --epochs 1, or the arguments of the job: "
    "--train-iters, --global-batch-size, --eval-interval, --eval-iters"
)
DEFAULT_SPLIT_WARNING = (
    f"the split is Megatron's {megatron_rules.SPLIT!r}, "
    "which reserves 3.1% of the data for validation and test"
)

Like = Annotated[
    StrPath | None,
    Option(
        "Take the tokenizer identifiers, and settings not given here, from a description in the job's cache.",
        metavar="DESCRIPTION.txt",
        group=NAMES,
        excludes=("tokenizer_identifiers", "megatron"),
        with_launch=True,
    ),
]
TokenizerIdentifiers = Annotated[
    Any,  # a path, or the content of the file: a dict
    Option(
        "Read the tokenizer identifiers from the output of `python -m tokshard.dump_tokenizer_identifiers`.",
        metavar="FILE.json",
        group=NAMES,
        excludes="megatron",
        with_launch=True,
    ),
]
MegatronVersion = Annotated[
    str | None,
    Option(
        "Use the file names of this Megatron Core version: 0.15, 0.16, 0.17, 0.18, 0.19 or main-20260822.",
        metavar="VERSION",
        group=NAMES,
        with_launch=True,
    ),
]
PathAs = Annotated[
    tuple[tuple[str, str], ...],
    Option(
        "Map paths below LOCAL to paths below TRAINING, which the job uses.",
        metavar="LOCAL=TRAINING",
        parse=parse_pair("LOCAL=TRAINING", "out=/data/v1"),
        group=NAMES,
        is_rare=True,
        with_launch=True,
    ),
]


@dataclass(frozen=True, kw_only=True)
class NamingOptions(Options):
    """Options about the tokenizer of the training job, on which the names of cache files depend.

    ``tokenizer_identifiers`` is the path of a JSON file, or its content as a dict.

    Raises:
        UsageError: Two options contradict each other, or one has no effect.
    """

    like: Like = None
    tokenizer_identifiers: TokenizerIdentifiers = None
    megatron: MegatronVersion = None
    tokenizer_type: Annotated[
        str | None,
        Option(
            "Name the job's tokenizer type: HuggingFaceTokenizer or NullTokenizer. Requires --megatron.",
            metavar="TYPE",
            default="HuggingFaceTokenizer",
            group=NAMES,
            requires="megatron",
        ),
    ] = None
    tokenizer_model: Annotated[
        str | None,
        Option(
            "Set the job's tokenizer model, written exactly as in the job. Requires --megatron.",
            metavar="PATH",
            group=NAMES,
            requires="megatron",
        ),
    ] = None
    vocab_size: Annotated[
        Count | None,
        Option("Set the vocabulary size of a NullTokenizer.", group=NAMES, is_rare=True, requires="megatron"),
    ] = None
    tokenizer: Annotated[
        StrPath | None,
        Option(
            "Compare the datasets with this copy of the job's tokenizer.",
            metavar="PATH",
            default="the path that the job uses, if it can be read here",
            group=NAMES,
            is_rare=True,
            with_launch=True,
        ),
    ] = None

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


_SEQ_LENGTH = Option("Build samples of N tokens.", group=SAMPLES)
_NUM_SAMPLES = Option(
    "Build N training, V validation and T test samples, such as 10M,2k; none is one epoch.",
    metavar="N[,V[,T]]",
    parse=Sizes.parse,
    group=SIZES,
)
_SURPLUS = Option(
    "Build this fraction more samples of each dataset, as Megatron's --mid-level-dataset-surplus does for a "
    "blend.",
    metavar="FRACTION",
    default=str(megatron_rules.SURPLUS),
    group=SIZES,
    is_rare=True,
)
_CACHE_DIR = Option(
    "Write the index files to this directory.",
    aliases=("--data-cache-path",),
    metavar="DIR",
    default="that of --from-launch, or OUTPUT/cache",
    group=RUN,
    with_launch=True,
)


@dataclass(frozen=True, kw_only=True)
class IndexingOptions(Options):
    """Options of all functions that build indexes for a Megatron job.

    Attributes:
        global_batch_size: The samples of a step of the job; None for that of ``training``.
    """

    seq_length: Annotated[Positive | None, _SEQ_LENGTH] = None
    split: Annotated[
        str | None,
        Option(
            "Divide the documents by these weights.",
            metavar="TRAIN,VALID,TEST",
            default=megatron_rules.SPLIT,
            group=SAMPLES,
        ),
    ] = None
    seed: Annotated[
        Seed | None,
        Option("Seed all shuffles with N.", default=str(megatron_rules.SEED), group=SAMPLES),
    ] = None
    add_extra_token: Annotated[
        bool, Option("Give each sample one more token for the last label.", group=SAMPLES, is_rare=True)
    ] = True
    drop_last_partial_validation: Annotated[
        bool, Option("Drop the last validation sample if it is incomplete.", group=SAMPLES, is_rare=True)
    ] = True
    pack: Annotated[
        PackMethod | None,
        Option(
            "Cut samples from concatenated documents, or pack whole documents into samples.",
            default="concat",
            group=SAMPLES,
            with_launch=True,
        ),
    ] = None
    max_documents_per_sample: Annotated[
        Positive | None,
        Option(
            "Pack at most N documents into a sample.",
            default="no limit",
            group=SAMPLES,
            is_rare=True,
            with_launch=True,
        ),
    ] = None
    pad_multiple: Annotated[
        Positive | None,
        Option(
            "Reserve room in packed samples to pad each document to a multiple of TOKENS (2 x "
            "context-parallel size), for trainers that pad documents; Megatron itself does not.",
            metavar="TOKENS",
            default="no padding of documents",
            group=SAMPLES,
            is_rare=True,
            with_launch=True,
        ),
    ] = None
    num_samples: Annotated[Sizes | None, _NUM_SAMPLES] = None
    surplus: Annotated[Surplus | None, _SURPLUS] = None
    training: TrainingOptions = TrainingOptions()  # noqa: RUF009 - frozen
    naming: NamingOptions = NamingOptions()
    path_as: PathAs = ()
    cache_dir: Annotated[StrPath | None, _CACHE_DIR] = None
    rebuild: Annotated[
        bool,
        Option(
            "Replace index files that differ: damaged, built from other data, or by another program.",
            group=RUN,
            is_rare=True,
            with_launch=True,
        ),
    ] = False
    lock: Lock = "flock"
    allow_tokenizer_mismatch: Annotated[
        bool,
        Option(
            "Allow datasets with different tokenizers, or not the job's tokenizer, and record the mismatch.",
            group=RUN,
            is_rare=True,
            with_launch=True,
        ),
    ] = False
    workers: Annotated[
        Positive | None,
        Option("Use N threads.", default="all cores", group=RUN, with_launch=True),
    ] = None
    global_batch_size: int | None = None

    def _validate(self) -> None:
        self.job_sizes  # noqa: B018 - raises for arguments that are missing or out of range
        if self.split is not None:
            parse_split(self.split)

    @property
    def job_batch_size(self) -> int | None:
        """The samples of a step of the job; None if unknown."""
        return self.global_batch_size or self.training.global_batch_size

    @property
    def job_sizes(self) -> Sizes | None:
        """The sizes that follow from the arguments of the job; None if none is given."""
        return None if self.training == TrainingOptions() else self.training.sizes(self.naming.megatron)


@dataclass(frozen=True, kw_only=True)
class BuildIndicesOptions(IndexingOptions):
    """Options of :func:`tokshard.build_indices`.

    One index is built for each dataset, sequence length, size and split. What no option gives is taken from
    ``naming.like``, then from Megatron.

    Attributes:
        requests: The indexes themselves, instead of datasets, lengths, sizes and what else decides about
            them; ``--from-launch`` sets it.

    Raises:
        UsageError: Something is missing, or a value is out of range.
    """

    prefixes: Annotated[
        tuple[str, ...], Option("Path prefixes of datasets.", is_argument=True, metavar="[PREFIX...]")
    ] = ()
    # Several values, where a blend has one.
    seq_length: Annotated[tuple[Positive, ...], _SEQ_LENGTH] = ()  # type: ignore[assignment]
    num_samples: Annotated[tuple[Sizes, ...], _NUM_SAMPLES] = ()  # type: ignore[assignment]
    epochs: Annotated[
        tuple[Annotated[int, Bounds(1, MAX_EPOCHS)], ...],
        Option("Build as many training samples as N epochs have.", group=SIZES),
    ] = ()
    surplus: Annotated[Surplus | None, replace(_SURPLUS, default="0")] = None
    cache_dir: Annotated[StrPath | None, replace(_CACHE_DIR, default="PREFIX/cache/GPTDataset_indices")] = (
        None
    )
    requests: tuple[IndexRequest, ...] = ()

    def _validate(self) -> None:
        super()._validate()
        if self.requests:
            if self.prefixes or self.seq_length or self.sizes or self.epochs:
                raise UsageError("requests cannot be used with datasets", hint="pass only one of them")
            self._check_packing({request.sequence_length for request in self.requests})
            return
        if not self.prefixes:
            raise UsageError("at least one dataset is required", hint="pass for example data/web")
        if not self.seq_length and self.naming.like is None:
            raise UsageError("the sequence length is required", hint="pass for example --seq-length 4096")
        if not self.sizes and not self.epochs and self.naming.like is None:
            raise UsageError(MISSING_SIZE, hint=MISSING_SIZE_HINT)
        check_path_as(self.path_as, (*self.prefixes, os.fspath(self.cache_dir or "")))
        self._check_packing(self.seq_length)

    def _check_packing(self, sequence_lengths: Iterable[int]) -> None:
        if self.packing is None:
            return
        if self.cache_dir is None:
            raise UsageError(
                "--pack best-fit requires --cache-dir: packed indexes have the same file names as those that "
                "Megatron builds",
                hint="pass a directory for packed indexes, for example --cache-dir cache-packed",
            )
        for length in sequence_lengths:
            self.packing.check_sequence_length(length)

    @property
    def packing(self) -> Packing | None:
        """The packing of whole documents; None for concatenation."""
        return packing_of(self.pack, self.max_documents_per_sample, self.pad_multiple)

    @property
    def sizes(self) -> tuple[Sizes, ...]:
        """The sizes in samples that are given."""
        return (*self.num_samples, *((self.job_sizes,) if self.job_sizes else ()))

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
    seed: int = megatron_rules.SEED
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
        """Return the size of the split of a dataset, for which all lengths are read.

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

            check_documents(table.document_indices, self.prefix)
            return EpochPacks.of(table.sequence_lengths, sequences, self.sequence_length, self.packing).size
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
