"""Random configurations of Megatron's dataset builder, the same on every machine.

Only ``Random.random()`` is used, whose stream Python promises, so that a configuration is known by its kind
and number: the golden digests are kept by those.
"""

from __future__ import annotations

import hashlib
import os
import struct
from dataclasses import dataclass
from random import Random

import numpy as np

KINDS = ("single", "blend", "per-split")
SPLITS = ("train", "valid", "test")
SPLIT_TEXTS = (
    "969, 30, 1",
    "98,1,1",
    "90,5,5",
    "100",
    "100",
    "100,0,0",
    "1,1,1",
    "1,1,1",
    "80,20",
    "0.5,0.25,0.25",
    "90,0,10",
    "0,1,1",
    " 7 , 3",
    "1.5/2.5/3",
    "33.3,33.3,33.4",
    ".1,.2,.7",
    "1000,1,1",
)
# Megatron drops signs and letters, and goes on with another split.
MISREAD_SPLIT_TEXTS = ("99,-1,2", "9e1,1", "80%,20%x3")
LANGUAGES = ("en", "日本語", "größe", "with space", "naïve-😀", 'quote"d', "back\\slash")
TOKENS = 97
DTYPE_CODES = {"int32": 4, "uint16": 8}


@dataclass(frozen=True)
class Source:
    """A dataset to be written.

    Attributes:
        prefix: Its relative path.
        documents: For each document the lengths of its sequences.
        dtype: Of the tokens.
    """

    prefix: str
    documents: tuple[tuple[int, ...], ...]
    dtype: str

    @property
    def lengths(self) -> list[int]:
        """The lengths of all sequences."""
        return [length for document in self.documents for length in document]

    def write(self, directory: str) -> None:
        """Write the pair of files below ``directory``, without the price of forcing them to the disk."""
        path = os.path.join(directory, self.prefix)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        lengths = np.array(self.lengths, "<i4")
        width = np.dtype(self.dtype).itemsize
        bounds = np.cumsum([0, *map(len, self.documents)]).astype("<i8")
        header = struct.pack("<9sQBQQ", b"MMIDIDX", 1, DTYPE_CODES[self.dtype], len(lengths), len(bounds))
        pointers = np.concatenate([[0], np.cumsum(lengths, dtype="<i8")])[:-1].astype("<i8") * width
        with open(f"{path}.idx", "wb") as file:
            file.write(header + lengths.tobytes() + pointers.tobytes() + bounds.tobytes())
        with open(f"{path}.bin", "wb") as file:
            file.write((np.arange(lengths.sum()) * 31 % TOKENS).astype(self.dtype).tobytes())


Blend = tuple[tuple[str, ...], tuple[float, ...] | None]


@dataclass(frozen=True)
class Configuration:
    """What is given to Megatron's builder: its sizes and its configuration object, by Megatron's names.

    ``cached`` is whether a cache directory is named. ``pad`` None is a tokenizer without one.
    """

    name: str
    sources: tuple[Source, ...]
    sequence_length: int
    seed: int
    sizes: tuple[int | None, int | None, int | None]
    split: str | None
    blend: Blend | None
    blend_per_split: tuple[Blend | None, ...] | None
    surplus: float
    extra_token: bool
    drop_last_partial: bool
    multiple_validation_sets: bool
    full_validation: bool
    cached: bool
    tokenizer: dict
    pad: int | None
    eod: int

    @property
    def repeats_a_source(self) -> bool:
        """Whether one blend names a prefix twice."""
        blends = [self.blend] if self.blend else [blend for blend in self.blend_per_split or () if blend]
        return any(len(set(prefixes)) < len(prefixes) for prefixes, _ in blends)


class Draw:
    """Choices made of ``random()`` alone."""

    def __init__(self, seed: str) -> None:
        self._random = Random(seed)

    def below(self, limit: int) -> int:
        return int(self._random.random() * limit)

    def between(self, low: int, high: int) -> int:
        return low + self.below(high - low + 1)

    def often(self, share: float) -> bool:
        return self._random.random() < share

    def pick(self, items):
        return items[self.below(len(items))]

    def several(self, items, count: int) -> list:
        """Return ``count`` different items."""
        rest = list(items)
        return [rest.pop(self.below(len(rest))) for _ in range(count)]


def random_source(draw: Draw, prefix: str) -> Source:
    """Return a dataset of few or many documents, of one or several sequences, among them empty ones."""
    count = draw.pick((9, 40, 150, 400)) if draw.often(0.93) else draw.between(1, 2)
    longest = draw.pick((3, 40, 300))
    several, hollow = draw.often(0.4), draw.often(0.5)
    documents = []
    for _ in range(count):
        sequences = draw.below(4) if several else 1
        empty = hollow and draw.often(0.15)
        documents.append(tuple(0 if empty else draw.between(1, longest) for _ in range(sequences)))
    if not any(map(sum, documents)):
        documents.append((longest,))
    return Source(prefix, tuple(documents), draw.pick(("uint16", "int32")))


def random_size(draw: Draw, samples_per_epoch: int) -> int:
    """Return a number of samples: none, few, a part of an epoch, an epoch's edge, or several epochs."""
    kind = draw.below(6)
    if kind == 0:
        return 0
    if kind == 1:
        return draw.between(1, 3)
    if kind == 2:
        return draw.below(samples_per_epoch + 1)
    edge = samples_per_epoch * draw.between(1, 4)
    return edge if kind == 3 else draw.below(edge + 1)


def random_weights(draw: Draw, count: int) -> tuple[float, ...]:
    kind = draw.below(4)
    if kind == 0:
        return (1.0,) * count
    if kind == 1:
        return tuple(draw.between(1, 9) / 10 for _ in range(count))
    weights = [0.01 + draw.below(10**6) / 10**6 * draw.pick((0.1, 1.0, 30.0)) for _ in range(count)]
    if count > 1 and draw.often(0.03):
        weights[draw.below(count)] = 0.0
    return tuple(weights)


def random_blend(draw: Draw, sources: tuple[Source, ...], *, given: bool) -> Blend:
    """Return prefixes and weights; now and then a prefix twice."""
    prefixes = [source.prefix for source in draw.several(sources, draw.between(1, len(sources)))]
    if len(prefixes) > 1 and draw.often(0.02):
        prefixes[-1] = prefixes[0]
    return tuple(prefixes), random_weights(draw, len(prefixes)) if given else None


def random_tokenizer(draw: Draw) -> dict:
    """Return identifiers as a tokenizer of Megatron has them, non-ASCII ones among them."""
    kwargs = {"vocab_file": "None", "merges_file": "None", "additional_special_tokens": "[]"}
    identifiers = {"class": f"tokenizers.{draw.pick(LANGUAGES)}", "tokenizer_path": draw.pick(LANGUAGES)}
    if draw.often(0.2):
        identifiers["tokenizer_path"] = draw.pick((None, list(LANGUAGES[:2])))
    identifiers.update({key: value for key, value in kwargs.items() if draw.often(0.6)})
    return identifiers


def random_length(draw: Draw, sources: tuple[Source, ...]) -> int:
    """Return a sequence length, seldom longer than the shortest source has tokens."""
    if draw.often(0.03):
        return draw.pick((1, 200, 1000))
    shortest = min(sum(source.lengths) for source in sources)
    return draw.pick([length for length in (2, 3, 8, 17, 64, 200) if length <= max(2, shortest // 100)])


def edge_size(draw: Draw, blend: Blend, sources: tuple[Source, ...], length: int) -> int:
    """Return a size of which one source's share is whole epochs, where one draw more is one too many."""
    number = draw.pick([draw.below(len(blend[0])), blend[1].index(max(blend[1]))])
    tokens = next(sum(source.lengths) for source in sources if source.prefix == blend[0][number])
    samples = (tokens * draw.between(1, 2) - 1) // length
    share = blend[1][number] / sum(blend[1])
    return min(8_000, int(samples / share)) if share else 0


def random_sizes(
    draw: Draw, blends: list[Blend | None], sources: tuple[Source, ...], length: int, *, whole: bool
) -> tuple[int | None, ...]:
    """Return what is asked of each split; ``whole`` where each is made of all of its sources."""
    largest = min(3000, sum(sum(source.lengths) for source in sources) // length) + 1
    sizes = []
    for number, blend in enumerate(blends):
        # A small share is asked for little: a split of one document would need a thousand epochs.
        scale = largest if whole or number == 0 else max(1, largest // 8)
        if blend is not None and blend[1] and draw.often(0.4):
            sizes.append(edge_size(draw, blend, sources, length) if scale == largest else 0)
        elif (blend is None or blend[1] is None) and draw.often(0.25):
            sizes.append(None)
        else:
            sizes.append(random_size(draw, scale))
    return tuple(sizes)


def random_configuration(kind: str, number: int) -> Configuration:
    """Return the configuration of this kind and number.

    Args:
        kind: ``single`` (one dataset, no weights), ``blend`` (one blend, a split string), or ``per-split``.
        number: Any.
    """
    draw = Draw(f"{kind} {number}")
    count = 1 if kind == "single" else draw.between(1, 6)
    sources = tuple(random_source(draw, f"data/{draw.pick(LANGUAGES)}/part{k}") for k in range(count))
    length = random_length(draw, sources)
    split, blend, blend_per_split = None, None, None
    several, full = False, False
    if kind == "per-split":
        blends = [random_blend(draw, sources, given=draw.often(0.6)) for _ in SPLITS]
        blends = [entry if k == 0 or draw.often(0.7) else None for k, entry in enumerate(blends)]
        blend_per_split = tuple(blends)
        several, full = draw.often(0.4), draw.often(0.3)
    else:
        split = draw.pick(MISREAD_SPLIT_TEXTS) if draw.often(0.02) else draw.pick(SPLIT_TEXTS)
        blend = random_blend(draw, sources, given=kind == "blend" and draw.often(0.65))
        blends = [blend] * 3
    sizes = random_sizes(draw, blends, sources, length, whole=kind == "per-split")
    if full and blends[1] and not blends[1][1]:
        sizes = (sizes[0], None, sizes[2])
    full = full and sizes[1] is None
    return Configuration(
        name=f"{kind} {number}",
        sources=sources,
        sequence_length=length,
        seed=draw.pick((1234, 0, 1, 42, 2**31 + 5, 2**32 - 1)),
        sizes=sizes,
        split=split,
        blend=blend,
        blend_per_split=blend_per_split,
        surplus=draw.pick((0.005, 0.005, 0.0, 0.0, 0.0, 0.5)),
        extra_token=draw.often(0.7),
        drop_last_partial=draw.often(0.6),
        multiple_validation_sets=several,
        full_validation=full,
        cached=kind != "single" or draw.often(0.75),
        tokenizer=random_tokenizer(draw),
        pad=draw.pick((None, 3, 5)),
        eod=3,
    )


def digests(files: dict[str, bytes]) -> dict[str, str]:
    """Return one digest of the names of cache files and one of their contents, in the order of the names."""
    names, contents = hashlib.sha256(), hashlib.sha256()
    for name in sorted(files):
        names.update(name.encode() + b"\0")
        contents.update(hashlib.sha256(files[name]).digest())
    return {"names": names.hexdigest(), "contents": contents.hexdigest()}
