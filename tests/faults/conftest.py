"""The world of the crash table, which each test process makes once."""

import pytest

from faults.processes import campaign, scratch_directory


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """Inputs and products of all rows, on a memory file system."""
    with scratch_directory(tmp_path_factory.mktemp("world")) as scratch:
        campaign("--world", scratch)
        yield scratch
