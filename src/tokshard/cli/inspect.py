"""``tokshard inspect``: options, one call, one rendering."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

import tokshard
from tokshard import InspectOptions
from tokshard.cli import rendering
from tokshard.cli.command_run import command_run
from tokshard.cli.declarations import choice, integer, switch, text
from tokshard.cli.options import AsJson
from tokshard.errors import UsageError

_DATASET = "Datasets"
_PLAN = "Plans"
_PAGE = "HTML page"

Level = Literal["structure", "digest", "deep"]


def inspect(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="A dataset (its path prefix), index cache or one of its files, blend, plan, rank manifest "
            "or tokenizer.",
            show_default=False,
        ),
    ],
    document: Annotated[
        int | None, integer("--document", help="Show the tokens and text of document N.", group=_DATASET)
    ] = InspectOptions.document,
    tokenizer: Annotated[
        str | None,
        text(
            "--tokenizer",
            metavar="PATH",
            help="Decode text with this tokenizer.",
            default="the recorded one, if found",
            group=_DATASET,
        ),
    ] = InspectOptions.tokenizer,
    multimodal: Annotated[
        bool,
        switch("--multimodal", help="Read a multimodal dataset, whose sequences have modes.", group=_DATASET),
    ] = InspectOptions.multimodal,
    rank: Annotated[
        int | None, integer("--rank", help="Show the samples that rank N reads.", group=_PLAN)
    ] = InspectOptions.rank,
    step: Annotated[
        int | None, integer("--step", help="With --rank: show the samples of step N.", group=_PLAN)
    ] = InspectOptions.step,
    index: Annotated[
        int | None, integer("--index", help="With --rank: show its N-th sample, from 0.", group=_PLAN)
    ] = InspectOptions.index,
    sample: Annotated[
        int | None,
        integer("--sample", help="Show which rank reads sample N, and at which step.", group=_PLAN),
    ] = InspectOptions.sample,
    dataset_sample: Annotated[
        str | None,
        text(
            "--dataset-sample",
            metavar="D:N",
            help="Show which rank reads sample N of dataset D.",
            group=_PLAN,
        ),
    ] = InspectOptions.dataset_sample,
    epoch: Annotated[
        int | None,
        integer(
            "--epoch",
            help="With --sample or --dataset-sample: look in epoch N.",
            default="the first that reads the sample",
            group=_PLAN,
        ),
    ] = InspectOptions.epoch,
    stream: Annotated[
        str, text("--stream", metavar="NAME", help="Show this stream: train, valid or test.", group=_PLAN)
    ] = InspectOptions.stream,
    html: Annotated[
        str | None,
        text(
            "--html",
            metavar="FILE",
            help="Also write a page with charts: one HTML file that needs no network.",
            group=_PAGE,
        ),
    ] = None,
    verify: Annotated[
        Level | None,
        choice(
            Level,
            "--verify",
            help="With --html: also verify at this level, and list the findings on the page.",
            group=_PAGE,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Inspect a dataset, index cache, blend, plan or tokenizer.

    Examples:
        tokshard inspect out/web
        tokshard inspect out/web --document 7 --tokenizer tokenizer.json
        tokshard inspect plan --rank 3 --step 100
        tokshard inspect plan --sample 123456
        tokshard inspect mix --html mix.html
    """
    with command_run(as_json=as_json) as run:
        options = InspectOptions(
            path, document, tokenizer, multimodal, rank, step, index, sample, dataset_sample, epoch, stream
        )
        if html is not None:
            from tokshard.checks.inspect.job import write_inspection_page

            write_inspection_page(html, options, verify=verify)
        elif verify is not None:
            raise UsageError("--verify requires --html", hint="pass --html FILE, or run tokshard verify")
        if as_json:
            run.show(tokshard.inspect(options, progress=run.progress), lambda _: None)
        else:
            from tokshard.checks.inspect.description import describe

            rendering.show(describe(options, progress=run.progress))
        if html is not None:
            rendering.tell(f"written: {html}")
