"""Lets worker processes misbehave, and tells what they do; Python imports it if its folder is on PYTHONPATH.

TOKSHARD_SHIM says what happens before the unit of index TOKSHARD_SHIM_UNIT (of each unit, if that is
unset): raise, abort, exit, sleep, or nothing. TOKSHARD_SHIM_LOG is a file that gets the name of each
part that is begun.
"""

import os
import random
import sys
import time


def _misbehave():
    if os.environ.get("TOKSHARD_SHIM") == "raise":
        raise ZeroDivisionError("a bug in the worker")
    if os.environ.get("TOKSHARD_SHIM") == "abort":
        os.abort()
    if os.environ.get("TOKSHARD_SHIM") == "exit":
        os._exit(3)
    if os.environ.get("TOKSHARD_SHIM") == "sleep":
        time.sleep(random.uniform(0, 0.05))


def _install():
    from tokshard.tokenization.encoder import UnitEncoder

    original = UnitEncoder.encode
    wanted = os.environ.get("TOKSHARD_SHIM_UNIT")

    def encode(self, task, report):
        if log := os.environ.get("TOKSHARD_SHIM_LOG"):
            with open(log, "a") as file:
                file.write(f"{task.key.part_name}\n")
        if wanted is None or int(wanted) == task.key.index:
            _misbehave()
        return original(self, task, report)

    UnitEncoder.encode = encode


if "tokshard.tokenization.execution.worker" in sys.orig_argv:
    _install()
