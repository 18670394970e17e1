"""One command on disks of many sizes: it succeeds, or says so and can be resumed; never silently less.

    python disk_full.py '{"job": {...}, "kind": "tmpfs" | "limit", "sizes": [...]}'

``tmpfs`` mounts a small disk of each size (in bytes) in a mount namespace of its own and enlarges it for
the second run; ``limit`` sets RLIMIT_FSIZE. Prints one JSON object.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import campaign

CLONE_NEWNS = 0x00020000
ROOMY = 64 << 20


def separate_mounts() -> None:
    """Leave the mount namespace of the parent; raises OSError where that is not allowed."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True, capture_output=True)


def mount(path: str, size: int, *options: str) -> None:
    """Mount (or remount) a tmpfs of ``size`` bytes."""
    settings = ",".join([*options, f"size={size}"])
    subprocess.run(["mount", "-t", "tmpfs", "-o", settings, "tmpfs", path], check=True, capture_output=True)


def limited(job: campaign.Job, size: int) -> Callable[[], None]:
    def hook() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        campaign.apply_control(job.control)

    return hook


def try_size(job: campaign.Job, kind: str, size: int, new: list[campaign.Output]) -> tuple[bool, str | None]:
    """Run, judge, run again with room; return whether the disk was too small, and what is wrong."""
    os.chdir("/")
    campaign.fresh(job)
    if kind == "tmpfs":
        mount(job.workdir, size)
        os.chdir(job.workdir)
        os.symlink(f"{job.workdir}-stderr", "stderr.txt")
        hook: Callable[[], None] = lambda: campaign.apply_control(job.control)  # noqa: E731
    else:
        hook = limited(job, size)
    try:
        status = campaign.run_command(job.arguments, job.inputs, hook=hook)
        found = campaign.outputs(job.prefixes)
        if status == 0:
            return False, None if found == new else "success was reported, but bytes are missing"
        if status != 7:
            return True, f"exit status {status}: {Path('stderr.txt').read_text()[-600:]}"
        if (wrong := campaign.judge(found, new, None)) is not None:
            return True, wrong
        if any(files["manifest.json"] for files in found):
            return True, "failure was reported, but there is a manifest"
        if kind == "tmpfs":
            mount(job.workdir, ROOMY, "remount")
        if campaign.run_command(job.arguments, job.inputs) != 0:
            return True, f"the second run failed: {Path('stderr.txt').read_text()[-600:]}"
        if campaign.outputs(job.prefixes) != new:
            return True, "the second run left other bytes"
        return True, None
    finally:
        os.chdir("/")
        if kind == "tmpfs":
            subprocess.run(["umount", "-l", job.workdir], check=True, capture_output=True)


def run(job: campaign.Job, kind: str, sizes: list[int]) -> dict[str, Any]:
    """Try all sizes; return how many there were, how many were too small, and the failures."""
    campaign.fresh(job)
    if campaign.load_for(lambda: campaign.command(job.arguments, job.inputs, None)) != 0:
        raise RuntimeError(Path("stderr.txt").read_text())
    new = campaign.outputs(job.prefixes)
    too_small, failures = 0, {}
    for size in sizes:
        small, wrong = try_size(job, kind, size, new)
        too_small += small
        if wrong is not None:
            failures[size] = wrong
    return {"points": len(sizes), "too_small": too_small, "failures": failures}


if __name__ == "__main__":
    wanted = json.loads(sys.argv[1])
    if wanted["kind"] == "tmpfs":
        try:
            separate_mounts()
        except (OSError, subprocess.CalledProcessError) as error:
            print(json.dumps({"skipped": f"no mount namespace can be had here: {error}"}))
            sys.exit(0)
    print(json.dumps(run(campaign.Job(**wanted["job"]), wanted["kind"], wanted["sizes"])))
