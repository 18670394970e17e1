"""``blend.json``: a blend as it was built, with everything that a plan or a loader needs of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from tokshard.core.codec import TOOL, Bounds, Count, Document, Record, Sha256, Tool, encode
from tokshard.core.formatting import counted
from tokshard.core.json_text import dump_readable_json
from tokshard.dataset.fingerprint import DatasetFingerprint
from tokshard.dataset.products import BLEND_NAME, DESCRIPTION_SUFFIX
from tokshard.dataset.tokenizer_agreement import DatasetTokenizer, JobTokenizer, TokenizerMismatch, agree
from tokshard.dataset.tokenizer_identity import TokenizerIdentity
from tokshard.errors import IntegrityError, MissingFileError, UsageError
from tokshard.samples.blend.certificate import Certificate
from tokshard.samples.blend.options import BuilderConfig
from tokshard.samples.blend.plan import BlendPlan, Kind
from tokshard.samples.blend.recipe import BlendRecipe
from tokshard.samples.blend.weights import BlendWeights, shares_of
from tokshard.samples.index.build_or_reuse import locked
from tokshard.samples.index.packing import Packing
from tokshard.storage import syscalls
from tokshard.storage.digest import identity_digest
from tokshard.storage.files import write_atomically
from tokshard.storage.fs import refuse_remote, relative_inside
from tokshard.storage.paths import check_plain_name, is_remote
from tokshard.storage.publication import remove_temporary_files
from tokshard.storage.reading import read_document

_LOCK_NAME = ".blend.lock"

HASH = "[0-9a-f]{32}"


class CacheEntryNames(Record):
    """The names of the files of a cache entry, by the path prefix ``index`` that they share."""

    __slots__ = ()
    index: str

    @property
    def hash(self) -> str:
        """The hash in the names of the files."""
        return os.path.basename(self.index).partition("-")[0]

    @property
    def description(self) -> str:
        """The path of the description."""
        return f"{self.index}{DESCRIPTION_SUFFIX}"


@dataclass(frozen=True, slots=True)
class BlendSource(CacheEntryNames):
    """A source of a split, and its index.

    Attributes:
        prefix: Path prefix of the dataset.
        training_path: Path prefix as hashed.
        index: Prefix of the file names in the cache directory: ``INDEX-description.txt``,
            ``INDEX-document_index.npy``, ``INDEX-sample_index.npy`` and ``INDEX-shuffle_index.npy``. Its
            first 32 characters are the hash.
        samples: Samples of the index.
        draws: Samples that the blend reads: 0 to draws - 1.
        fingerprint: Fingerprint of the dataset when its index was built.
        tokenizer: Number of its tokenizer in ``tokenizers``.
        packing: Packing of its documents. Absent if they are concatenated.
    """

    prefix: str
    training_path: str
    index: Annotated[str, Bounds(pattern=f"(?:.*/)?{HASH}-GPTDataset-(?:train|valid|test)")]
    samples: Count
    draws: Count
    fingerprint: DatasetFingerprint
    tokenizer: Count
    packing: Packing | None = None

    @property
    def document_index(self) -> str:
        """The path of its document index."""
        return f"{self.index}-document_index.npy"

    @property
    def sample_index(self) -> str:
        """The path of its sample index."""
        return f"{self.index}-sample_index.npy"

    @property
    def shuffle_index(self) -> str:
        """The path of its shuffle index."""
        return f"{self.index}-shuffle_index.npy"


@dataclass(frozen=True, slots=True)
class BlendOrderFiles(CacheEntryNames):
    """The order of a blended split, in files that share a prefix.

    Attributes:
        index: Prefix of the file names in the cache directory: ``INDEX-description.txt``,
            ``INDEX-dataset_index.npy`` and ``INDEX-dataset_sample_index.npy``. Its first 32 characters are
            the hash.
        weights: Weights as hashed: normalized, or the samples of each source in an exhaustive blend.
        size: Size as hashed. Null in an exhaustive blend.
    """

    index: Annotated[str, Bounds(pattern=f"(?:.*/)?{HASH}-BlendedDataset-(?:train|valid|test)")]
    weights: tuple[float, ...]
    size: Count | None

    @property
    def dataset_index(self) -> str:
        """The path of the dataset index."""
        return f"{self.index}-dataset_index.npy"

    @property
    def dataset_sample_index(self) -> str:
        """The path of the dataset sample index."""
        return f"{self.index}-dataset_sample_index.npy"


@dataclass(frozen=True, slots=True)
class BlendSplit(Record):
    """A split, or one of several validation sets.

    Raises:
        UsageError: The fields contradict each other.

    Attributes:
        split: Split of the datasets that the samples are from.
        kind: ``single``: sample k is sample k of the one source. All others have an order: ``weighted``,
            ``proportional`` or ``exhaustive``.
        samples: Number of samples.
        order: Order of the blend. Null for ``single``.
        sources: Sources, in the order of their numbers.
        certificate: Values counted from the index files.
    """

    split: Literal["train", "valid", "test"]
    kind: Kind
    samples: Count
    order: BlendOrderFiles | None
    sources: tuple[BlendSource, ...]
    certificate: Certificate

    def _validate(self) -> None:
        if (self.kind == "single") != (self.order is None):
            raise UsageError(f"kind {self.kind} contradicts order")
        if self.order is not None and len(self.order.weights) != len(self.sources):
            raise UsageError("weights must have one number for each source")
        if not self.sources or len(self.certificate.sources) != len(self.sources):
            raise UsageError("the certificate must list the same sources")
        if sum(source.draws for source in self.sources) != self.samples:
            raise UsageError(f"samples must be the sum of the draws, got {self.samples}")
        for files in (self.order, *self.sources):
            if files is not None and not files.index.endswith(f"-{self.split}"):
                raise UsageError(f"index must be of the split {self.split}, got {files.index!r}")

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of the samples that is asked of each source; their sum is 1."""
        if self.order is None:
            return (1.0,)
        return shares_of(self.order.weights, self.order.size)


@dataclass(frozen=True, slots=True)
class BlendTokenizers:
    """The tokenizers of a blend.

    Attributes:
        datasets: The different tokenizers of the datasets.
        job: The tokenizer of the job, if it could be read.
        mismatches: The mismatches that were allowed.
    """

    datasets: tuple[DatasetTokenizer, ...]
    job: TokenizerIdentity | None
    mismatches: tuple[TokenizerMismatch, ...]


@dataclass(frozen=True, slots=True)
class BlendDocument(Document):
    """The content of ``blend.json``.

    In memory all paths are as they can be opened; in the file, paths inside its directory are relative
    to it, and index files are named without the cache directory.

    Attributes:
        tool: Program that wrote the blend.
        id: SHA-256 of the builder's parameters, and of the hashes, draws and fingerprints of all splits.
            Independent of directories.
        recipe: Recipe, as given.
        resolved: Weights passed to Megatron, one entry for all splits or one each for train, valid and test.
            Null for a split without sources.
        builder: Parameters of Megatron's dataset builder.
        cache_directory: Directory of the index files: Megatron's ``--data-cache-path``.
        splits: Splits, named ``train``, ``valid`` (or ``valid.0``, ``valid.1``, ...) and ``test``. Splits
            without data are left out.
        tokenizers: Different tokenizers of the datasets.
        job_tokenizer: Tokenizer of the job. Absent if it could not be read.
        tokenizer_mismatches: Mismatches that ``--allow-tokenizer-mismatch`` allowed. Absent if there are
            none.
    """

    SCHEMA = "tokshard.blend/2"
    OLDER_HINT = "build it again with the same tokshard blend command"

    tool: Tool
    id: Sha256
    recipe: BlendRecipe
    resolved: tuple[BlendWeights | None, ...]
    builder: BuilderConfig
    cache_directory: str
    splits: dict[str, BlendSplit]
    tokenizers: tuple[DatasetTokenizer, ...]
    job_tokenizer: TokenizerIdentity | None = None
    tokenizer_mismatches: tuple[TokenizerMismatch, ...] | None = None

    def __repr__(self) -> str:
        splits = ", ".join(
            f"{name}: {counted(split.samples, 'sample')} of {counted(len(split.sources), 'dataset')}"
            for name, split in self.splits.items()
        )
        return f"BlendDocument({self.id[:12]}, {splits})"

    def _validate(self) -> None:
        for name, split in self.splits.items():
            if name.partition(".")[0] != split.split:
                raise UsageError(f"splits.{name} has the wrong split {split.split}")
            for source in split.sources:
                if source.tokenizer >= len(self.tokenizers):
                    raise UsageError(f"splits.{name}: tokenizer of {source.prefix} contradicts tokenizers")

    @classmethod
    def of(
        cls,
        cache_directory: str,
        recipe: BlendRecipe,
        resolved: tuple[BlendWeights | None, ...],
        builder: BuilderConfig,
        splits: dict[str, BlendSplit],
        tokenizers: BlendTokenizers,
    ) -> BlendDocument:
        """Return the document of a blend that was built."""
        return cls(
            tool=TOOL,
            id=_identity(builder, splits),
            recipe=recipe,
            resolved=resolved,
            builder=builder,
            cache_directory=cache_directory,
            splits=splits,
            tokenizers=tokenizers.datasets,
            job_tokenizer=tokenizers.job,
            tokenizer_mismatches=tokenizers.mismatches or None,
        )

    def is_of(self, plan: BlendPlan) -> bool:
        """Return whether a plan has the same orders and draws; the content of datasets is not compared."""
        built = {
            name: (
                split.order and split.order.hash,
                [(each.hash, each.draws, each.packing) for each in split.sources],
            )
            for name, split in self.splits.items()
        }
        planned = {}
        for split in plan.splits:
            order = split.description()
            draws = [
                (request.description().hash(), source.draws, request.packing)
                for request, source in zip(split.requests, split.sources, strict=True)
            ]
            planned[split.name] = (None if order is None else order.hash(), draws)
        return built == planned

    def tokenizer_of(self, source: BlendSource) -> DatasetTokenizer:
        """Return the tokenizer of a source."""
        return self.tokenizers[source.tokenizer]

    def mismatches_of_job(
        self, tokenizers: Mapping[str, DatasetTokenizer], path: str
    ) -> tuple[TokenizerMismatch, ...]:
        """Return the mismatches of the job with datasets whose tokenizer has become known since.

        All others were compared when the blend was built.

        Args:
            tokenizers: The tokenizers that datasets have now, by path prefix.
            path: The path of the document, for messages.
        """
        if self.job_tokenizer is None:
            return ()
        unknown = {
            source.prefix
            for split in self.splits.values()
            for source in split.sources
            if self.tokenizer_of(source).identity is None
        }
        known = [(prefix, tokenizer) for prefix, tokenizer in tokenizers.items() if prefix in unknown]
        job = JobTokenizer(f"of {path}", self.job_tokenizer)
        return tuple(found for found in agree(known, job).mismatches if not found.first.count)

    @property
    def sequence_length(self) -> int:
        """The tokens of a sample, without the extra one."""
        return self.builder.sequence_length

    @property
    def seed(self) -> int:
        """The seed of all shuffles."""
        return self.builder.seed

    @property
    def extra_token(self) -> bool:
        """True if a sample has one more token, so that each token has the next one as its label."""
        return self.builder.extra_token

    def write(self, directory: str, *, replace: bool = True) -> None:
        """Write the document into a directory, atomically.

        Raises:
            OutputExistsError: The file exists, and ``replace`` is False.
            UsageError: It is too large to be read back.
            StorageError: The disk is full or broken.
        """
        path = os.path.join(directory, BLEND_NAME)
        stored = _with_paths(self, lambda path: relative_inside(path, directory), os.path.basename)
        hint = "merge some of the sources with tokshard merge, or use shorter paths"
        content = dump_readable_json(stored.to_json(), path, hint=hint)
        syscalls.make_directory(directory)
        write_atomically(path, content, replace=replace)

    @classmethod
    def read(cls, path: str) -> BlendDocument:
        """Read a document strictly.

        Args:
            path: The document, or its directory.

        Raises:
            UsageError: It is named by a URL.
            MissingFileError: There is none.
            IntegrityError: It is damaged, or of another version.
        """
        refuse_remote(path, "a blend must be a local file")
        path = document_path(path)
        try:
            stored = read_document(cls, path)
        except (FileNotFoundError, NotADirectoryError):
            raise MissingFileError(
                f"blend not found: {path}", path=path, hint="build it with tokshard blend"
            ) from None
        if _identity(stored.builder, stored.splits) != stored.id:
            raise IntegrityError(
                f"{path}: id contradicts the other fields: the document was changed", path=path, field="id"
            )
        directory = os.path.dirname(path)

        def opened(place: str) -> str:
            if "\0" in place:
                raise IntegrityError(f"{path}: a path contains a NUL character", path=path)
            return place if is_remote(place) else os.path.normpath(os.path.join(directory, place))

        cache = opened(stored.cache_directory)
        return _with_paths(stored, opened, lambda name: os.path.join(cache, check_plain_name(name, path)))


def document_path(path: str) -> str:
    """Return the path of a document that is named by its path or by its directory."""
    return os.path.join(path, BLEND_NAME) if os.path.isdir(path) else path


@contextmanager
def writing(directory: str) -> Iterator[None]:
    """Hold a directory while its document is checked and written; wait while another process does.

    What a killed process has left of a document is removed.

    Raises:
        LockedError: The other process was not done in time.
        StorageError: The file system has no locks, or refuses.
    """
    syscalls.make_directory(directory)
    with locked(os.path.join(directory, _LOCK_NAME)):
        remove_temporary_files(directory, f"{BLEND_NAME}.")
        yield


def _with_paths(
    document: BlendDocument, data: Callable[[str], str], index: Callable[[str], str]
) -> BlendDocument:
    splits = {
        name: replace(
            split,
            order=split.order and replace(split.order, index=index(split.order.index)),
            sources=tuple(
                replace(source, prefix=data(source.prefix), index=index(source.index))
                for source in split.sources
            ),
        )
        for name, split in document.splits.items()
    }
    return replace(document, cache_directory=data(document.cache_directory), splits=splits)


def _identity(builder: BuilderConfig, splits: Mapping[str, BlendSplit]) -> str:
    # The hashes cover weights, sizes and the names of the datasets.
    parameters = encode(builder)
    del parameters["path_as"]
    described = {
        name: {
            "kind": split.kind,
            "samples": split.samples,
            "hash": None if split.order is None else split.order.hash,
            "sources": [
                {
                    "hash": source.hash,
                    "samples": source.samples,
                    "draws": source.draws,
                    "fingerprint": encode(source.fingerprint),
                    **({} if source.packing is None else {"packing": encode(source.packing)}),
                }
                for source in split.sources
            ],
        }
        for name, split in splits.items()
    }
    return identity_digest({"builder": parameters, "splits": described})
