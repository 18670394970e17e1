"""Kinds of products: what each answers to inspect, verify, trace and diff.

A new kind is one class here, and its name and the names of its files in ``dataset/products.py``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import ClassVar

from tokshard.checks.diff.options import DiffOptions
from tokshard.checks.diff.orders import diff_blends, diff_caches
from tokshard.checks.diff.plans import diff_plans
from tokshard.checks.diff.report import ComparedKind, DiffReport
from tokshard.checks.inspect import blend_facts, facts, index_facts, plan_facts
from tokshard.checks.inspect.datasets import (
    DatasetSummary,
    DocumentSummary,
    TokenizerSummary,
    inspect_dataset,
    inspect_document,
    inspect_tokenizer,
    tokenizer_of,
)
from tokshard.checks.inspect.frequencies import count_tokens
from tokshard.checks.inspect.indexes import (
    CacheSummary,
    IndexSummary,
    entries_in,
    entries_of,
    inspect_cache,
    inspect_index,
)
from tokshard.checks.inspect.options import InspectOptions
from tokshard.checks.inspect.plans import (
    PlanSampleSummary,
    PlanSummary,
    RankSummary,
    inspect_rank,
    inspect_sample,
)
from tokshard.checks.trace.options import TraceOptions
from tokshard.checks.trace.traced_data import TracedData, open_dataset, open_plan, open_samples
from tokshard.checks.verify import blend, plan
from tokshard.checks.verify.cache import dataset_of, verify_entry
from tokshard.checks.verify.context import VerifyContext, attempt
from tokshard.checks.verify.dataset import verify_dataset
from tokshard.checks.verify.export import verify_export
from tokshard.checks.verify.report import VerifiedProduct
from tokshard.core.presentation import Section
from tokshard.dataset.layout import MAGIC
from tokshard.dataset.products import (
    BLEND_NAME,
    DESCRIPTION_SUFFIX,
    PLAN_NAME,
    RANK_NAME,
    Kind,
    description_of,
    is_export,
    recognize,
)
from tokshard.dataset.reader import IndexedDataset
from tokshard.errors import InputError, TokshardError
from tokshard.exchange.manifest import manifest_path
from tokshard.ranks.manifests import read_rank
from tokshard.ranks.plan import Plan, read_plan
from tokshard.samples.blend.document import BlendDocument, document_path
from tokshard.samples.index.entry import CacheEntry
from tokshard.storage import fs
from tokshard.storage.paths import (
    BIN_SUFFIX,
    IDX_SUFFIX,
    SIDECAR_SUFFIX,
    bin_path,
    idx_path,
    sidecar_directory,
    strip_data_suffix,
)
from tokshard.storage.reading import open_file

Summary = (
    DatasetSummary
    | DocumentSummary
    | TokenizerSummary
    | CacheSummary
    | IndexSummary
    | BlendDocument
    | PlanSummary
    | PlanSampleSummary
    | RankSummary
)

VERIFIED_HINT = (
    "pass a dataset, an index cache or one of its files, a blend, a plan, a rank manifest, or an export"
)


class Product:
    """A product at a path. A kind refuses what it cannot answer with an InputError.

    Attributes:
        kind: The kind, as :func:`~tokshard.dataset.products.kind_of` names it.
        noun: The kind in messages.
        inspected_as: The kind of products whose parts inspect shows; None if it has none.
        compared_as: The kind of products that diff compares it with; None if it cannot be compared.
        file: The file that is the same for all paths of one product.
    """

    kind: ClassVar[Kind]
    noun: ClassVar[str]
    inspected_as: ClassVar[Kind | None] = None
    compared_as: ClassVar[ComparedKind | None] = None

    def __init__(self, path: str) -> None:
        self.path = self.file = path

    @classmethod
    def found_in(cls, directory: str, below: list[str], names: list[str]) -> Iterator[Product]:
        """Yield the products of this kind in a directory, given its directories and its files, sorted."""
        return iter(())

    @property
    def is_complete(self) -> bool:
        """False if a product that reads this one may know more about it."""
        return True

    def parts(self) -> Iterator[Product]:
        """Yield the products that verify reports for this path.

        Raises:
            InputError: It cannot be verified, or not be listed.
        """
        yield self

    def children(self) -> Iterator[Product]:
        """Yield the products that it reads."""
        return iter(())

    def summary(self, options: InspectOptions) -> Summary:
        """Return what ``inspect --json`` prints."""
        raise self._refusal("inspect")

    def sections(self, options: InspectOptions, counted_tokens: int | None = None) -> list[Section]:
        """Return what ``inspect`` shows; with ``counted_tokens`` also the frequencies of so many tokens."""
        raise self._refusal("inspect")

    def expected_bytes(self, context: VerifyContext) -> int:
        """Return about how many bytes :meth:`check` reads."""
        return 0

    def check(self, context: VerifyContext) -> VerifiedProduct:
        """Return the findings about it."""
        raise self._refusal("verify")

    def streams(self, options: TraceOptions) -> TracedData:
        """Return its samples and datasets to trace through."""
        raise self._refusal("trace")

    def compare(self, other: Product, options: DiffOptions | None) -> DiffReport:
        """Return the differences from another product with the same :attr:`compared_as`."""
        raise self._refusal("compare")

    @property
    def described(self) -> str:
        """The kind with its article."""
        return f"{'an' if self.noun[0] in 'aeiou' else 'a'} {self.noun}"

    def _refusal(self, verb: str) -> InputError:
        return InputError(f"cannot {verb} {self.path}: it is {self.described}", hint=self._hint)

    @property
    def _hint(self) -> str | None:
        """A hint for requests that are refused."""
        return None


class StoredDataset(Product):
    """A dataset, named by its path prefix or by one of its files."""

    kind = "dataset"
    noun = "indexed dataset"
    inspected_as = "dataset"

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.prefix = strip_data_suffix(path)
        self.file = idx_path(self.prefix)

    @classmethod
    def found_in(cls, directory: str, below: list[str], names: list[str]) -> Iterator[Product]:
        for name in below:
            if name.endswith(SIDECAR_SUFFIX) and name != SIDECAR_SUFFIX:
                yield cls(os.path.join(directory, name))
        pairs = {name.removesuffix(BIN_SUFFIX) for name in names if name.endswith(BIN_SUFFIX)}
        for name in names:
            if name.endswith(IDX_SUFFIX) and name != IDX_SUFFIX:
                path = os.path.join(directory, name)
                # A lone .idx is a dataset only if it begins as one: git has files of this name.
                if name.removesuffix(IDX_SUFFIX) in pairs or _begins_as_index(path):
                    yield cls(path)

    def summary(self, options: InspectOptions) -> DatasetSummary | DocumentSummary:
        multimodal, tokenizer = options.multimodal, options.tokenizer
        if options.document is None:
            return inspect_dataset(self.prefix, multimodal=multimodal)
        return inspect_document(self.prefix, options.document, tokenizer=tokenizer, multimodal=multimodal)

    def sections(self, options: InspectOptions, counted_tokens: int | None = None) -> list[Section]:
        summary = self.summary(options)
        if isinstance(summary, DocumentSummary):
            return facts.describe_document(summary)
        if counted_tokens is None:
            return facts.describe_dataset(summary)
        identity = summary.manifest.tokenizer if summary.manifest is not None else None
        frequencies = count_tokens(
            IndexedDataset(self.prefix, summary.multimodal),
            limit=counted_tokens,
            tokenizer=tokenizer_of(self.prefix, options.tokenizer),
            vocabulary=identity.vocab_size if identity is not None else None,
        )
        return facts.describe_dataset(summary, frequencies)

    def expected_bytes(self, context: VerifyContext) -> int:
        index, tokens = _size(self.file), _size(bin_path(self.prefix))
        total = index
        if context.reaches("digest"):
            total += index + _sizes_in(sidecar_directory(self.prefix)) + context.part_of(tokens)
        return total + tokens if context.reaches("deep") else total

    def check(self, context: VerifyContext) -> VerifiedProduct:
        return verify_dataset(self.prefix, context)

    def streams(self, options: TraceOptions) -> TracedData:
        if options.sample is None and options.split is None:
            return open_dataset(self.path)
        return open_samples(self.path, "index", options)  # those of its default cache


class StoredIndex(Product):
    """An entry of an index cache: the index of a dataset or the order of a blend.

    Attributes:
        entry: Its files.
        prefix: The path prefix of its dataset, if a blend or a plan names it.
    """

    kind = "index"
    noun = "cached index"
    compared_as = "cache"

    def __init__(self, path: str, prefix: str | None = None) -> None:
        super().__init__(path)
        self.file = description_of(path) or path
        self.entry = CacheEntry(self.file.removesuffix(DESCRIPTION_SUFFIX))
        self.prefix = prefix

    @property
    def is_complete(self) -> bool:
        return self.prefix is not None

    def children(self) -> Iterator[Product]:
        prefix = self.prefix or dataset_of(self.entry)
        return _existing([] if prefix is None else [prefix])

    def summary(self, options: InspectOptions) -> IndexSummary:
        return inspect_index(self.file)

    def sections(self, options: InspectOptions, counted_tokens: int | None = None) -> list[Section]:
        return index_facts.describe_index(self.summary(options))

    def expected_bytes(self, context: VerifyContext) -> int:
        sizes = map(_size, map(self.entry.array_path, self.entry.arrays))
        return context.part_of(sum(sizes)) if context.reaches("digest") else 0

    def check(self, context: VerifyContext) -> VerifiedProduct:
        return verify_entry(self.entry, self.prefix, context)

    def streams(self, options: TraceOptions) -> TracedData:
        return open_samples(self.path, "index", options)

    def compare(self, other: Product, options: DiffOptions | None) -> DiffReport:
        return diff_caches(self.file, other.file)


class StoredCache(Product):
    """A directory of indexes, which verify reports one by one."""

    kind = "cache"
    noun = "index cache"
    compared_as = "cache"

    @classmethod
    def found_in(cls, directory: str, below: list[str], names: list[str]) -> Iterator[Product]:
        # The order of a re-weighted blend, which is next to its plan, is no entry of a cache.
        if PLAN_NAME not in names and entries_of(directory, names):
            yield cls(directory)

    def parts(self) -> Iterator[Product]:
        for entry in entries_in(self.path.rstrip("/") or "/"):
            yield StoredIndex(entry.description_path)

    def children(self) -> Iterator[Product]:
        return self.parts()

    def summary(self, options: InspectOptions) -> CacheSummary:
        return inspect_cache(self.path)

    def sections(self, options: InspectOptions, counted_tokens: int | None = None) -> list[Section]:
        return index_facts.describe_cache(self.summary(options))

    def streams(self, options: TraceOptions) -> TracedData:
        return open_samples(self.path, "index", options)

    def compare(self, other: Product, options: DiffOptions | None) -> DiffReport:
        return diff_caches(self.file, other.file)


class StoredBlend(Product):
    """A blend; verify reports its indexes with it."""

    kind = "blend"
    noun = "blend"
    compared_as = "blend"

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.file = document_path(path)

    @classmethod
    def found_in(cls, directory: str, below: list[str], names: list[str]) -> Iterator[Product]:
        if BLEND_NAME in names:
            yield cls(os.path.join(directory, BLEND_NAME))

    @cached_property
    def _document(self) -> BlendDocument | TokshardError:
        return attempt(BlendDocument.read, self.file)

    def _indexes(self) -> Iterator[Product]:
        if isinstance(self._document, BlendDocument):
            for split in self._document.splits.values():
                for source in split.sources:
                    yield StoredIndex(source.index.description_path, source.path_prefix)
                if split.order is not None:
                    yield StoredIndex(split.order.description_path)

    def parts(self) -> Iterator[Product]:
        yield self
        yield from self._indexes()

    def children(self) -> Iterator[Product]:
        yield from self._indexes()
        if isinstance(self._document, BlendDocument):
            for split in self._document.splits.values():
                yield from _existing(source.path_prefix for source in split.sources)

    def summary(self, options: InspectOptions) -> BlendDocument:
        return BlendDocument.read(self.path)

    def sections(self, options: InspectOptions, counted_tokens: int | None = None) -> list[Section]:
        return blend_facts.describe_blend(BlendDocument.read(self.path), self.file)

    def check(self, context: VerifyContext) -> VerifiedProduct:
        return blend.verify_blend(self.file, self._document, context)

    def streams(self, options: TraceOptions) -> TracedData:
        return open_samples(self.path, "blend", options)

    def compare(self, other: Product, options: DiffOptions | None) -> DiffReport:
        return diff_blends(BlendDocument.read(self.path), BlendDocument.read(other.path))


class StoredPlan(Product):
    """A plan with the manifests of its ranks.

    Attributes:
        plan_path: The path to read the plan from.
    """

    kind: ClassVar[Kind] = "plan"
    noun = "shard plan"
    inspected_as = "plan"
    compared_as = "plan"

    def __init__(self, path: str) -> None:
        super().__init__(path)
        # Two directories are two plans, even if one links to the document of the other.
        self.file = path if os.path.isdir(path) else os.path.dirname(path)
        self.plan_path = path

    @classmethod
    def found_in(cls, directory: str, below: list[str], names: list[str]) -> Iterator[Product]:
        if PLAN_NAME in names or any(map(RANK_NAME.fullmatch, names)):
            yield cls(directory)

    @property
    def plan_file(self) -> str:
        """The document of the plan."""
        return os.path.join(self.plan_path, PLAN_NAME) if os.path.isdir(self.plan_path) else self.plan_path

    @cached_property
    def _reading(self) -> plan.PlanReading:
        return fs.state(self.plan_file), attempt(read_plan, self.plan_file)

    def children(self) -> Iterator[Product]:
        _, document = self._reading
        if not isinstance(document, Plan):
            return
        for name, stream in document.streams.items():
            for dataset in stream.source.datasets:
                yield from _existing([dataset.path_prefix])
                if dataset.index is not None:
                    yield StoredIndex(dataset.index.path_prefix + DESCRIPTION_SUFFIX, dataset.path_prefix)
            order = stream.source.order
            if order is not None and document.reweighting_of(name) is None:
                yield StoredIndex(order.path_prefix + DESCRIPTION_SUFFIX)

    def summary(self, options: InspectOptions) -> PlanSummary | PlanSampleSummary | RankSummary:
        if not self._is_part_asked(options):
            return PlanSummary.of(read_plan(self.plan_path, roots=dict(options.moved)))
        return self._part(options)

    def sections(self, options: InspectOptions, counted_tokens: int | None = None) -> list[Section]:
        if not self._is_part_asked(options):
            return plan_facts.describe_plan(read_plan(self.plan_path, roots=dict(options.moved)))
        summary = self._part(options)
        if isinstance(summary, RankSummary):
            plan_of_rank, _ = read_rank(self.path, options.rank, roots=dict(options.moved))
            return plan_facts.describe_rank(plan_of_rank, summary)
        return plan_facts.describe_places(summary.stream, summary.places)

    def _is_part_asked(self, options: InspectOptions) -> bool:
        return self.kind == "rank" or options.shows_part

    def _part(self, options: InspectOptions) -> PlanSampleSummary | RankSummary:
        """Return what a rank reads, or where a sample is read."""
        stream = options.stream
        if options.sample is None and options.dataset_sample is None:
            return inspect_rank(
                self.path,
                options.rank,
                stream=stream,
                step=options.step,
                index=options.index,
                roots=dict(options.moved),
            )
        numbers = None if options.dataset_sample is None else options.dataset_sample_numbers()
        return inspect_sample(
            self.plan_path,
            stream=stream,
            sample=options.sample,
            dataset_sample=numbers,
            epoch=options.epoch,
            roots=dict(options.moved),
        )

    def check(self, context: VerifyContext) -> VerifiedProduct:
        return plan.verify_plan(self.plan_file, self._reading, context)

    def streams(self, options: TraceOptions) -> TracedData:
        return open_plan(self.plan_path, options.rank, options.moved)

    def compare(self, other: Product, options: DiffOptions | None) -> DiffReport:
        assert isinstance(other, StoredPlan)  # noqa: S101 - products are compared with those of their kind
        return diff_plans(read_plan(self.plan_path), read_plan(other.plan_path), options)


class StoredRank(StoredPlan):
    """The manifest of one rank of a plan."""

    kind = "rank"
    noun = "rank of a shard plan"

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.file = path
        self.plan_path = os.path.dirname(path) or "."

    @classmethod
    def found_in(cls, directory: str, below: list[str], names: list[str]) -> Iterator[Product]:
        return iter(())  # its plan is found

    def streams(self, options: TraceOptions) -> TracedData:
        _, rank = read_rank(self.path, options.rank)
        return open_plan(self.plan_path, rank, options.moved)

    def check(self, context: VerifyContext) -> VerifiedProduct:
        return plan.verify_rank(self.path, self.plan_file, self._reading, context)


class StoredExport(Product):
    """An export; its datasets are compared if they are found, but not verified."""

    kind = "export"
    noun = "export"

    @classmethod
    def found_in(cls, directory: str, below: list[str], names: list[str]) -> Iterator[Product]:
        if is_export(directory):
            yield cls(directory)

    def expected_bytes(self, context: VerifyContext) -> int:
        return context.part_of(_sizes_in(self.path)) if context.reaches("digest") else 0

    def check(self, context: VerifyContext) -> VerifiedProduct:
        return verify_export(self.path, context)

    @property
    def _hint(self) -> str:
        return f"run tokshard verify {self.path}, or read {manifest_path(self.path)}"


class StoredTokenizer(Product):
    """A tokenizer: its definition, its directory or its name."""

    kind = "tokenizer"
    noun = "tokenizer"

    def parts(self) -> Iterator[Product]:
        raise InputError(f"cannot verify {self.path}: it is not a tokshard product", hint=VERIFIED_HINT)

    def summary(self, options: InspectOptions) -> TokenizerSummary:
        return inspect_tokenizer(self.path)

    def sections(self, options: InspectOptions, counted_tokens: int | None = None) -> list[Section]:
        return facts.describe_tokenizer(self.summary(options))


PRODUCTS: dict[Kind, type[Product]] = {
    product.kind: product
    for product in (
        StoredDataset,
        StoredIndex,
        StoredBlend,
        StoredPlan,
        StoredExport,
        StoredRank,
        StoredCache,
        StoredTokenizer,
    )
}
"""The class of each kind, in the order of the reports of verify."""


def open_product(path: str) -> Product:
    """Return the product that a path names; its files are read when a method needs them.

    Raises:
        InputError, UsageError, StorageError: See :func:`~tokshard.dataset.products.recognize`.
    """
    return PRODUCTS[recognize(path)](path)


def _existing(prefixes: Iterable[str]) -> Iterator[Product]:
    # A dataset with no file at all is reported as missing where it is named.
    for prefix in prefixes:
        if fs.lexists(idx_path(prefix)) or fs.lexists(bin_path(prefix)):
            yield StoredDataset(idx_path(prefix))


def _begins_as_index(path: str) -> bool:
    try:
        with open_file(path) as file:
            return file.read(len(MAGIC)) == MAGIC
    except (OSError, InputError):
        return False


def _sizes_in(directory: str) -> int:
    try:
        return sum(_size(os.path.join(directory, name)) for name in os.listdir(directory))
    except OSError:
        return 0


def _size(path: str) -> int:
    try:
        return fs.getsize(path)
    except OSError:
        return 0
