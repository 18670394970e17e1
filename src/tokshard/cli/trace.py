"""``tokshard trace``: options, one library call, one rendering."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokshard.cli import failures, options, terminal, traceview
from tokshard.cli.quantities import parse_count
from tokshard.errors import UsageError

if TYPE_CHECKING:
    from tokshard.tracing.subject import Subject

INCOMPLETE = 1
_TRAIN = "train"
_SUBJECT = "Through what"
_FORWARDS = "Forwards: what is read there, and where does it come from?"
_BACKWARDS = "Backwards: who reads it?"


def _thing(name: str, text: str, metavar: str, panel: str) -> Any:
    return typer.Option(name, help=text, metavar=metavar, show_default=False, rich_help_panel=panel)


def _number(name: str, text: str, panel: str) -> Any:
    return typer.Option(
        name, parser=parse_count, help=text, metavar="N", show_default=False, rich_help_panel=panel
    )


def trace(
    plan: Annotated[str | None, _thing("--plan", "A plan.", "PLAN", _SUBJECT)] = None,
    blend: Annotated[str | None, _thing("--blend", "A blend.", "BLEND", _SUBJECT)] = None,
    index: Annotated[
        str | None,
        _thing("--index", "An index: its description.txt, or a dataset with its cache.", "INDEX", _SUBJECT),
    ] = None,
    dataset: Annotated[str | None, _thing("--dataset", "A dataset alone.", "PREFIX", _SUBJECT)] = None,
    split: Annotated[
        str | None,
        _thing(
            "--split", "train, valid, test, valid.0, ...: forwards train, backwards all.", "NAME", _SUBJECT
        ),
    ] = None,
    path_as: Annotated[
        list[str] | None,
        _thing(
            "--path-as", "The data that an index names TRAINING lies at LOCAL.", "LOCAL=TRAINING", _SUBJECT
        ),
    ] = None,
    moved: Annotated[
        list[str] | None,
        _thing("--moved", "Data of the plan that lay below OLD lies below NEW.", "OLD=NEW", _SUBJECT),
    ] = None,
    step: Annotated[int | None, _number("--step", "A step of the plan.", _FORWARDS)] = None,
    rank: Annotated[int | None, _number("--rank", "A rank of the job; without, all.", _FORWARDS)] = None,
    sample: Annotated[int | None, _number("--sample", "A sample, from 0.", _FORWARDS)] = None,
    document: Annotated[
        int | None, _number("--document", "A document of the dataset, from 0.", _FORWARDS)
    ] = None,
    tokenizer: Annotated[
        str | None, _thing("--tokenizer", "Tokenizer to show texts with.", "TOKENIZER", _FORWARDS)
    ] = None,
    source: Annotated[
        list[str] | None,
        _thing(
            "--source",
            "FILE:LINE, FILE@OFFSET or PREFIX#DOCUMENT; may be repeated.",
            "ITEM",
            _BACKWARDS,
        ),
    ] = None,
    list_file: Annotated[
        str | None, _thing("--list", "A file with such an item on each line.", "FILE", _BACKWARDS)
    ] = None,
    consumed_samples: Annotated[
        int | None, _number("--consumed-samples", "Tell what was seen by then.", _BACKWARDS)
    ] = None,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print readings as CSV.", rich_help_panel=options.OUTPUT)
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Follow a step back to its files and lines, or a line to every sample, step and rank that reads it.

    [bold]Examples[/bold]

    tokshard trace --plan plan --step 41200 --rank 7

    tokshard trace --blend blend --sample 17 --tokenizer tokenizer.json

    tokshard trace --plan plan --source web.jsonl:123 --consumed-samples 10M

    tokshard trace --plan plan --list removals.txt --csv > readings.csv

    Backwards, the exit code is 1 if something named is no document of the data.
    """
    with failures.reported(as_json=as_json):
        asked = {"step": step, "sample": sample, "document": document}
        question = _question(asked, is_backwards=bool(source) or list_file is not None)
        _check(question, rank, consumed_samples, tokenizer, as_csv=as_csv, as_json=as_json)
        things = {"plan": plan, "blend": blend, "index": index, "dataset": dataset}
        only = split if question == "source" else split or _TRAIN
        subject = _subject(things, question, only, path_as, moved)
        if question == "source":
            _backwards(
                subject,
                (source or [], list_file),
                split,
                consumed_samples,
                as_csv=as_csv,
                as_json=as_json,
            )
            return
        from tokshard.tracing import forwards

        if document is not None:
            found = forwards.trace_document(subject, document, tokenizer=tokenizer)
            terminal.say_json(found.to_json()) if as_json else traceview.show_document(found)
            return
        stream = split or _TRAIN
        report = (
            forwards.trace_sample(subject, stream, sample or 0, tokenizer=tokenizer)
            if step is None
            else forwards.trace_step(subject, stream, step, rank, tokenizer=tokenizer)
        )
        terminal.say_json(report.to_json()) if as_json else traceview.show_samples(report)


def _question(asked: dict[str, int | None], *, is_backwards: bool) -> str:
    given = [name for name, value in asked.items() if value is not None]
    if is_backwards:
        given.append("source")
    if len(given) == 1:
        return given[0]
    if given:
        raise UsageError(f"--{given[0]} and --{given[1]} are two questions: ask one at a time")
    raise UsageError(
        "nothing is asked",
        hint="forwards: --step, --sample or --document; backwards: --source ITEM or --list FILE",
    )


def _check(
    question: str,
    rank: int | None,
    consumed: int | None,
    tokenizer: str | None,
    *,
    as_csv: bool,
    as_json: bool,
) -> None:
    """Refuse what has no meaning for the question, rather than pass over it."""
    forwards = question != "source"
    wrong = {
        "--rank": rank is not None and question != "step" and "it needs --step",
        "--consumed-samples": consumed is not None and forwards and "it needs --source or --list",
        "--csv": as_csv and forwards and "it needs --source or --list",
        "--tokenizer": tokenizer is not None and not forwards and "no text is read backwards",
    }
    for name, reason in wrong.items():
        if reason:
            raise UsageError(f"{name} has no meaning here: {reason}")
    if as_csv and as_json:
        raise UsageError("--csv and --json are two forms of the same: ask for one")


_SUBJECTS = {
    "step": ("plan",),
    "sample": ("plan", "blend", "index"),
    "document": ("dataset",),
    "source": ("plan", "blend", "index", "dataset"),
}


def _subject(
    things: dict[str, str | None],
    question: str,
    split: str | None,
    path_as: list[str] | None,
    moved: list[str] | None,
) -> Subject:
    from tokshard.tracing import subject

    possible = _SUBJECTS[question]
    given = {name: path for name, path in things.items() if path is not None}
    if len(given) != 1 or next(iter(given)) not in possible:
        named = " and ".join(f"--{name}" for name in given) or "nothing"
        raise UsageError(
            f"--{question} is asked of one of {', '.join(f'--{name}' for name in possible)}, "
            f"and {named} is given"
        )
    ((kind, path),) = given.items()
    if path_as and kind != "index":
        raise UsageError("--path-as has a meaning for --index only", hint="data of a plan is --moved OLD=NEW")
    if moved and kind != "plan":
        raise UsageError(
            "--moved has a meaning for --plan only", hint="data of an index: --path-as LOCAL=TRAINING"
        )
    if kind == "plan":
        return subject.open_plan(path, dict(_moved(pair) for pair in moved or ()))
    if kind == "dataset":
        return subject.open_dataset(path)
    return subject.open_samples(path, kind, split=split, path_as=options.parse_path_as(path_as))


def _moved(pair: str) -> tuple[str, str]:
    old, separator, new = pair.partition("=")
    if not (old and separator and new):
        raise UsageError(
            f"--moved {pair!r} is not OLD=NEW", hint="for example --moved /scratch/data=/mnt/data"
        )
    return old, new


def _backwards(
    subject: Subject,
    wanted: tuple[list[str], str | None],
    split: str | None,
    consumed: int | None,
    *,
    as_csv: bool,
    as_json: bool,
) -> None:
    from tokshard.tracing.backwards import trace_items
    from tokshard.tracing.items import parse_item, read_items

    texts, list_file = wanted
    items = [parse_item(text) for text in texts] + ([] if list_file is None else read_items(list_file))
    streams = None if split is None else [split]
    report = trace_items(subject, items, streams=streams, consumed_samples=consumed)
    if as_csv:
        traceview.say_csv(report)
    elif as_json:
        terminal.say_json(report.to_json())
    else:
        traceview.show_readings(report)
    if not report.is_complete:
        raise typer.Exit(INCOMPLETE)
