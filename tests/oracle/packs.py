"""Documents packed slowly: the arrays that Megatron is given, the jobs that read them, and their samples."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from oracle.reference import Recorder, Tokenizer, file_states, items
from support.index_caches import saved, write_dataset
from tokshard.samples.index.description import GPTDatasetDescription
from tokshard.samples.index.entry import CacheEntry
from tokshard.samples.index.splits import parse_split

S = 8
EOD = 60_001
PAD = 60_000
NO_PAD = -1  # what Megatron pads with when the tokenizer has no pad token
IDENTIFIERS = {"class": "a.Tokenizer", "tokenizer_path": "/models/ü"}
CACHE = "cache"

Pack = list[int]


def write_documents(
    prefix: str, lengths: list[int], *, first: int = 1, eod: bool = False
) -> list[np.ndarray]:
    """Write documents of which no two tokens are equal, but for the EOD that may end each; return them."""
    write_dataset(prefix, lengths, first_token=first)
    path = Path(f"{prefix}.bin")
    tokens = np.frombuffer(path.read_bytes(), "<u2").copy()
    ends = np.cumsum(lengths)
    if eod:
        tokens[ends[np.array(lengths) > 0] - 1] = EOD
        path.write_bytes(tokens.tobytes())
    return np.split(tokens.astype(np.int64), ends[:-1])


def random_lengths(draw: np.random.RandomState, length: int, count: int) -> list[int]:
    """Return lengths of documents: 0, close to the multiples of ``length``, and any; the last is not 0."""
    edges = [0, 1, length - 1, length, length + 1, 2 * length, 3 * length, 3 * length + 1]
    lengths = np.where(
        draw.random_sample(count) < 0.4, draw.choice(edges, count), draw.randint(1, 2 * length, count)
    )
    return [*lengths[1:].tolist(), int(draw.randint(1, length + 1))]


def slow_packs(
    lengths: list[int], sequences: range, length: int, draw: np.random.RandomState, *, most: int | None = None
) -> list[Pack]:
    """Pack best-fit decreasing, at most so many documents a sample, and shuffle the packs.

    What a document has beyond whole samples begins a pack; every other one goes to the fullest with room.
    """
    remainders = {n: (lengths[n] - 1) % length + 1 for n in sequences if lengths[n]}
    packs = [[number] for number in remainders if lengths[number] > length]
    short = [number for number in remainders if lengths[number] <= length]
    for number in sorted(short, key=lambda number: -lengths[number]):
        filled = {k: sum(remainders[n] for n in pack) for k, pack in enumerate(packs) if len(pack) != most}
        room = [k for k, tokens in filled.items() if tokens + lengths[number] <= length]
        if room:
            packs[max(room, key=filled.__getitem__)].append(number)
        else:
            packs.append([number])
    return [packs[number] for number in draw.permutation(len(packs))]


@dataclass(frozen=True)
class PackedSample:
    """A sample: its own tokens, the borrowed token, and the lengths of its documents' parts in order."""

    own: list[int]
    borrowed: int
    parts: list[int]

    def text(self, length: int, pad: int, *, extra_token: bool = True) -> list[int]:
        """Return the tokens that Megatron reads."""
        text = [*self.own, self.borrowed] if extra_token else self.own
        return text + [pad] * (length + extra_token - len(text))


@dataclass(frozen=True)
class Packed:
    """The packs of each epoch, and the order in which samples are read: ``order[k]`` is that of sample k."""

    documents: list[np.ndarray]
    length: int
    epochs: list[list[Pack]]
    order: np.ndarray

    @classmethod
    def random(
        cls, documents: list[np.ndarray], length: int, *, epochs: int = 1, seed: int = 0, **how
    ) -> Packed:
        """Pack these documents, or those in the range ``sequences``, once for each epoch."""
        draw = np.random.RandomState(seed)
        lengths = list(map(len, documents))
        sequences = how.pop("sequences", range(len(documents)))
        packed = [slow_packs(lengths, sequences, length, draw, **how) for _ in range(epochs)]
        per_epoch = len(cls(documents, length, packed[:1], np.arange(0)).samples())
        order = [per_epoch * epoch + draw.permutation(per_epoch) for epoch in range(epochs)]
        return cls(documents, length, packed, np.concatenate(order))

    @property
    def packs(self) -> list[Pack]:
        """Return the packs of all epochs."""
        return [pack for epoch in self.epochs for pack in epoch]

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays that Megatron is given."""
        documents: list[int] = []
        rows = []
        for pack in self.packs:
            rows += [(len(documents), start) for start in range(0, len(self.documents[pack[0]]), self.length)]
            documents += pack
        rows.append((len(documents), 0))
        return {
            "document_index": np.array([*documents, documents[0]], np.int32),
            "sample_index": np.array(rows, np.int32),
            "shuffle_index": self.order.astype(np.uint32),
        }

    def samples(self) -> list[PackedSample]:
        """Return the samples in the order of the packs, from the documents alone."""
        found = []
        packs = self.packs
        for pack, following in zip(packs, packs[1:] + packs[:1], strict=True):
            tokens = [int(token) for number in pack for token in self.documents[number]]
            owners = [number for number in pack for _ in self.documents[number]]
            tokens.append(int(self.documents[following[0]][0]))
            for start in range(0, len(owners), self.length):
                stop = min(start + self.length, len(owners))
                parts = list(Counter(owners[start:stop]).values())
                found.append(PackedSample(tokens[start:stop], tokens[stop], parts))
        return found

    def shuffled(self) -> list[PackedSample]:
        """Return the samples in the order in which they are read."""
        samples = self.samples()
        return [samples[number] for number in self.order]

    def write(self, entry: CacheEntry) -> None:
        """Write the files that Megatron looks for; the description needs no content to be found."""
        os.makedirs(entry.directory, exist_ok=True)
        Path(entry.description_path).touch()
        for name, array in self.arrays().items():
            Path(entry.array_path(name)).write_bytes(saved(array))


def entry_of(
    prefix: str, length: int, num_samples: int | None, *, split: str | None = "1", name: str = "train"
) -> CacheEntry:
    """Return the files that Megatron looks for; ``split`` None where each split has datasets of its own."""
    matrix = None if split is None else parse_split(split).matrix_json()
    description = GPTDatasetDescription(prefix, num_samples, name, 1234, length, split, matrix, IDENTIFIERS)
    return CacheEntry.of(description, CACHE)


def start(megatron, length, sizes, *, pad=PAD, eod=EOD, **options):
    """Build the datasets of a job; return those of its splits and what the job wrote."""
    options = {
        "random_seed": 1234,
        "sequence_length": length,
        "path_to_cache": CACHE,
        "tokenizer": Tokenizer(IDENTIFIERS, pad, eod),
        "reset_position_ids": False,
        "reset_attention_mask": False,
        "eod_mask_loss": False,
        "create_attention_mask": False,
        **options,
    }
    if not {"split", "blend_per_split"} & set(options):
        options["split"] = "1"
    with warnings.catch_warnings(), Recorder() as writes:
        warnings.simplefilter("ignore")
        config = megatron.config(**options)
        return megatron.builder(megatron.dataset, sizes, lambda: True, config).build(), list(writes)


def found(megatron, length, sizes, **options):
    """Build the datasets of a job that finds all of its indexes: nothing is written."""
    before = file_states(".")
    datasets, writes = start(megatron, length, sizes, **options)
    assert writes == []
    assert file_states(".") == before
    return datasets


def packed_source(
    prefix, lengths, length, *, num_samples=None, epochs=1, eod=False, first=1, split="1", seed=0
):
    """Write documents and their packed index; return the packs."""
    documents = write_documents(prefix, lengths, eod=eod, first=first)
    packed = Packed.random(documents, length, epochs=epochs, seed=seed)
    packed.write(entry_of(prefix, length, num_samples, split=split))
    return packed


def check(dataset, packed, *, pad=PAD, extra_token=True):
    """Check length, inputs, labels, loss mask and positions of all samples."""
    samples = packed.shuffled()
    assert len(dataset) == len(samples) == len(packed.arrays()["sample_index"]) - 1
    for number, sample in enumerate(samples):
        check_sample(items(dataset, number), sample, packed.length, pad=pad, extra_token=extra_token)


def expected(sample, length, pad, extra_token):
    """Return tokens, labels and loss mask."""
    text = np.array(sample.text(length, pad, extra_token=extra_token))
    tokens, labels = (text[:-1], text[1:]) if extra_token else (text, np.append(text[1:], pad))
    tokens, labels, kept = (
        np.where(tokens == pad, 0, tokens),
        np.where(labels == pad, 0, labels),
        labels != pad,
    )
    return tokens.tolist(), labels.tolist(), kept.tolist()


def check_sample(item, sample, length, *, pad=PAD, extra_token=True):
    values = item.tokens.tolist(), item.labels.tolist(), item.loss_mask.tolist()
    assert values == expected(sample, length, pad, extra_token)
    assert item.position_ids.tolist() == list(range(length))


def has_inter_document_masking(megatron):
    """Tell whether this megatron-core has it: 0.19 has, 0.16 has not."""
    return "inter_document_masking" in {field.name for field in fields(megatron.config)}
