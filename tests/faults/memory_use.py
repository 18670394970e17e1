"""The real command, and how much memory it and its workers took at most.

python memory_use.py '{"arguments": [...], "control": "module:function"}'

Prints ``[kilobytes of this process, kilobytes of its largest worker]``.
"""

from __future__ import annotations

import importlib
import json
import re
import resource
import sys
from pathlib import Path


def main() -> None:
    from tokshard.cli.main import main as command
    from tokshard.text.tokenize.workers import pool

    wanted = json.loads(sys.argv[1])
    if wanted["control"]:
        module, _, function = wanted["control"].partition(":")
        getattr(importlib.import_module(module), function)()
    pool._END_SECONDS = 600.0  # the forkserver must see its workers end, or they are not counted
    sys.argv = ["tokshard", *wanted["arguments"]]
    try:
        command()
    except SystemExit as stop:
        if stop.code:
            raise
    print(json.dumps([own_peak(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss]))


def own_peak() -> int:
    """Return the peak since this program began; ru_maxrss remembers the process that started it."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s*(\d+) kB", status)[1])


if __name__ == "__main__":
    main()
