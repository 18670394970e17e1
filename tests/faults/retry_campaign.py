"""A crash campaign of several attempts: other options or other inputs after a kill at each storage call.

    python retry_campaign.py '{"workdir": ..., "inputs": ..., "attempts": [...]}'

Each attempt is a command on one version of the inputs. All but the last are killed: at a fixed share of their
calls, or at each call in turn. The last one must end, with the bytes of a clean run of it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import campaign


@dataclass
class Retries:
    """What to try.

    Attributes:
        inputs: The directory with a directory for each version of the inputs, which are copied to ``in``.
        attempts: For each the ``version``, the ``arguments`` and when it is killed: ``"each"``, ``"any"`` (at
            a call that depends on the point), a share of its calls, or null.
        reuses: Whether the last attempt encodes no unit again that was finished by the first, as long as
            nothing was published in between.
        step: Try every step-th call.
    """

    workdir: str
    inputs: str
    attempts: list[dict[str, Any]]
    prefixes: list[str]
    reuses: bool = False
    step: int = 1
    stop_at_failure: bool = False

    def make_fresh(self) -> None:
        """Begin in an empty directory."""
        shutil.rmtree(self.workdir, ignore_errors=True)
        os.makedirs(self.workdir)
        os.chdir(self.workdir)

    def run(self, attempt: dict[str, Any], kill: int | None, *more: str) -> int:
        """Run an attempt that is killed at a call; None to leave it alone."""
        self.lay_out(attempt)
        hook = None if kill is None else campaign.failing_hook(self.campaign, kill)
        return campaign.run_command([*attempt["arguments"], *more], "in", hook=hook)

    def lay_out(self, attempt: dict[str, Any]) -> None:
        """Copy the version of the inputs that an attempt reads."""
        shutil.rmtree("in", ignore_errors=True)
        shutil.copytree(Path(self.inputs, attempt["version"]), "in")

    @property
    def campaign(self) -> campaign.Job:
        """The job of a campaign of one attempt."""
        return campaign.Job(self.workdir, [], self.inputs, self.prefixes)

    def clean(self, attempt: dict[str, Any]) -> tuple[list[campaign.Output], int]:
        """Return the outputs of a clean run, and the number of its calls."""
        self.make_fresh()
        self.lay_out(attempt)
        count = campaign.failing_hook(self.campaign, 0)
        if campaign.load_for(lambda: campaign.command(attempt["arguments"], "in", count)) != 0:
            raise RuntimeError(Path("stderr.txt").read_text())
        return campaign.outputs(self.prefixes), int(Path("count.txt").read_text())


def try_point(retries: Retries, k: int, clean: list[tuple[list[campaign.Output], int]]) -> str | None:
    """Make all attempts, with the kill of one at its k-th call; return what is wrong, or None."""
    retries.make_fresh()
    *killed, last = retries.attempts
    kept: set[str] = set()
    for number, attempt in enumerate(killed):
        calls = clean[number][1]
        when = attempt["kill"]
        kill = {"each": k, "any": 1 + 7 * k % calls}.get(when) or max(1, int(float(when) * calls))
        status = retries.run(attempt, kill)
        if status not in {-signal.SIGKILL, 0, 4}:
            return f"attempt {number} ended with {status}: {Path('stderr.txt').read_text()[-800:]}"
        found = campaign.outputs(retries.prefixes)
        problems = [campaign.judge(found, whole, None) for whole, _ in clean]
        if None not in problems:
            return f"after attempt {number}: {problems[0]}"
        if number == 0:
            kept = campaign.finished_units(retries.prefixes[0])
        # A sealed output is published by the next attempt, which then removes what is kept.
        sealed = (Path(f"{prefix}.tokshard/work/publish.json").exists() for prefix in retries.prefixes)
        if any(files["manifest.json"] for files in found) or any(sealed):
            kept = set()
    Path("encoded.txt").unlink(missing_ok=True)
    status = retries.run(last, None)
    if status == 4 and campaign.outputs(retries.prefixes) in [whole for whole, _ in clean[:-1]]:
        # A kill during the publication of an earlier attempt: its output is finished.
        kept = set()
        status = retries.run(last, None, "--force")
    if status != 0:
        return f"the last attempt ended with {status}: {Path('stderr.txt').read_text()[-800:]}"
    pairs = zip(campaign.outputs(retries.prefixes), clean[-1][0], strict=True)
    if any(files != right for files, right in pairs if right["manifest.json"]):
        return "the last attempt left other bytes than a clean run of it"
    if retries.reuses and (redone := kept & set(campaign.encoded_units())):
        return f"the last attempt redid finished units: {sorted(redone)}"
    # The lock of an output that only a killed attempt has named stays until that is named again.
    if left := [path for path in campaign.leftovers() if not path.endswith("_document.tokshard/lock")]:
        return f"the last attempt left {left}"
    return None


def main() -> None:
    retries = Retries(**json.loads(sys.argv[1]))
    retries.make_fresh()
    clean = [retries.clean(attempt) for attempt in retries.attempts]
    (each,) = [number for number, attempt in enumerate(retries.attempts) if attempt["kill"] == "each"]
    # An attempt that finds work of another has more calls than a clean one; those at its end are the same.
    calls = clean[each][1] + 40
    retries.make_fresh()
    Path("count.txt").write_text(str(calls))
    print(json.dumps(campaign.try_points(retries, lambda k: try_point(retries, k, clean))))


if __name__ == "__main__":
    main()
