"""``tokshard verify``: options, one call, one rendering."""

from __future__ import annotations

import tokshard
from tokshard import VerifyOptions
from tokshard.cli.command_run import CommandRun


def verify(options: VerifyOptions, run: CommandRun) -> None:
    """Verify a dataset, index cache, blend, plan or export against its recorded digests.

    All findings are listed. The exit code is 1 if there are errors or warnings.

    Examples:
        tokshard verify out/web
        tokshard verify out/web --level structure
        tokshard verify out/web --level deep --tokenizer tokenizer.json
        tokshard verify --recursive /data/v1
    """
    report = tokshard.verify(options, progress=run.progress)
    run.show(report, lambda report: report.sections(recursive=options.recursive))
    if not report.sound:
        run.found_problems()
