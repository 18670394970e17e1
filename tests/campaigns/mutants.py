"""Indexes with changed bytes: refused for the right reason, or sound, so that only a digest sees the change.

A case is INDEX/WAY/NUMBER, and some hundred mutants. Which of them are sound is decided by a slow reader
that follows the definition of the format value by value.
"""

from __future__ import annotations

import itertools
import random
import struct
from collections import Counter
from collections.abc import Callable, Iterator

from campaigns.tally import Place, Result
from dataset import test_mutants
from dataset.test_mutants import SAMPLES, Sample
from support import plain_datasets
from tokshard.dataset.layout import IndexTable
from tokshard.errors import IntegrityError
from tokshard.storage.digest import content_digest

_MUTANTS = 500
_CONTROL_MUTANTS = 20_000
_EDGES = (0, 1, 2, 127, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)


def _one_byte(chance: random.Random, index: bytearray) -> None:
    place = chance.randrange(len(index))
    index[place] ^= chance.randrange(1, 256)


def _bytes(chance: random.Random, index: bytearray) -> None:
    for _ in range(chance.randint(2, 8)):
        _one_byte(chance, index)


def _bit(chance: random.Random, index: bytearray) -> None:
    index[chance.randrange(len(index))] ^= 1 << chance.randrange(8)


def _number(chance: random.Random, index: bytearray) -> None:
    form, size = chance.choice([("<I", 4), ("<Q", 8)])
    place = chance.randrange(9, max(10, len(index) - size + 1))
    if place + size <= len(index):
        value = chance.choice([*_EDGES, chance.getrandbits(8), chance.getrandbits(size * 8)])
        struct.pack_into(form, index, place, value % 2 ** (8 * size))


def _neighbor(chance: random.Random, index: bytearray) -> None:
    """Write a number that stands elsewhere in the index, or one more or less."""
    size = chance.choice([4, 8])
    if len(index) > 34 + size:
        here, there = (chance.randrange(17, len(index) - size + 1) for _ in range(2))
        value = int.from_bytes(index[there : there + size], "little") + chance.choice([-1, 0, 0, 1])
        index[here : here + size] = (value % 2 ** (8 * size)).to_bytes(size, "little")


def _block(chance: random.Random, index: bytearray) -> None:
    begin = chance.randrange(len(index))
    size = chance.randint(1, 64)
    index[begin : begin + size] = chance.randbytes(min(size, len(index) - begin))


def _cut(chance: random.Random, index: bytearray) -> None:
    del index[chance.randrange(len(index)) :]


def _longer(chance: random.Random, index: bytearray) -> None:
    index += chance.choice(
        [bytes(chance.randint(1, 99)), chance.randbytes(chance.randint(1, 99)), bytes(index)]
    )


def _removed(chance: random.Random, index: bytearray) -> None:
    begin = chance.randrange(len(index))
    del index[begin : begin + chance.randint(1, 24)]


def _inserted(chance: random.Random, index: bytearray) -> None:
    begin = chance.randrange(len(index) + 1)
    index[begin:begin] = chance.randbytes(chance.randint(1, 24))


WAYS: dict[str, Callable[[random.Random, bytearray], None]] = {
    "byte": _one_byte,
    "bytes": _bytes,
    "bit": _bit,
    "number": _number,
    "neighbor": _neighbor,
    "block": _block,
    "cut": _cut,
    "longer": _longer,
    "removed": _removed,
    "inserted": _inserted,
}


def _random_sample(chance: random.Random) -> Sample:
    code = chance.choice([1, 2, 3, 4, 5, 6, 7, 8])
    lengths = [chance.choice([0, 1, 2, chance.randint(3, 300)]) for _ in range(chance.randrange(40))]
    counts, left = [], len(lengths)
    while left:
        counts.append(chance.randint(0, min(left, 4)))
        left -= counts[-1]
    modes = [chance.randint(-128, 127) for _ in lengths] if chance.random() < 0.3 else None
    return Sample(code, tuple(lengths), tuple(counts), None if modes is None else tuple(modes))


class MutantCampaign:
    """The cases, in this process."""

    def __init__(self, place: Place) -> None:
        pass

    def cases(self, seed: int, worker: int, workers: int) -> Iterator[str]:
        names = [*SAMPLES, "random", "random", "random"]
        number = worker
        while True:
            way = list(WAYS)[number % len(WAYS)]
            yield f"{names[number // len(WAYS) % len(names)]}/{way}/{seed}.{number}"
            number += workers

    def run(self, case: str) -> Result:
        name, way, _ = case.split("/")
        chance = random.Random(case)
        sample = SAMPLES[name] if name in SAMPLES else _random_sample(chance)
        index = sample.index
        if _verdict(sample, index) != "sound":
            return Result("sound", failure="the index is not sound to begin with")
        outcomes: Counter[str] = Counter()
        for number in range(_MUTANTS):
            mutant = bytearray(index)
            WAYS[way](chance, mutant)
            content = bytes(mutant)
            verdict = "unchanged" if content == index else _verdict(sample, content)
            if verdict == "sound":
                is_found = content_digest(content) != content_digest(index)
                verdict = "sound, but found by the digest" if is_found else "WRONG: two indexes of one digest"
            outcomes[verdict] += 1
            if verdict.startswith("WRONG"):
                return Result("wrong", number, f"mutant {number}: {verdict}: {content.hex()}")
        return Result("", outcomes.total() - outcomes["unchanged"], counts=outcomes)

    def controls(self) -> Iterator[tuple[str, str | None]]:
        sample = SAMPLES["uint16"]
        mutants = itertools.islice(test_mutants.single_byte_mutants(sample.index), 34 * 255, _CONTROL_MUTANTS)
        counts = test_mutants.judge(
            test_mutants.trusting_reading, sample, mutants, (AssertionError, Exception)
        )
        yield "positive: assert_only_reader", None if counts["WRONG"] > 100 else "was not caught"
        same = test_mutants.judge(test_mutants.checked_reading, sample, [sample.index], IntegrityError)
        yield "negative: the same bytes", None if same == {"same": 1} else f"{dict(same)}"


def _verdict(sample: Sample, index: bytes) -> str:
    """Return ``"refused"``, ``"sound"``, or what is wrong with the reader of the index."""
    multimodal = sample.modes is not None
    defect = plain_datasets.first_defect(index, sample.bin_bytes, multimodal=multimodal)
    try:
        IndexTable.from_buffer(index, bin_bytes=sample.bin_bytes, multimodal=multimodal, path="x.idx")
    except IntegrityError as error:
        if defect is None:
            return f"WRONG: refused though sound: {error}"
        if (error.field, error.offset) != defect:
            return f"WRONG: {defect} is the first defect, not {error.field, error.offset}: {error}"
        return "refused" if error.hint and str(error).startswith("x.idx") else f"WRONG: no hint: {error}"
    except Exception as error:
        return f"WRONG: {type(error).__name__}: {error}"
    return "sound" if defect is None else f"WRONG: opened in spite of {defect}"


make = MutantCampaign
