import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokshard.errors import UsageError
from tokshard.samples.index import shuffling
from tokshard.samples.index.shuffling import _STATE_WORDS as STATE_WORDS
from tokshard.samples.index.shuffling import ShuffleStream
from tokshard.storage import compilation

DTYPES = ["int32", "uint32", "int64", "uint64"]
needs_numba = pytest.mark.skipif(not compilation.has_numba(), reason="numba is not installed")


@pytest.fixture
def always_compiled(monkeypatch):
    """Every array goes through the kernel, in calls of a few steps."""
    monkeypatch.setattr(shuffling, "WORTH_COMPILING", 0)
    monkeypatch.setattr(shuffling, "_STEPS_OF_A_CALL", 1500)


def assert_same_shuffles(seed, sizes, dtype):
    ours, numpys = ShuffleStream(seed), np.random.RandomState(seed)
    for size in sizes:
        array = np.arange(size, dtype=dtype)
        expected = array.copy()
        ours.shuffle(array)
        numpys.shuffle(expected)
        assert array.dtype == expected.dtype
        assert array.tolist() == expected.tolist()


@needs_numba
@pytest.mark.usefixtures("always_compiled")
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_kernel_gives_numpys_bits_for_every_size_in_one_stream(dtype):
    assert_same_shuffles(7, range(700), dtype)


@needs_numba
@pytest.mark.usefixtures("always_compiled")
@pytest.mark.parametrize("power", range(9, 18))
def test_the_kernel_gives_numpys_bits_around_powers_of_two(power):
    assert_same_shuffles(power, [2**power - 1, 2**power, 2**power + 1, 2**power + 2, 3], "int32")


@needs_numba
@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(0, 6000), max_size=6),
    st.sampled_from(DTYPES),
    st.integers(1, 3000),
)
@settings(max_examples=60, deadline=None)
def test_the_kernel_gives_numpys_bits_however_its_calls_are_cut(seed, sizes, dtype, steps):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shuffling, "WORTH_COMPILING", 0)
        patch.setattr(shuffling, "_STEPS_OF_A_CALL", steps)
        assert_same_shuffles(seed, sizes, dtype)


@needs_numba
def test_small_and_large_arrays_share_one_stream():
    sizes = [10, compilation.WORTH_COMPILING, 3, compilation.WORTH_COMPILING + 12345, 1000]
    assert_same_shuffles(1234, sizes, "int32")


@needs_numba
@pytest.mark.usefixtures("always_compiled")
def test_a_word_is_drawn_again_at_the_end_of_a_state():
    # One shuffle of 2 uses one word, so every position of the state is once the beginning.
    assert_same_shuffles(5, [2] * (STATE_WORDS + 3) + [1030], "int32")


@pytest.mark.usefixtures("always_compiled")
def test_arrays_that_the_kernel_does_not_take_are_left_to_numpy():
    for array in (np.arange(40, dtype="int16"), np.arange(80, dtype="int32")[::2], np.arange(9) / 2):
        expected = array.copy()
        np.random.RandomState(3).shuffle(expected)
        ShuffleStream(3).shuffle(array)
        assert array.tolist() == expected.tolist()


def test_a_slice_is_shuffled_in_its_place():
    array = np.arange(50, dtype=np.int32)
    ShuffleStream(1).shuffle(array[10:40])
    assert array[:10].tolist() == list(range(10))
    assert array[40:].tolist() == list(range(40, 50))
    assert sorted(array[10:40].tolist()) == list(range(10, 40)) != array[10:40].tolist()


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_out_of_range_is_refused(seed):
    with pytest.raises(UsageError, match=f"the seed must be from 0 to 4294967295, got {seed}"):
        ShuffleStream(seed)


PROGRAM = """
import sys
{before}
import numpy as np
from tokshard.samples.index import shuffling
shuffling.WORTH_COMPILING = 0
array = np.arange(5000, dtype=np.int32)
shuffling.ShuffleStream(9).shuffle(array)
expected = np.arange(5000, dtype=np.int32)
np.random.RandomState(9).shuffle(expected)
assert (array == expected).all()
print("numba" in sys.modules, shuffling.compiled.cache_info().currsize)
"""


def printed(before, **environment):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(before=before)],
        capture_output=True,
        text=True,
        check=False,
        env=environment or None,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_without_numba_the_bits_are_the_same():
    hide = (
        "import importlib.util as u; f = u.find_spec; u.find_spec = lambda n: None if n == 'numba' else f(n)"
    )
    assert printed(hide) == ["False", "0"]


@needs_numba
def test_where_nothing_can_be_kept_on_disk_the_kernel_is_compiled_for_the_process():
    refuse = (
        "import numba.core.caching as c\n"
        "def refuse(*args): raise RuntimeError('no locator available')\n"
        "c.FunctionCache.__init__ = refuse"
    )
    assert printed(refuse) == ["True", "1"]
