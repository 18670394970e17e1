"""What holds for all tests."""

import datetime as dt
import gc
import os

from hypothesis import HealthCheck, settings

# A test passes or fails by what the code does: not by the speed of the machine, nor by chance.
settings.register_profile(
    "tokshard", deadline=None, derandomize="CI" in os.environ, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tokshard")


def pytest_collection_finish():
    """Keep the collected tests, some hundred thousand objects, from being looked through as garbage."""
    gc.collect()
    gc.freeze()


def pytest_make_parametrize_id(config, val, argname):
    """Name a case with bytes or a time after its argument.

    pytest would write the value itself, which may differ from one test process to the next (a gzip
    header holds the time of its making): then the processes that share out the tests do not agree on
    their names.
    """
    return argname if isinstance(val, bytes | bytearray | dt.datetime) else None
