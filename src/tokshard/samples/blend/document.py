"""``blend.json``: a blend as it was built, with everything that a plan or a loader needs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from tokshard.core.codec import Document, Positive, Sha256, Tool, encode
from tokshard.core.formatting import counted
from tokshard.core.json_text import dump_readable_json, paused_garbage_collection
from tokshard.dataset.products import BLEND_NAME
from tokshard.dataset.recorded_tokenizers import DatasetTokenizer, TokenizerMismatch
from tokshard.dataset.tokenizer_agreement import JobTokenizer, agree
from tokshard.dataset.tokenizer_identity import TokenizerIdentity
from tokshard.errors import IntegrityError, MissingFileError, UsageError
from tokshard.samples.blend.certificate import Certificate
from tokshard.samples.blend.options import BuilderConfig
from tokshard.samples.blend.plan import BlendPlan
from tokshard.samples.blend.recipe import BlendRecipe
from tokshard.samples.blend.sources import BlendSource, BlendSplit, opened_path, with_paths
from tokshard.samples.blend.weights import BlendWeights
from tokshard.samples.index.build import locked
from tokshard.storage import syscalls
from tokshard.storage.digest import identity_digest
from tokshard.storage.files import write_atomically
from tokshard.storage.fs import refuse_remote, relative_inside
from tokshard.storage.publication import remove_temporary_files
from tokshard.storage.reading import read_json_object

_LOCK_NAME = ".blend.lock"


@dataclass(frozen=True, slots=True)
class BlendDocument(Document):
    """The content of ``blend.json``.

    In memory all paths are as they can be opened; in the file, paths inside its directory are relative
    to it.

    Attributes:
        tool: Program that wrote the blend.
        id: SHA-256 of the builder's parameters, and of the hashes, draws and fingerprints of all splits.
            Independent of directories.
        recipe: Recipe, with globs replaced by their datasets.
        resolved: Weights passed to Megatron, one entry for all splits or one each for train, valid and test.
            Null for a split without sources.
        builder: Parameters of Megatron's dataset builder.
        splits: Splits, named ``train``, ``valid`` (or ``valid.0``, ``valid.1``, ...) and ``test``. Splits
            without data are left out.
        certificates: Values counted from the files of each split.
        tokenizers: Different tokenizers of the datasets.
        job_tokenizer: Tokenizer of the job. Absent if it could not be read.
        tokenizer_mismatches: Mismatches that ``--allow-tokenizer-mismatch`` allowed. Absent if there are
            none.
        global_batch_size: Global batch size of the job at its end. Absent if no option told it.
    """

    SCHEMA = "tokshard.blend/2"
    OLDER_HINT = "build it again with the same tokshard blend command"

    tool: Tool
    id: Sha256
    recipe: BlendRecipe
    resolved: tuple[BlendWeights | None, ...]
    builder: BuilderConfig
    splits: dict[str, BlendSplit]
    certificates: dict[str, Certificate]
    tokenizers: tuple[DatasetTokenizer, ...]
    job_tokenizer: TokenizerIdentity | None = None
    tokenizer_mismatches: tuple[TokenizerMismatch, ...] | None = None
    global_batch_size: Positive | None = None

    def __repr__(self) -> str:
        splits = ", ".join(
            f"{name}: {counted(split.samples, 'sample')} of {counted(len(split.sources), 'dataset')}"
            for name, split in self.splits.items()
        )
        return f"BlendDocument({self.id[:12]}, {splits})"

    def _validate(self) -> None:
        if not self.splits or self.splits.keys() != self.certificates.keys():
            raise UsageError("certificates must have an entry for each split")
        for name, split in self.splits.items():
            if name.partition(".")[0] != split.split:
                raise UsageError(f"splits.{name} has the wrong split {split.split}")
            if len(self.certificates[name].sources) != len(split.sources):
                raise UsageError(f"certificates.{name} must list the sources of the split")
            for source in split.sources:
                if source.tokenizer >= len(self.tokenizers):
                    raise UsageError(
                        f"splits.{name}: tokenizer of {source.path_prefix} contradicts tokenizers"
                    )

    @property
    def cache_directory(self) -> str:
        """The directory of the index files: Megatron's ``--data-cache-path``."""
        first = next(iter(self.splits.values()))
        return os.path.dirname(first.sources[0].index.path_prefix)

    def is_of(self, plan: BlendPlan) -> bool:
        """Return whether a plan has the same orders and draws; the content of datasets is not compared."""
        built = {
            name: (
                split.order and split.order.hash,
                [(source.index.hash, source.draws, source.packing) for source in split.sources],
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
            planned[split.name] = (order and order.hash(), draws)
        return built == planned

    def tokenizer_of(self, source: BlendSource) -> DatasetTokenizer:
        """Return the tokenizer of a source."""
        return self.tokenizers[source.tokenizer]

    def mismatches_of_job(
        self, tokenizers: Mapping[str, DatasetTokenizer], path: str
    ) -> tuple[TokenizerMismatch, ...]:
        """Return the mismatches of the job with datasets whose tokenizer the blend does not record.

        All others were compared when the blend was built.

        Args:
            tokenizers: The tokenizers that datasets have now, by path prefix.
            path: The path of the document, for messages.
        """
        if self.job_tokenizer is None:
            return ()
        without_tokenizer = {
            source.path_prefix
            for split in self.splits.values()
            for source in split.sources
            if self.tokenizer_of(source).identity is None
        }
        compared = [(prefix, tokenizers[prefix]) for prefix in tokenizers if prefix in without_tokenizer]
        job = JobTokenizer(f"of {path}", self.job_tokenizer)
        mismatches = agree(compared, job).mismatches
        return tuple(mismatch for mismatch in mismatches if not mismatch.first.count)

    def write(self, directory: str, *, replace: bool = True) -> None:
        """Write the document into a directory, atomically.

        Raises:
            OutputExistsError: The file exists, and ``replace`` is False.
            UsageError: It is too large to be read back.
            StorageError: The disk is full or broken.
        """
        path = os.path.join(directory, BLEND_NAME)
        stored = with_paths(self.to_json(), lambda opened: relative_inside(opened, directory))
        hint = "merge some of the sources with tokshard merge, or use shorter paths"
        content = dump_readable_json(stored, path, hint=hint)
        syscalls.make_directory(directory)
        write_atomically(path, content, replace=replace)

    @classmethod
    def read(cls, path: str) -> BlendDocument:
        """Read a document strictly.

        Args:
            path: The document, or its directory.

        Raises:
            UsageError: It is named by a URL.
            MissingFileError: The file was not found.
            IntegrityError: It is damaged, or of another version.
        """
        refuse_remote(path, "a blend must be a local file")
        path = document_path(path)
        try:
            with paused_garbage_collection():
                stored = with_paths(read_json_object(path), lambda stored: opened_path(stored, path))
                document = cls.from_json(stored, path)
        except (FileNotFoundError, NotADirectoryError):
            raise MissingFileError(
                f"blend not found: {path}", path=path, hint="build it with tokshard blend"
            ) from None
        if identity(document.builder, document.splits) != document.id:
            raise IntegrityError(
                f"{path}: id contradicts the other fields: the document was changed", path=path, field="id"
            )
        return document


def document_path(path: str) -> str:
    """Return the path of a document that is named by its path or by its directory."""
    return os.path.join(path, BLEND_NAME) if os.path.isdir(path) else path


@contextmanager
def writing(directory: str) -> Iterator[None]:
    """Lock a directory while its document is checked and written; wait if another process has locked it.

    Temporary files of killed processes are removed.

    Raises:
        LockedError: The other process did not finish in time.
        StorageError: The file system has no locks, or refuses them.
    """
    syscalls.make_directory(directory)
    with locked(os.path.join(directory, _LOCK_NAME)):
        remove_temporary_files(directory, f"{BLEND_NAME}.")
        yield


def identity(builder: BuilderConfig, splits: Mapping[str, BlendSplit]) -> str:
    """Return the id of a blend."""
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
                    "hash": source.index.hash,
                    "samples": source.epochs.samples,
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
