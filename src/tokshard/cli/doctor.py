"""``tokshard doctor``: options, one library call, one rendering."""

from __future__ import annotations

from typing import Annotated

import typer

import tokshard
from tokshard import DoctorOptions
from tokshard.cli import options
from tokshard.cli.command_run import command_run
from tokshard.cli.declarations import switch
from tokshard.cli.from_launch import read_launch


def doctor(
    launch: Annotated[
        list[str],
        typer.Argument(
            metavar="LAUNCH...",
            help="A launch script with its parameters; a file with arguments, a log, JSON or YAML; a launch "
            "command; or - for stdin.",
            show_default=False,
        ),
    ],
    megatron: options.MegatronVersion = None,
    like: options.Like = None,
    tokenizer_identifiers: options.TokenizerIdentifiers = None,
    path_as: options.PathAs = None,
    variables: options.Variables = None,
    iteration: options.Iteration = None,
    strict: Annotated[
        bool, switch("--strict", help="Exit with code 1 if checks were skipped, too.", group=options.RUN)
    ] = False,
    show_command: Annotated[
        bool,
        switch(
            "--show-command",
            help="Print the launch command as it was understood, and stop.",
            group=options.RUN,
        ),
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Check a Megatron launch script: what its data arguments will do, and which cached indexes it will find.

    Nothing is run, written or built. Variables that the script does not set are unknown; checks that need
    them are listed as skipped. The exit code is 1 if there are errors or warnings.

    Examples:
        tokshard doctor launch.sh
        tokshard doctor --set SLURM_NNODES=8 launch.sh 7b /data/web
        tokshard doctor --megatron 0.19 torchrun pretrain_gpt.py --data-path web ...
        grep -A999 'arguments ---' job.log | tokshard doctor -
    """
    with command_run(as_json=as_json) as run:
        chosen = DoctorOptions(
            launch=tuple(launch) if len(launch) > 1 else read_launch(launch[0]),
            megatron=megatron,
            like=like,
            tokenizer_identifiers=tokenizer_identifiers,
            path_as=options.parse_path_as(path_as),
            variables=options.parse_variables(variables),
            iteration=iteration,
        )
        report = tokshard.doctor(chosen)
        run.show(report, (lambda report: report.command_sections()) if show_command else None)
        if not show_command and not (report.healthy and (report.complete or not strict)):
            run.found_problems()
