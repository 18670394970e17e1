"""The real command, killed at a storage call or broken on purpose.

python killed.py '{"arguments": [...], "kill": ["replace", 3], "control": "module:function"}'

``kill`` names a function of tokshard.storage.syscalls and which of its calls is the last, or is null.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import campaign


def kill_at(name: str, k: int) -> None:
    """Let the k-th call of a storage function be the death of this process."""
    from tokshard.storage import syscalls

    original, count = getattr(syscalls, name), 0

    def wrapped(*arguments: Any) -> Any:
        nonlocal count
        count += 1
        if count == k:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments)

    setattr(syscalls, name, wrapped)


def main() -> None:
    from tokshard.cli.main import main as command

    wanted = json.loads(sys.argv[1])
    campaign.apply_control(wanted["control"])
    if wanted["kill"]:
        kill_at(*wanted["kill"])
    sys.argv = ["tokshard", *wanted["arguments"]]
    command()


if __name__ == "__main__":
    main()
