"""Verification of products by path."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from tokshard.checks.products import PRODUCTS, VERIFIED_HINT, Product, StoredDataset, open_product
from tokshard.checks.verify.context import CountingRunner, VerifyContext
from tokshard.checks.verify.options import VerifyOptions
from tokshard.checks.verify.report import VerifyReport
from tokshard.core.progress import Progress, reporting
from tokshard.dataset.manifest import manifest_path
from tokshard.errors import InputError, StorageError, UsageError
from tokshard.storage import fs
from tokshard.storage.lock import lock_mode
from tokshard.storage.paths import SIDECAR_SUFFIX, sidecar_directory, strip_data_suffix
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
        products = _products_of(path, recursive=options.recursive)
        if options.adopt and not any(product.kind == "dataset" for product in products):
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
        listener.start("verifying", sum(product.expected_bytes(context) for product in products))
        reports = tuple(product.check(context) for product in products)
    return VerifyReport(
        path=path,
        level=context.level,
        subset_percent=None if context.share is None else float(context.share * 100),
        sound=all(report.sound for report in reports),
        bytes_read=context.runner.bytes_done,
        seconds=time.monotonic() - started,
        products=reports,
    )


def _products_of(path: str, *, recursive: bool) -> list[Product]:
    """Return the products to verify for a path, each once, in the order of their kinds.

    Args:
        path: The path.
        recursive: Whether to search everything below a directory, and to include what products read.

    Raises:
        UsageError: The directory is not a product, and ``recursive`` is not set.
        InputError: The path does not exist, or contains no product that can be verified.
    """
    found: dict[tuple[str, str], Product] = {}

    def keep(products: Iterator[Product]) -> None:
        for product in products:
            key = product.kind, fs.realpath(product.file)
            if key not in found or not found[key].is_complete:
                found[key] = product

    for product in _named(path, recursive=recursive):
        keep(product.parts())
        if recursive:
            keep(product.children())
    if not found and recursive and os.path.isdir(path):
        raise InputError(f"nothing to verify below {path}", hint=VERIFIED_HINT)
    if recursive:
        # The dataset of an index is known when all blends and plans that may name it have been read.
        for product in list(found.values()):
            keep(product.children())
    kinds = list(PRODUCTS)
    return sorted(found.values(), key=lambda product: kinds.index(product.kind))


def _named(path: str, *, recursive: bool) -> Iterator[Product]:
    """Yield the product at a path, or with ``recursive`` those below a directory."""
    prefix = strip_data_suffix(path)
    is_searched = recursive and os.path.isdir(path)
    if fs.lexists(manifest_path(prefix)) or fs.lexists(os.path.join(sidecar_directory(prefix), "work")):
        yield StoredDataset(path)
    elif not is_searched:
        yield _opened(path)
    if is_searched:
        yield from _products_below(path)


def _opened(path: str) -> Product:
    try:
        return open_product(path)
    except InputError:
        if os.path.isdir(path):
            raise UsageError(
                f"{path} is a directory, but not an index cache, a blend, a plan or an export",
                hint="pass --recursive to verify everything below it",
            ) from None
        raise


def _products_below(top: str) -> Iterator[Product]:
    """Yield the products in a directory and below it; links to directories are not followed."""
    for directory, below, names in os.walk(top, onerror=_raise_unreadable):
        below.sort()
        names.sort()
        for kind in PRODUCTS.values():
            yield from kind.found_in(directory, below, names)
        below[:] = [name for name in below if not name.endswith(SIDECAR_SUFFIX)]


def _raise_unreadable(error: OSError) -> None:
    raise StorageError("read", str(error.filename), error) from error
