"""Inspection of whatever a path names: its summary, its description, and its page."""

from __future__ import annotations

import os

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
from tokshard.checks.inspect.frequencies import COUNTED_TOKENS, TokenFrequencies, count_tokens
from tokshard.checks.inspect.indexes import (
    BlendSummary,
    CacheSummary,
    IndexSummary,
    inspect_blend,
    inspect_cache,
    inspect_index,
)
from tokshard.checks.inspect.options import InspectOptions
from tokshard.checks.inspect.page import MARK, page
from tokshard.checks.inspect.plans import (
    PlanSampleSummary,
    PlanSummary,
    RankSummary,
    inspect_rank,
    inspect_sample,
)
from tokshard.checks.verify import job as verification_job
from tokshard.checks.verify.options import Level, VerifyOptions
from tokshard.core.presentation import Section
from tokshard.core.progress import Progress, reporting
from tokshard.dataset.products import Product, recognize
from tokshard.dataset.reader import IndexedDataset
from tokshard.errors import InputError, OutputExistsError, StorageError, UsageError
from tokshard.exchange.manifest import manifest_path
from tokshard.ranks.plan import read_plan
from tokshard.ranks.ranks import read_rank
from tokshard.samples.blend.document import BlendDocument, document_path
from tokshard.storage.files import write_atomically
from tokshard.storage.reading import open_file

Summary = (
    DatasetSummary
    | DocumentSummary
    | TokenizerSummary
    | CacheSummary
    | IndexSummary
    | BlendSummary
    | PlanSummary
    | PlanSampleSummary
    | RankSummary
)

_KINDS = {
    "dataset": "indexed dataset",
    "tokenizer": "tokenizer",
    "cache": "index cache",
    "index": "cached index",
    "blend": "blend",
    "plan": "shard plan",
    "rank": "rank of a shard plan",
    "export": "export",
}
_PLAN_OPTIONS = {"rank", "step", "index", "sample", "dataset-sample", "epoch", "stream"}


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
    found = _recognized(options)
    with reporting(progress) as listener:
        listener.start(f"reading the {_KINDS[found.kind]}")
        return _inspect(found, options)


def _inspect(found: Product, options: InspectOptions) -> Summary:
    match found.kind:
        case "dataset":
            return _dataset(found.path, options)
        case "tokenizer":
            return inspect_tokenizer(found.path)
        case "cache":
            return inspect_cache(found.path)
        case "index":
            return inspect_index(found.path)
        case "blend":
            return inspect_blend(found.path)
        case "plan" | "rank":
            return _plan(found, options)
        case "export":
            raise InputError(
                f"cannot inspect {found.path}: it is an export",
                hint=f"run tokshard verify {found.path}, or read {manifest_path(found.path)}",
            )


def describe_path(
    options: str | os.PathLike[str] | InspectOptions, progress: Progress | None
) -> list[Section]:
    """Return the description of what the options name; see ``description.describe``."""
    options = _options(options)
    found = _recognized(options)
    with reporting(progress) as listener:
        listener.start(f"reading the {_KINDS[found.kind]}")
        return _described(found, options)


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
    if options.questions:
        raise UsageError(
            f"--html shows the whole product, and excludes --{options.questions[0]}",
            hint=f"leave out --{options.questions[0]}",
        )
    to_verify = (
        None
        if verify is None
        else VerifyOptions(path=options.path, level=verify, tokenizer=options.tokenizer)
    )
    _check_target(path)
    found = _recognized(options)
    findings = [] if to_verify is None else [verification_job.verify(to_verify).findings_section()]
    summary, *details = _described(found, options, counted_tokens)
    content = page(os.fspath(options.path), _KINDS[found.kind], [summary, *findings, *details])
    write_atomically(path, content.encode())


def _options(options: str | os.PathLike[str] | InspectOptions) -> InspectOptions:
    return options if isinstance(options, InspectOptions) else InspectOptions(path=options)


def _recognized(options: InspectOptions) -> Product:
    path = os.fspath(options.path)
    found = recognize(path)
    for name in options.questions:
        fits = found.kind in {"plan", "rank"} if name in _PLAN_OPTIONS else found.kind == "dataset"
        if not fits:
            wanted = "plan" if name in _PLAN_OPTIONS else "dataset"
            raise UsageError(f"--{name} requires a {wanted}, got {path} ({_KINDS[found.kind]})")
    return found


def _dataset(path: str, options: InspectOptions) -> DatasetSummary | DocumentSummary:
    if options.document is None:
        return inspect_dataset(path, multimodal=options.multimodal)
    return inspect_document(
        path, options.document, tokenizer=options.tokenizer, multimodal=options.multimodal
    )


def _plan(found: Product, options: InspectOptions) -> PlanSummary | PlanSampleSummary | RankSummary:
    if options.sample is not None or options.dataset_sample is not None:
        numbers = None if options.dataset_sample is None else options.dataset_sample_numbers()
        directory = os.path.dirname(found.path) if found.kind == "rank" else found.path
        return inspect_sample(
            directory,
            stream=options.stream,
            sample=options.sample,
            dataset_sample=numbers,
            epoch=options.epoch,
        )
    if found.kind == "plan" and not options.questions:
        return PlanSummary.of(read_plan(found.path))
    return inspect_rank(
        found.path, options.rank, stream=options.stream, step=options.step, index=options.index
    )


def _described(  # noqa: PLR0911 - one for each kind
    found: Product, options: InspectOptions, counted_tokens: int | None = None
) -> list[Section]:
    if found.kind == "blend":
        return blend_facts.describe_blend(BlendDocument.read(found.path), document_path(found.path))
    if found.kind == "plan" and not options.questions:
        return plan_facts.describe_plan(read_plan(found.path))
    summary = _inspect(found, options)
    match summary:
        case DatasetSummary():
            frequencies = None if counted_tokens is None else _frequencies(summary, options, counted_tokens)
            return facts.describe_dataset(summary, frequencies)
        case DocumentSummary():
            return facts.describe_document(summary)
        case TokenizerSummary():
            return facts.describe_tokenizer(summary)
        case CacheSummary():
            return index_facts.describe_cache(summary)
        case IndexSummary():
            return index_facts.describe_index(summary)
        case RankSummary():
            return plan_facts.describe_rank(read_rank(found.path, options.rank)[0], summary)
        case PlanSampleSummary():
            return plan_facts.describe_places(summary.stream, summary.places)
    raise AssertionError(summary)


def _frequencies(summary: DatasetSummary, options: InspectOptions, limit: int) -> TokenFrequencies | None:
    identity = summary.manifest.tokenizer if summary.manifest is not None else None
    return count_tokens(
        IndexedDataset(summary.path_prefix, summary.multimodal),
        limit=limit,
        tokenizer=tokenizer_of(summary.path_prefix, options.tokenizer),
        vocabulary=identity.vocab_size if identity is not None else None,
    )


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
