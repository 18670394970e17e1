"""P62: two processes of torch's DistributedDataParallel read a plan, and a state saved once resumes both."""

import pytest

from support.consumers import RANKS, STOPS, check, needed
from support.ddp_runs import batches_of_runs

needed("torch")
pytestmark = pytest.mark.oracle


def test_the_block_of_the_page_reads_and_resumes(workdir, expected):
    runs = batches_of_runs(workdir, STOPS)
    for rank in range(RANKS):
        check([run[rank] for run in runs], expected[rank])
