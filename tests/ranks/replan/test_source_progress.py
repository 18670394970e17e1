"""Progress of sources: rows of files that cannot be are refused."""

import numpy as np
import pytest
from tokshard.ranks.replan.source_progress import SourceEpochTable, progress_of_rows

from tokshard.errors import IntegrityError


def test_rows_that_cannot_be_are_integrity_errors():
    good = np.array([[0, 0, 2, 5], [0, 1, 0, 7], [1, 0, 3, 4]], dtype=np.int64)
    web, code = progress_of_rows(good, [7, 9], [2, 1], "f")
    assert [(each.epoch, each.unread.pairs()) for each in web.open_epochs] == [
        (0, ((2, 5),)),
        (1, ((0, 7),)),
    ]
    assert [(each.epoch, each.unread.pairs()) for each in code.open_epochs] == [(0, ((3, 4),))]
    for place, value in [((0, 0), -1), ((0, 0), 2), ((0, 2), 5), ((1, 3), 8), ((1, 1), 2), ((2, 0), 0)]:
        wrong = good.copy()
        wrong[place] = value
        with pytest.raises(IntegrityError, match="unread"):
            progress_of_rows(wrong, [7, 9], [2, 1], "f")
    source_epochs = np.array([[0, 0, 0], [0, 1, 5], [2, 3, 1]], dtype=np.int64)
    assert SourceEpochTable.checked(source_epochs, 9, "f").of(
        np.array([4, 5, 8]), np.array([0, 0, 2])
    ).tolist() == [
        0,
        1,
        3,
    ]
    for place, value in [((0, 2), 9), ((1, 2), 0), ((1, 1), 0), ((0, 0), -1), ((2, 0), 0)]:
        wrong = source_epochs.copy()
        wrong[place] = value
        with pytest.raises(IntegrityError, match="source epochs"):
            SourceEpochTable.checked(wrong, 9, "f")
