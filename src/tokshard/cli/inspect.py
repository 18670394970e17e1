"""``tokshard inspect``: options, one call, one rendering."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import tokshard
from tokshard import InspectOptions
from tokshard.cli import rendering
from tokshard.cli.command_run import command_run
from tokshard.cli.options import AsJson
from tokshard.errors import UsageError


def _of_plan(name: str, text: str, *, metavar: str = "N", shown: str | bool = True) -> Any:
    return typer.Option(name, metavar=metavar, help=text, show_default=shown, rich_help_panel="Of a plan")


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
        int | None, typer.Option(help="Show the tokens and the text of this document.", show_default=False)
    ] = InspectOptions.document,
    tokenizer: Annotated[
        str | None, typer.Option(help="Tokenizer to decode with.", show_default=False)
    ] = InspectOptions.tokenizer,
    multimodal: Annotated[
        bool, typer.Option("--multimodal", help="Read a dataset with modes.")
    ] = InspectOptions.multimodal,
    rank: Annotated[int | None, _of_plan("--rank", "Show the reads of this rank.")] = InspectOptions.rank,
    step: Annotated[
        int | None, _of_plan("--step", "Show what the rank reads at this step.")
    ] = InspectOptions.step,
    index: Annotated[
        int | None, _of_plan("--index", "Show the n-th sample that the rank reads.")
    ] = InspectOptions.index,
    sample: Annotated[
        int | None, _of_plan("--sample", "Show which rank reads this sample, and from where.")
    ] = InspectOptions.sample,
    shard: Annotated[
        str | None, _of_plan("--shard", "Show which rank reads sample N of dataset D.", metavar="D:N")
    ] = InspectOptions.shard,
    epoch: Annotated[
        int | None,
        _of_plan("--epoch", "Look for the sample in this epoch.", shown="the first one that is read"),
    ] = InspectOptions.epoch,
    stream: Annotated[
        str, _of_plan("--stream", "Show this stream: train, valid or test.", metavar="NAME")
    ] = InspectOptions.stream,
    html: Annotated[
        str | None,
        typer.Option(
            "--html",
            metavar="FILE",
            help="Also write a page with charts: one HTML file that needs no network.",
            show_default=False,
        ),
    ] = None,
    verify: Annotated[
        str | None,
        typer.Option(
            "--verify",
            metavar="structure|digest|deep",
            help="Also verify at this level, and list the findings on the page.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Inspect a dataset, index cache, blend, plan or tokenizer.

    [bold]Examples[/bold]

    tokshard inspect out/web

    tokshard inspect out/web --document 7 --tokenizer tokenizer.json

    tokshard inspect plan --rank 3 --step 100

    tokshard inspect plan --sample 123456

    tokshard inspect mix --html mix.html
    """
    with command_run("inspect", as_json=as_json) as run:
        options = InspectOptions(
            path, document, tokenizer, multimodal, rank, step, index, sample, shard, epoch, stream
        )
        if html is not None:
            tokshard.write_inspection_page(html, options, verify=verify)  # type: ignore[arg-type]
        elif verify is not None:
            raise UsageError("--verify needs --html FILE", hint="give --html FILE, or use tokshard verify")
        if as_json:
            run.show(tokshard.inspect(options, progress=run.progress), lambda _: None)
        else:
            rendering.show(tokshard.describe(options, progress=run.progress))
        if html is not None:
            rendering.tell(f"{html} is written")
