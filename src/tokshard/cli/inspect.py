"""``tokshard inspect``: options, one library call, one rendering."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from tokshard.cli import failures, plans, terminal, views
from tokshard.errors import UsageError


class Level(StrEnum):
    """Choices of --verify."""

    structure = "structure"
    digest = "digest"
    deep = "deep"


def inspect(
    thing: Annotated[
        str,
        typer.Argument(
            metavar="THING",
            help="A dataset (its path prefix), a cache of indexes or one of its files, a blend, a plan or a "
            "rank's part of it, a tokenizer.",
            show_default=False,
        ),
    ],
    document: Annotated[
        int | None, typer.Option(help="Show this document: tokens and text.", show_default=False)
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="Tokenizer to decode with.", show_default=False)
    ] = None,
    multimodal: Annotated[bool, typer.Option("--multimodal", help="The dataset has modes.")] = False,
    rank: Annotated[int | None, plans.option("--rank", "Show this rank.")] = None,
    step: Annotated[int | None, plans.option("--step", "What the rank reads at this step.")] = None,
    index: Annotated[int | None, plans.option("--index", "The n-th sample that the rank reads.")] = None,
    sample: Annotated[int | None, plans.option("--sample", "Who reads this sample, and from where.")] = None,
    shard: Annotated[
        str | None, plans.option("--shard", "Who reads this sample of this dataset.", metavar="D:N")
    ] = None,
    epoch: Annotated[
        int | None, plans.option("--epoch", "In this epoch.", shown="the first one that is read")
    ] = None,
    stream: Annotated[
        str, plans.option("--stream", "Of training, validation or testing.", metavar="NAME", shown="train")
    ] = "train",
    html: Annotated[
        str | None,
        typer.Option(
            "--html",
            metavar="FILE",
            help="Write a page with charts, too: one file, which needs no network.",
            show_default=False,
        ),
    ] = None,
    verify: Annotated[
        Level | None,
        typer.Option(
            "--verify", help="Verify it, too, and list the findings on the page.", show_default=False
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Say what a thing is and what is in it: a dataset, a cache, a blend, a plan, a tokenizer.

    [bold]Examples[/bold]

    tokshard inspect out/web

    tokshard inspect out/web --document 7 --tokenizer tokenizer.json

    tokshard inspect plan --rank 3 --step 100

    tokshard inspect plan --sample 123456

    tokshard inspect mix --html mix.html
    """
    with failures.reported(as_json=as_json):
        question = plans.Question(rank, step, index, sample, shard, epoch, stream)
        if html is not None:
            _check_page(html, whole=document is None and question == plans.Question())
        elif verify is not None:
            raise UsageError("--verify is for the page", hint="give --html FILE, or use tokshard verify")
        if plans.names_plan(thing):
            plans.inspect_plan(thing, question, as_json=as_json)
        elif document is not None:
            _show_document(thing, document, tokenizer, multimodal=multimodal, as_json=as_json)
        else:
            question.refuse_for(thing)
            _show(thing, multimodal=multimodal, as_json=as_json)
        if html is not None:
            _write_page(html, thing, tokenizer, verify, multimodal=multimodal)


def _show(thing: str, *, multimodal: bool, as_json: bool) -> None:
    from tokshard.inspection.job import inspect_thing

    summary = inspect_thing(thing, multimodal=multimodal)
    terminal.say_json(summary.to_json()) if as_json else views.show(summary)


def _show_document(
    thing: str, document: int, tokenizer: str | None, *, multimodal: bool, as_json: bool
) -> None:
    from tokshard.inspection.documents import inspect_document
    from tokshard.storage.paths import strip_data_suffix

    prefix = strip_data_suffix(thing)
    view = inspect_document(prefix, document, tokenizer=tokenizer, multimodal=multimodal)
    terminal.say_json(view.to_json()) if as_json else views.show_document(view)


def _check_page(html: str, *, whole: bool) -> None:
    from tokshard.inspection.report import check_target

    if not whole:
        raise UsageError("--html shows the whole of a thing", hint="leave out the other options, or --html")
    check_target(html)


def _write_page(
    html: str, thing: str, tokenizer: str | None, level: Level | None, *, multimodal: bool
) -> None:
    from tokshard.inspection.job import inspect_thing
    from tokshard.inspection.report import write_report

    verification = None
    if level is not None:
        from tokshard.verification.job import verify
        from tokshard.verification.options import VerifyOptions

        verification = verify(VerifyOptions(thing, level=level.value, tokenizer=tokenizer))
    # Once more after it was shown: this costs less than a second, and the screen does not wait for verify.
    summary = inspect_thing(thing, multimodal=multimodal)
    write_report(html, thing, summary, tokenizer=tokenizer, verification=verification)
    terminal.tell(f"{terminal.safe(html)} is written")
