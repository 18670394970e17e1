"""The report of a thing: all that its page shows, gathered, and the page written."""

from __future__ import annotations

import os

from tokshard.dataset.reader import IndexedDataset
from tokshard.errors import OutputExistsError, StorageError, TokshardError, UsageError
from tokshard.inspection.datasets import DatasetSummary
from tokshard.inspection.frequencies import COUNTED_TOKENS, TokenFrequencies, count_tokens
from tokshard.inspection.job import Summary
from tokshard.inspection.page.document import MARK
from tokshard.inspection.page.findings import Verification
from tokshard.inspection.page.render import render
from tokshard.inspection.plans import PlanSummary
from tokshard.inspection.readgrid import ReadGrid, read_grid
from tokshard.inspection.tokenizers import tokenizer_of
from tokshard.sharding.plan import Stream
from tokshard.storage.files import write_atomically


def write_report(
    path: str,
    thing: str,
    summary: Summary,
    *,
    tokenizer: str | None = None,
    verification: Verification | None = None,
    limit: int = COUNTED_TOKENS,
) -> None:
    """Write the page of an inspected thing: one file that needs no other, and no network.

    Args:
        path: The file. An older page of ours is replaced, nothing else is.
        thing: What the user calls it.
        summary: What it is.
        tokenizer: The tokenizer to show the tokens of a dataset with.
        verification: What a verification has found.
        limit: See :func:`~tokshard.inspection.frequencies.count_tokens`.

    Raises:
        OutputExistsError: The file is there and is no page of ours.
        UsageError: It cannot be a file.
        StorageError: The disk is full or broken.
    """
    check_target(path)
    frequencies, grids = None, None
    if isinstance(summary, DatasetSummary):
        frequencies = _frequencies(summary, tokenizer, limit)
    if isinstance(summary, PlanSummary):
        grids = {name: _grid(stream) for name, stream in summary.plan.streams.items()}
    content = render(thing, summary, frequencies=frequencies, grids=grids, verification=verification)
    write_atomically(path, content.encode())


def check_target(path: str) -> None:
    """Check that a page can be written there without a loss.

    Raises:
        OutputExistsError, UsageError, StorageError: See :func:`write_report`.
    """
    if os.path.isdir(path) or not os.path.basename(path) or "\0" in path:
        raise UsageError(f"{path!r} cannot be the name of a page", hint="for example --html report.html")
    try:
        with open(path, "rb") as file:
            start = file.read(len(MARK))
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError("read", path, error) from error
    if start != MARK.encode():
        raise OutputExistsError(
            f"{path} is there, and is no page that tokshard has written", hint="give another name"
        )


def _frequencies(summary: DatasetSummary, tokenizer: str | None, limit: int) -> TokenFrequencies | None:
    identity = summary.manifest.tokenizer if summary.manifest is not None else None
    return count_tokens(
        IndexedDataset(summary.path_prefix, summary.multimodal),
        limit=limit,
        tokenizer=tokenizer_of(summary.path_prefix, tokenizer),
        vocabulary=identity.vocab_size if identity else None,
    )


def _grid(stream: Stream) -> ReadGrid | None:
    try:
        return read_grid(stream)
    except TokshardError:
        return None  # the lengths that it sorts by are not here; all else of the plan is shown
