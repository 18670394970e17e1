"""The check of restored loaders finds every fault."""

import numpy as np
import pytest

from support.restored_loaders import assert_same_after_restore


class Counter:
    """A loader of numbers; its faults are those that the check has to find."""

    def __init__(self, items=6, fault=None):
        self.items, self.fault, self.place = items, fault, 0

    def __iter__(self):
        while self.place < self.items:
            self.place += 1
            value = self.place * (7 if self.fault == "restored value" and self.restored else 1)
            yield {
                "tokens": np.array([value], np.int32 if self.fault == "dtype" and self.restored else np.int64)
            }

    restored = False

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        late = self.fault == "late" and state["place"] == 3
        self.place = state["place"] + (1 if late else 0)
        if self.fault == "no end" and state["place"] == self.items:
            self.place = 0
        self.restored = True


@pytest.mark.parametrize("every", [1, 2, 100])
def test_a_loader_that_is_restored_rightly_passes(every):
    assert assert_same_after_restore(Counter(), every=every) == {1: 7, 2: 4, 100: 2}[every]
    assert assert_same_after_restore(Counter(), fresh=Counter) == 7
    assert assert_same_after_restore(Counter(items=0)) == 1


@pytest.mark.parametrize("fault", ["restored value", "dtype", "late", "no end"])
def test_every_fault_is_found(fault):
    with pytest.raises(AssertionError, match="restored before item"):
        assert_same_after_restore(Counter(fault=fault))


def test_a_state_that_keeps_changing_is_no_excuse():
    class Aliasing(Counter):
        state = None

        def state_dict(self):
            self.state = self.state or {}
            self.state["place"] = self.place
            return self.state

    assert assert_same_after_restore(Aliasing(), fresh=Counter) == 7
