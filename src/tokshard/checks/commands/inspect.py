"""Inspection of whatever a path names: its summary, its description, and its page."""

from __future__ import annotations

import os

from tokshard.checks.commands.verify import verify as verify_product
from tokshard.checks.inspect.frequencies import COUNTED_TOKENS
from tokshard.checks.inspect.options import InspectOptions
from tokshard.checks.inspect.page import MARK, page
from tokshard.checks.products import Product, Summary, open_product
from tokshard.checks.verify.options import Level, VerifyOptions
from tokshard.core.presentation import Section
from tokshard.core.progress import Progress, reporting
from tokshard.errors import InputError, OutputExistsError, StorageError, UsageError
from tokshard.storage.files import write_atomically
from tokshard.storage.reading import open_file


def inspect(options: str | os.PathLike[str] | InspectOptions, *, progress: Progress | None = None) -> Summary:
    """Summarize a dataset, document, tokenizer, index cache, cached index, blend, plan or rank.

    Args:
        options: The options, or just a path.
        progress: Receives the activity.

    Raises:
        InputError: The path names nothing that can be inspected.
        UsageError: An option does not fit the product, or the path names two products.
        IntegrityError: The product is damaged.
        StorageError: It cannot be read.

    Example::

        summary = tokshard.inspect("data/web")
        print(summary.tokens, summary.to_json())
    """
    options = _options(options)
    product = _opened(options)
    with reporting(progress) as listener:
        listener.start(f"reading the {product.noun}")
        return product.summary(options)


def describe_path(
    options: str | os.PathLike[str] | InspectOptions, *, progress: Progress | None = None
) -> list[Section]:
    """Return the description of what :func:`inspect` summarizes, as sections of facts, tables and charts.

    Args:
        options: The options, or just a path.
        progress: Receives the activity.

    Raises:
        InputError, UsageError, IntegrityError, StorageError: See :func:`inspect`.
    """
    options = _options(options)
    product = _opened(options)
    with reporting(progress) as listener:
        listener.start(f"reading the {product.noun}")
        return product.sections(options)


def write_inspection_page(
    path: str | os.PathLike[str],
    options: str | os.PathLike[str] | InspectOptions,
    *,
    verify: Level | None = None,
    counted_tokens: int = COUNTED_TOKENS,
) -> None:
    """Write the description of a product with charts: one HTML file that needs no other, and no network.

    Args:
        path: The file. An older page is replaced; any other file is kept.
        options: The options, or just a path; the page shows the whole product.
        verify: The level at which the product is also verified, see :class:`tokshard.VerifyOptions`; the page
            lists the findings.
        counted_tokens: Tokens of a dataset that are counted at most; see
            :func:`~tokshard.checks.inspect.frequencies.count_tokens`.

    Raises:
        OutputExistsError: The file exists and is no page of tokshard.
        UsageError: The path cannot be a file, an option shows a part of the product only, or there is no such
            level.
        InputError, IntegrityError, StorageError: See :func:`inspect`.
    """
    path, options = os.fspath(path), _options(options)
    if options.shows_part:
        name = next(name for name in options.part_options if name != "--moved")
        raise UsageError(
            f"--html shows the whole product and cannot be used with {name}", hint=f"leave out {name}"
        )
    to_verify = None
    if verify is not None:
        to_verify = VerifyOptions(path=options.path, level=verify, tokenizer=options.tokenizer)
    _check_target(path)
    product = _opened(options)
    findings = [] if to_verify is None else [verify_product(to_verify).findings_section()]
    summary, *details = product.sections(options, counted_tokens)
    content = page(os.fspath(options.path), product.noun, [summary, *findings, *details])
    write_atomically(path, content.encode())


def _options(options: str | os.PathLike[str] | InspectOptions) -> InspectOptions:
    return options if isinstance(options, InspectOptions) else InspectOptions(path=options)


def _opened(options: InspectOptions) -> Product:
    path = os.fspath(options.path)
    product = open_product(path)
    for name, kind in options.part_options.items():
        if kind != product.inspected_as:
            raise UsageError(
                f"{name} requires a {kind}, got {path} ({product.noun})", hint=f"leave out {name}"
            )
    return product


def _check_target(path: str) -> None:
    if os.path.isdir(path) or not os.path.basename(path) or "\0" in path:
        raise UsageError(
            f"--html must be a file name, got {path!r}", hint="for example, pass --html report.html"
        )
    try:
        with open_file(path) as file:
            start = file.read(len(MARK))
    except FileNotFoundError:
        return
    except InputError:
        start = b""
    except OSError as error:
        raise StorageError("read", path, error) from error
    if start != MARK.encode():
        raise OutputExistsError(
            f"{path} exists and was not written by tokshard", hint="pass another name to --html"
        )
