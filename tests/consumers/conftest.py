"""The blend that all consumers read, prepared once by the commands of docs/consumers.md."""

import pytest

from support.consumers import RANKS, SAMPLES, STEPS, batches_of_a_rank, prepare, samples_of_the_blend


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    """The directory of the blend and its plan."""
    directory = tmp_path_factory.mktemp("consumers")
    (directory / "transcript.txt").write_text(prepare(directory), encoding="utf-8")
    return directory


@pytest.fixture(scope="session")
def samples(prepared):
    """The samples of the blend, by brute force."""
    found = samples_of_the_blend(prepared)
    assert len(found) == SAMPLES
    return found


@pytest.fixture(scope="session")
def expected(samples):
    """The micro-batches of each rank, by brute force."""
    batches = [batches_of_a_rank(samples, rank) for rank in range(RANKS)]
    assert [len(rank) for rank in batches] == [STEPS] * RANKS
    return batches


@pytest.fixture
def workdir(prepared, tmp_path, monkeypatch):
    """A working directory of the test's own with the data, the blend and the plan in it."""
    for name in ("data", "mix", "plan"):
        (tmp_path / name).symlink_to(prepared / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path
