"""``tokshard doctor``: options, one library call, one rendering."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import tokshard
from tokshard import DoctorOptions
from tokshard.cli.command_run import CommandRun
from tokshard.cli.from_launch import read_launch
from tokshard.core.options import RUN, Option, Options


@dataclass(frozen=True, kw_only=True)
class DoctorOutput(Options):
    """Options of the output and the exit code."""

    verbose: Annotated[
        bool, Option("Also print all notes, the plan of each split and all cached indexes.", group=RUN)
    ] = False
    strict: Annotated[
        bool, Option("Exit with code 1 also if checks were skipped because values are unknown.", group=RUN)
    ] = False
    show_command: Annotated[
        bool, Option("Print the launch command as it was understood, and stop.", group=RUN)
    ] = False


@dataclass(frozen=True, kw_only=True)
class LaunchRun(CommandRun):
    """A run without options that a launch command can have: ``srun -q debug``, ``srun --quiet``."""

    quiet: bool = False
    no_progress: bool = False


def doctor(options: DoctorOptions, output: DoctorOutput, run: LaunchRun) -> None:
    """Check a Megatron launch script: what its data arguments will do, and which cached indexes it will find.

    The script is not run, and nothing is written or built. Variables that the script does not set are
    unknown; checks that need them are listed as not checked. The exit code is 1 if there are errors or
    warnings.

    Examples:
        tokshard doctor --set WORLD_SIZE=16 -- "${ARGS[@]}"
        tokshard doctor launch.sh
        tokshard doctor --set SLURM_NNODES=8 launch.sh 7b /data/web
        tokshard doctor --megatron 0.19 torchrun pretrain_gpt.py --data-path web ...
        grep -A999 'arguments ---' job.log | tokshard doctor -
    """
    if len(options.launch_words) == 1:
        options = replace(options, launch=read_launch(*options.launch_words))
    report = tokshard.doctor(options)
    commands = report.command_sections
    run.show(report, lambda _: commands() if output.show_command else report.sections(verbose=output.verbose))
    if not output.show_command and not (report.healthy and (report.complete or not output.strict)):
        run.found_problems()
