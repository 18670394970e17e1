"""What holds for all tests."""

import datetime as dt


def pytest_make_parametrize_id(config, val, argname):
    """Name a case with bytes or a time after its argument.

    pytest would write the value itself, which may differ from one test process to the next (a gzip
    header holds the time of its making): then the processes that share out the tests do not agree on
    their names.
    """
    return argname if isinstance(val, bytes | bytearray | dt.datetime) else None
