"""Verification of products by path."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from tokshard.checks.verify import blend, plan
from tokshard.checks.verify.blend import verify_blend
from tokshard.checks.verify.cache import EntryToVerify, dataset_of, verify_entry
from tokshard.checks.verify.context import CountingRunner, VerifyContext
from tokshard.checks.verify.dataset import verify_dataset
from tokshard.checks.verify.export import verify_export
from tokshard.checks.verify.options import VerifyOptions
from tokshard.checks.verify.plan import verify_plan, verify_rank
from tokshard.checks.verify.report import ProductFindings, ProductKind, VerifiedProduct, VerifyReport
from tokshard.core.progress import Progress, reporting
from tokshard.dataset.layout import MAGIC
from tokshard.dataset.manifest import manifest_path
from tokshard.dataset.products import BLEND_NAME, PLAN_NAME, RANK_NAME, Product, is_export, recognize
from tokshard.errors import InputError, StorageError, TokshardError, UsageError
from tokshard.samples.index.entry import CacheEntry, entries_in, entries_of
from tokshard.storage import fs
from tokshard.storage.lock import lock_mode
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
from tokshard.text.tokenizer.definition import load_tokenizer


def verify(
    options: str | os.PathLike[str] | VerifyOptions, *, progress: Progress | None = None
) -> VerifyReport:
    """Verify a product against its recorded digests; every difference is a finding.

    Args:
        options: The options, or a path.
        progress: Receives the bytes that were read.

    Raises:
        UsageError: An option does not apply to the product.
        InputError: The path does not exist, or is not a product that can be verified.
        TokenizerError: The tokenizer cannot be read.
        LockedError: Another process is writing a dataset to be adopted.
        StorageError: A manifest cannot be written.

    Example::

        report = tokshard.verify(VerifyOptions(path="data/web", level="structure"))
        for finding in report.findings:
            print(finding.code, finding.message)
    """
    started = time.monotonic()
    if not isinstance(options, VerifyOptions):
        options = VerifyOptions(path=options)
    path = os.fspath(options.path)
    if options.adopt:
        fs.refuse_remote(path, "--adopt requires a local dataset")
    with lock_mode(options.lock), reporting(progress) as listener:
        listener.start("listing files")
        found = find_products(path, recursive=options.recursive)
        if options.adopt and not found.datasets:
            raise UsageError(f"--adopt requires a dataset, got {path}")
        tokenizer = None
        if options.tokenizer is not None:
            listener.start("loading the tokenizer")
            tokenizer = load_tokenizer(options.tokenizer, need_eod=False)
        context = VerifyContext(
            level=options.level,
            runner=CountingRunner(options.workers, listener),
            share=options.share,
            tokenizer=tokenizer,
            adopt=options.adopt,
        )
        listener.start("verifying", _expected_bytes(found, context))
        products = tuple(_verified(found, context))
    return VerifyReport(
        path=path,
        level=context.level,
        subset_percent=None if context.share is None else float(context.share * 100),
        sound=all(product.sound for product in products),
        bytes_read=context.runner.bytes_done,
        seconds=time.monotonic() - started,
        products=products,
    )


def _verified(found: FoundProducts, context: VerifyContext) -> Iterator[VerifiedProduct]:
    for prefix in found.datasets.values():
        yield verify_dataset(prefix, context)
    sound_entries: set[str] = set()
    for path, entry in found.entries.items():
        product = verify_entry(entry, context)
        if product.sound:
            sound_entries.add(path)
        yield product
    for document in found.blends.values():
        yield _unread("blend", document, found) or verify_blend(document, context, sound_entries)
    for directory in found.plans.values():
        path = os.path.join(directory, PLAN_NAME)
        yield _unread("plan", path, found) or verify_plan(directory, context)
    for directory in found.exports.values():
        yield verify_export(directory, context)
    for manifest in found.ranks.values():
        yield _unread("rank", manifest, found) or verify_rank(manifest, context)


def _unread(kind: ProductKind, path: str, found: FoundProducts) -> VerifiedProduct | None:
    # Even if it can be read now, what it refers to was not found.
    error = found.unread.get(path)
    if error is None:
        return None
    findings = ProductFindings(kind, path)
    findings.find_error("blend-damaged" if kind == "blend" else "plan-damaged", error, path=path)
    return findings.close()


def _expected_bytes(found: FoundProducts, context: VerifyContext) -> int:
    share = 1 if context.share is None else context.share
    total = 0
    for prefix in found.datasets.values():
        index, tokens = _size(idx_path(prefix)), _size(bin_path(prefix))
        total += index
        if context.reaches("digest"):
            total += index + _sizes_in(sidecar_directory(prefix)) + int(tokens * share)
        if context.reaches("deep"):
            total += tokens
    if context.reaches("digest"):
        for wanted in found.entries.values():
            arrays = map(wanted.entry.array_path, wanted.entry.arrays)
            total += int(sum(map(_size, arrays)) * share)
        for directory in found.exports.values():
            total += int(_sizes_in(directory) * share)
    return total


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


_HINT = "pass a dataset, an index cache or one of its files, a blend, a plan, a rank manifest, or an export"


@dataclass(slots=True)
class FoundProducts:
    """The products to verify, each once.

    Attributes:
        datasets: The path prefixes of datasets.
        entries: Entries of caches.
        blends: Documents of blends, or their directories.
        plans: Directories of plans.
        ranks: Manifests of ranks.
        exports: Directories of exports.
        unread: Errors of the file system when blends, plans and manifests of ranks were read, by path.
    """

    datasets: dict[str, str] = field(default_factory=dict)
    entries: dict[str, EntryToVerify] = field(default_factory=dict)
    blends: dict[str, str] = field(default_factory=dict)
    plans: dict[str, str] = field(default_factory=dict)
    ranks: dict[str, str] = field(default_factory=dict)
    exports: dict[str, str] = field(default_factory=dict)
    unread: dict[str, StorageError] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """True if there are no products."""
        return not (self.datasets or self.entries or self.blends or self.plans or self.ranks or self.exports)

    def add_dataset(self, prefix: str) -> None:
        """Add a dataset."""
        self.datasets.setdefault(fs.realpath(idx_path(prefix)), prefix)

    def add_entry(self, wanted: EntryToVerify) -> None:
        """Add an entry of a cache; where its dataset is known, that is kept."""
        path = os.path.realpath(wanted.entry.description_path)
        known = self.entries.get(path)
        if known is None or known.prefix is None:
            self.entries[path] = wanted

    def add_blend(self, path: str, *, sources: bool) -> None:
        """Add a blend with its indexes, and with its datasets if these are wanted."""
        document = os.path.join(path, BLEND_NAME) if os.path.isdir(path) else path
        self.blends.setdefault(os.path.realpath(document), document)
        found = blend.read_document(document)
        if isinstance(found, TokshardError):
            self._add_unread(document, found)
            return
        for entry in blend.entries_of(found):
            self.add_entry(entry)
        for split in found.splits.values() if sources else ():
            self._add_existing([source.prefix for source in split.sources])

    def add_plan(self, path: str, *, sources: bool) -> None:
        """Add a plan, with its indexes and datasets if these are wanted."""
        directory = path if os.path.isdir(path) else os.path.dirname(path)
        self.plans.setdefault(os.path.realpath(directory), directory)
        if sources:
            self._add_sources_of_plan(directory, os.path.join(directory, PLAN_NAME))

    def add_export(self, directory: str) -> None:
        """Add an export."""
        self.exports.setdefault(os.path.realpath(directory), directory)

    def add_rank(self, path: str, *, sources: bool) -> None:
        """Add the manifest of a rank, with the indexes and datasets of its plan if these are wanted."""
        self.ranks.setdefault(os.path.realpath(path), path)
        if sources:
            self._add_sources_of_plan(os.path.dirname(path) or ".", path)

    def _add_sources_of_plan(self, directory: str, product: str) -> None:
        found = plan.read_document(directory)
        if isinstance(found, TokshardError):
            self._add_unread(product, found)
            return
        self._add_existing(plan.prefixes_of(found))
        for entry in plan.entries_of(found):
            self.add_entry(entry)

    def _add_unread(self, path: str, error: TokshardError) -> None:
        # Other errors are found again when the product is verified.
        if isinstance(error, StorageError):
            self.unread[path] = error

    def add_datasets_of_entries(self) -> None:
        """Add the datasets that the entries were built from."""
        for wanted in self.entries.values():
            prefix = dataset_of(wanted)
            if prefix is not None:
                self._add_existing([prefix])

    def _add_existing(self, prefixes: list[str]) -> None:
        # A dataset with no file at all is reported as missing where it is named.
        for prefix in prefixes:
            if fs.lexists(idx_path(prefix)) or fs.lexists(bin_path(prefix)):
                self.add_dataset(prefix)


def find_products(thing: str, *, recursive: bool) -> FoundProducts:
    """Find the products to verify.

    Args:
        thing: A path.
        recursive: Whether to search everything below a directory, and to include the datasets of indexes,
            blends and plans.

    Raises:
        UsageError: The directory is not a product, and ``recursive`` is not set.
        InputError: The path does not exist, or contains no product that can be verified.
    """
    found = FoundProducts()
    prefix = strip_data_suffix(thing)
    if fs.lexists(manifest_path(prefix)) or fs.lexists(os.path.join(sidecar_directory(prefix), "work")):
        found.add_dataset(prefix)
    elif not (recursive and os.path.isdir(thing)):
        _add(found, _recognized(thing), recursive=recursive)
    if recursive and os.path.isdir(thing):
        _walk(found, thing)
        if found.is_empty:
            raise InputError(f"nothing to verify below {thing}", hint=_HINT)
    if recursive:
        found.add_datasets_of_entries()
    return found


def _recognized(thing: str) -> Product:
    try:
        found = recognize(thing)
    except InputError:
        if os.path.isdir(thing):
            raise UsageError(
                f"{thing} is a directory, but not an index cache, a blend, a plan or an export",
                hint="pass --recursive to verify everything below it",
            ) from None
        raise
    if found.kind == "tokenizer":
        raise InputError(f"cannot verify {thing}: it is not a tokshard product", hint=_HINT)
    return found


def _add(found: FoundProducts, thing: Product, *, recursive: bool) -> None:
    match thing.kind:
        case "dataset":
            found.add_dataset(thing.path)
        case "cache":
            for entry in entries_in(thing.path.rstrip("/") or "/"):
                found.add_entry(EntryToVerify(entry))
        case "index":
            named = CacheEntry.of_file(thing.path)
            if named is not None:
                found.add_entry(EntryToVerify(named))
        case "blend":
            found.add_blend(thing.path, sources=recursive)
        case "plan":
            found.add_plan(thing.path, sources=recursive)
        case "rank":
            found.add_rank(thing.path, sources=recursive)
        case "export":
            found.add_export(thing.path)
        case _:
            raise InputError(f"cannot verify {thing.path}: it is not a tokshard product", hint=_HINT)


def _raise_unreadable(error: OSError) -> None:
    raise StorageError("read", str(error.filename), error) from error


def _walk(found: FoundProducts, top: str) -> None:
    # Links to directories are not followed.
    for directory, below, names in os.walk(top, onerror=_raise_unreadable):
        for name in sorted(below):
            if name.endswith(SIDECAR_SUFFIX) and name != SIDECAR_SUFFIX:
                found.add_dataset(os.path.join(directory, name.removesuffix(SIDECAR_SUFFIX)))
        if is_export(directory):
            found.add_export(directory)
        below[:] = sorted(name for name in below if not name.endswith(SIDECAR_SUFFIX))
        for prefix in _pairs(directory, names):
            found.add_dataset(prefix)
        if BLEND_NAME in names:
            found.add_blend(os.path.join(directory, BLEND_NAME), sources=True)
        if PLAN_NAME in names or any(RANK_NAME.fullmatch(name) for name in names):
            found.add_plan(directory, sources=True)
        for entry in entries_of(directory, names):
            found.add_entry(EntryToVerify(entry))


def _pairs(directory: str, names: list[str]) -> Iterator[str]:
    # A lone ``.idx`` is a dataset only if it begins as one (git has others).
    there = set(names)
    for name in sorted(there):
        if name.endswith(IDX_SUFFIX) and name != IDX_SUFFIX:
            stem = name.removesuffix(IDX_SUFFIX)
            path = os.path.join(directory, name)
            if stem + BIN_SUFFIX in there or _begins_as_index(path):
                yield os.path.join(directory, stem)


def _begins_as_index(path: str) -> bool:
    try:
        with open_file(path) as file:
            return file.read(len(MAGIC)) == MAGIC
    except (OSError, InputError):
        return False
