"""``tokshard convert``: options, one call, one rendering."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Literal

import typer

import tokshard
from tokshard import ConvertOptions
from tokshard.cli import declarations, rendering
from tokshard.cli.command_run import command_run
from tokshard.cli.declarations import choice, count, switch, text
from tokshard.cli.options import RUN, AsJson, DryRun, Force, Lock, NoProgress, Quiet
from tokshard.core.formatting import counted, size, throughput, tokenizer_name

if TYPE_CHECKING:
    from tokshard import ConvertReport

_SHOWN_FILES = 10
TOKENS = "Tokens"
DOCUMENTS = "Documents"

FormatChoice = Literal["nanogpt", "olmo", "datatrove"]
DtypeChoice = Literal["auto", "uint16", "int32"]
SourceDtypeChoice = Literal["uint8", "uint16", "uint32", "uint64"]
BosChoice = Literal["move", "keep", "drop"]
SplitChoice = Literal["train", "val", "all"]


def convert(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="Token files, directories of these, or quoted globs, in order.",
            show_default=False,
        ),
    ],
    from_format: Annotated[FormatChoice, choice(FormatChoice, "--from", help="Read this format.")],
    output: Annotated[
        str,
        text("--output", "-o", metavar="PREFIX", help="Write PREFIX.bin, PREFIX.idx and PREFIX.tokshard/."),
    ],
    tokenizer: Annotated[
        str | None,
        text(
            "--tokenizer",
            metavar="PATH",
            help="Record this tokenizer as that of the tokens; every id must be in its vocabulary.",
            group=TOKENS,
        ),
    ] = ConvertOptions.tokenizer,
    vocab_size: Annotated[
        int | None,
        count("--vocab-size", help="Require ids below N, if there is no --tokenizer.", group=TOKENS),
    ] = ConvertOptions.vocab_size,
    dtype: Annotated[
        DtypeChoice,
        choice(
            DtypeChoice,
            "--dtype",
            help="Write this dtype; auto is Megatron's rule for the vocabulary, or the width of the source "
            "if the vocabulary is unknown.",
            group=TOKENS,
        ),
    ] = ConvertOptions.dtype,
    source_dtype: Annotated[
        SourceDtypeChoice | None,
        choice(
            SourceDtypeChoice,
            "--source-dtype",
            help="Read this dtype from olmo and datatrove files, which have no header.",
            default="from the boundaries of documents or the metadata",
            group=TOKENS,
        ),
    ] = ConvertOptions.source_dtype,
    bos_id: Annotated[
        int | None,
        declarations.integer(
            "--bos-id",
            metavar="ID",
            help="Begin a document at each token with this id, for nanogpt.",
            default="the EOD token of --tokenizer",
            group=DOCUMENTS,
        ),
    ] = ConvertOptions.bos_id,
    eod_id: Annotated[
        int | None,
        declarations.integer(
            "--eod-id",
            metavar="ID",
            help="End documents with token ID: in place of the BOS tokens of nanogpt; olmo and datatrove are "
            "divided after it where no file has the boundaries.",
            default="the EOD token of --tokenizer; for nanogpt else --bos-id",
            group=DOCUMENTS,
        ),
    ] = ConvertOptions.eod_id,
    bos: Annotated[
        BosChoice,
        choice(
            BosChoice,
            "--bos",
            help="Replace the BOS token before a nanogpt document by an EOD token after it (move), or keep "
            "or drop it.",
            group=DOCUMENTS,
        ),
    ] = ConvertOptions.bos,
    split: Annotated[
        SplitChoice | None,
        choice(
            SplitChoice,
            "--split",
            help="Read these files of a nanogpt directory.",
            default="train; all of an export of tokshard",
            group=DOCUMENTS,
        ),
    ] = ConvertOptions.split,
    resume: Annotated[
        bool, switch("--resume/--no-resume", help="Resume an unfinished run.", group=RUN)
    ] = ConvertOptions.resume,
    force: Force = ConvertOptions.force,
    lock: Lock = ConvertOptions.lock,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    no_progress: NoProgress = False,
) -> None:
    """Convert token files of nanogpt, OLMo-core or datatrove into an indexed dataset.

    The tokens are copied, not encoded again. Documents begin at BOS tokens (nanogpt), or end where the
    .csv.gz (olmo) or .index (datatrove) beside the tokens says. Files of a directory or glob are read in
    natural order.

    Examples:
        tokshard convert fineweb10B --from nanogpt --bos-id 50256 -o out/fineweb
        tokshard convert 'dolma/part-*.npy' --from olmo --tokenizer olmo2 -o out/dolma
        tokshard convert tokenized --from datatrove -o out/web
    """
    with command_run(as_json=as_json, quiet=quiet, no_progress=no_progress) as run:
        options = ConvertOptions(
            sources=sources,
            format=from_format,
            output=output,
            tokenizer=tokenizer,
            vocab_size=vocab_size,
            dtype=dtype,
            source_dtype=source_dtype,
            bos_id=bos_id,
            eod_id=eod_id,
            bos=bos,
            split=split,
            resume=resume,
            force=force,
            lock=lock,
        )
        report = tokshard.convert(options, dry_run=dry_run, progress=None if dry_run else run.progress)
        run.warn(report.warnings)
        run.show(report, _show_dry_run if dry_run else _show)


def _show(report: ConvertReport) -> None:
    output = report.output
    is_found = report.action == "found"
    facts: list[tuple[str, object]] = [("up to date" if is_found else "written", output.describe())]
    if not is_found:
        if report.bytes_resumed:
            facts.append(("reused", f"{size(report.bytes_resumed)} converted by an earlier run"))
        speed = throughput(report.seconds, output.size_bytes, output.tokens)
        facts.append(("time", f"{counted(report.file_count, f'{report.options.format} file')} in {speed}"))
    facts.append(("tokenizer", _tokenizer(report)))
    facts.append(("documents", _endings(report)))
    rendering.outcome([*facts, ("next", f"tokshard inspect {shlex.quote(output.path_prefix)}")])


def _show_dry_run(report: ConvertReport) -> None:
    files = report.files or ()
    total = sum(file.source.size_bytes for file in files)
    tokens = sum(file.tokens for file in files)
    rendering.line(f"source: {counted(len(files), 'file')}, {counted(tokens, 'token')}, {size(total)}")
    lines = [
        f"  {file.source.path} ({counted(file.tokens, 'token')} of {file.dtype}"
        f"{f', documents in {file.boundaries}' if file.boundaries else ''})"
        for file in files
    ]
    rendering.lines(lines, _SHOWN_FILES, "  and {rest} more")
    rendering.line(f"documents: {_rule(report)}")
    rendering.line(f"output: {report.output.path_prefix} ({report.state}), {report.options.dtype}")
    rendering.line(f"tokenizer: {_tokenizer(report)}")


def _rule(report: ConvertReport) -> str:
    options = report.options
    if options.bos == "move":
        return f"BOS token {options.bos_id} before them is replaced by EOD token {options.eod_id} after them"
    if options.bos is not None:
        return f"BOS token {options.bos_id} before them is {'kept' if options.bos == 'keep' else 'dropped'}"
    if all(file.boundaries for file in report.files or ()):
        return "end as listed beside the tokens"
    return f"end with EOD token {options.eod_id} where no file lists them"


def _tokenizer(report: ConvertReport) -> str:
    known = report.output.tokenizer
    return "unknown: --tokenizer records it" if known is None else tokenizer_name(known)


def _endings(report: ConvertReport) -> str:
    options = report.options
    if options.append_eod is None:
        return "the EOD token is unknown" if options.eod_id is None else "none has tokens"
    return f"{'all' if options.append_eod else 'not all'} end with the EOD token {options.eod_id}"
