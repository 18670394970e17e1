"""``torch.randperm`` on the CPU without torch, bit for bit.

Megatron's cyclic sampler draws its order with ``torch.randperm(n, generator=g)`` after
``g.manual_seed(seed)``. That is the 32-bit Mersenne Twister seeded with the low 32 bits of the seed, and
one of two shuffles. Below :data:`INSIDE_OUT_LENGTH` elements a swap forwards, one word for each::

    for i in range(n - 1):
        z = word() % (n - i)
        swap(result[i], result[i + z])

and from there on an inside-out shuffle with two words, the first one high::

    for i in range(n):
        z = (word() << 32 | word()) % (i + 1)
        result[i] = result[z]
        result[z] = i

The words come from numpy's ``RandomState``, whose stream is frozen and which seeds the same way. Only the
swaps are sequential: they run compiled by numba where it is there and the work is large, and otherwise in
Python with the same result (about 0.2 seconds a million).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.errors import UsageError
from tokshard.storage.compilation import WORTH_COMPILING, compiled, has_numba

if TYPE_CHECKING:
    from numpy.typing import NDArray

INSIDE_OUT_LENGTH = (2**32 - 1) // 20
"""From this length on torch draws 64 bits for each element."""

# Words drawn at once: 4 MB, so that they are still in the cache when they are used.
_CHUNK = 1 << 20

Kernel = Callable[[Any, Any, int], None]


def torch_randperm(length: int, seed: int) -> NDArray[np.int64]:
    """Return ``torch.randperm(length, generator=torch.Generator().manual_seed(seed))`` as an array.

    Peak memory is 8 bytes an element and 16 MB.

    Args:
        length: The number of elements.
        seed: The generator's seed; only its low 32 bits matter, as in torch.

    Returns:
        int64 of shape ``(length,)``: a permutation of 0 to ``length - 1``.

    Raises:
        UsageError: The length is negative.

    Example:
        >>> torch_randperm(8, 0).tolist()
        [4, 0, 7, 3, 2, 5, 1, 6]
    """
    if length < 0:
        raise UsageError(f"a permutation cannot have {length} elements")
    if length < INSIDE_OUT_LENGTH:
        return forward_swaps(length, seed)
    return inside_out(length, seed)


def forward_swaps(length: int, seed: int) -> NDArray[np.int64]:
    """Return the permutation that torch draws for short lengths."""
    result = np.arange(length, dtype=np.int64)
    swap = _kernel("forward", length)
    for start, words in _words(seed, max(length - 1, 0), 1):
        remaining = np.arange(length - start, length - start - words.size, -1, dtype=np.int64)
        swap(result, words.astype(np.int64) % remaining, start)
    return result


def inside_out(length: int, seed: int) -> NDArray[np.int64]:
    """Return the permutation that torch draws for long lengths."""
    result = np.empty(length, dtype=np.int64)
    place = _kernel("inside_out", length)
    for start, words in _words(seed, length, 2):
        pairs = words.astype(np.uint64)
        drawn = pairs[0::2] << np.uint64(32) | pairs[1::2]
        bounds = np.arange(start + 1, start + 1 + drawn.size, dtype=np.uint64)
        place(result, (drawn % bounds).astype(np.int64), start)
    return result


def _words(seed: int, draws: int, words_per_draw: int) -> Iterator[tuple[int, NDArray[np.uint32]]]:
    # Yields (number of the first draw, the words of as many draws as fit a chunk).
    generator = np.random.RandomState(seed & 0xFFFFFFFF)
    at_once = _CHUNK // words_per_draw
    for start in range(0, draws, at_once):
        count = min(at_once, draws - start) * words_per_draw
        yield start, generator.randint(0, 1 << 32, size=count, dtype=np.uint32)


def _kernel(name: str, length: int) -> Kernel:
    kernel = _KERNELS[name]
    if length >= WORTH_COMPILING and has_numba():
        return compiled(kernel)
    # Python's own integers from a memoryview are several times faster than numpy's scalars.
    return lambda result, drawn, start: kernel(memoryview(result), drawn.tolist(), start)


def _swap_forward(result: Any, drawn: Any, start: int) -> None:
    for number in range(len(drawn)):
        here = start + number
        there = here + drawn[number]
        kept = result[here]
        result[here] = result[there]
        result[there] = kept


def _place_inside_out(result: Any, drawn: Any, start: int) -> None:
    for number in range(len(drawn)):
        here = start + number
        there = drawn[number]
        # The unset element that is read where both are the same is overwritten at once.
        result[here] = result[there]
        result[there] = here


_KERNELS: dict[str, Kernel] = {"forward": _swap_forward, "inside_out": _place_inside_out}
