"""``tokshard tokenize``: options and one call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

import tokshard
from tokshard import ArrayTask, RayOptions, TokenizeOptions
from tokshard.cli import rendering, terminal
from tokshard.cli.command_run import CommandRun, DryRun
from tokshard.cli.generate import Given
from tokshard.cli.megatron_options import rules_of_preset
from tokshard.core.megatron_rules import MEGATRON_VERSIONS
from tokshard.core.options import RUN, Option, Options
from tokshard.errors import UsageError
from tokshard.text.tokenize.options import DistributionOptions


@dataclass(frozen=True, kw_only=True)
class TokenizeCommand(Options):
    """Options of the command line alone."""

    megatron: Annotated[
        str | None,
        Option(
            "With --preset megatron: tokenize as the preprocess_data.py of this Megatron version: "
            f"{', '.join(MEGATRON_VERSIONS[:-1])} or {MEGATRON_VERSIONS[-1]}.",
            metavar="VERSION",
            default=MEGATRON_VERSIONS[-1],
            group=RUN,
            is_rare=True,
        ),
    ] = None


def tokenize(
    given: Given[TokenizeOptions],
    command: TokenizeCommand,
    planned: DryRun,
    distribution: DistributionOptions,
    ray: Given[RayOptions],
    run: CommandRun,
) -> None:
    """Tokenize text into a Megatron indexed dataset.

    The same command resumes an interrupted run. The output is the same for any number of workers and
    interruptions.

    Examples:
        tokshard tokenize corpus.jsonl --tokenizer tokenizer.json
        tokshard tokenize 'web/*.jsonl.zst' -o out/web --tokenizer hf:gpt2
        zstdcat corpus.jsonl.zst | tokshard tokenize - -o out/corpus --on-error skip
        tokshard tokenize corpus.jsonl --holdout 0.1%
        tokshard tokenize sources.toml
    """
    files = [path for path in given.values.get("inputs", ()) if path.endswith(".toml")]
    if files:
        _tokenize_sources(files[0], given, planned, distribution, ray, run)
        return
    options = given.make()
    rules = rules_of_preset(command.megatron, is_used=options.preset is not None)
    cluster = _cluster(distribution, ray, options.workers)
    if planned.dry_run:
        report = tokshard.tokenize(options, dry_run=True)
        run.warn(report.warnings)
        run.show(report, lambda report: report.sections(rules))
        return
    if not options.names_tokenizer and options.vocab_size is None and not run.quiet:
        terminal.tell("using the built-in byte-level tokenizer; pass --tokenizer for your own")
    if distribution.array_task is not None:
        task = ArrayTask.parse(distribution.array_task)
        run.show(tokshard.tokenize_array_task(options, task, progress=run.progress))
        return
    if distribution.finish:
        report = tokshard.finish_tokenize(options, progress=run.progress)
    else:
        report = tokshard.tokenize(options, executor=cluster, progress=run.progress)
    run.warn(report.warnings)
    run.show(report, lambda report: report.sections(rules))


def _tokenize_sources(
    path: str,
    given: Given[TokenizeOptions],
    planned: DryRun,
    distribution: DistributionOptions,
    ray: Given[RayOptions],
    run: CommandRun,
) -> None:
    """Tokenize the sources in a TOML file; exit with the code of the first failure."""
    common = dict(given.values)
    if len(common.pop("inputs")) > 1:
        raise UsageError(f"{path} must be the only input", hint="pass one TOML file, or input files only")
    for field in ("output", "array_task", "finish"):
        if common.get(field) or getattr(distribution, field, None):
            name = f"--{field.replace('_', '-')}"
            raise UsageError(
                f"{name} cannot be used with {path}", hint="pass the inputs of one source instead"
            )
    cluster = _cluster(distribution, ray, given.values.get("workers"))
    report = tokshard.tokenize_sources(
        path, common, dry_run=planned.dry_run, executor=cluster, progress=run.progress
    )
    for source in report.sources:
        if source.report is not None:
            run.warn(
                [
                    warning if source.output in warning else f"{source.output}: {warning}"
                    for warning in source.report.warnings
                ]
            )
    run.show(report)
    for output, error in report.errors:
        rendering.tell(f"error: {output}: {error.message}")
        if error.hint is not None:
            rendering.tell(f"hint: {error.hint}")
    if report.errors:
        raise typer.Exit(report.errors[0][1].exit_code)


def _cluster(
    distribution: DistributionOptions, ray: Given[RayOptions], workers: int | None
) -> RayOptions | None:
    """Return the options of the Ray cluster, or None to run on this machine."""
    if distribution.executor == "ray":
        if workers is not None:
            raise UsageError(
                "--workers cannot be used with --executor ray",
                hint="omit --workers: the cluster runs as many tasks as it has CPUs for",
            )
        return ray.make()
    for field in ray.values:
        name = ray.declared[field].name
        raise UsageError(f"{name} requires --executor ray", hint=f"add --executor ray, or leave out {name}")
    return None
