"""The fast encoder against the reference, on random strings of many kinds.

A case is TOKENIZER/SEED.NUMBER, and some thousand strings. Tokenizers are those of a directory, or some
that the project makes: every pattern that the fast encoder knows, SentencePiece's form, and that of
sample_data.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from campaigns.strings import SAMPLE_DATA, Strings, texts_of
from campaigns.tally import Place, Result
from support.tokenizer_definitions import BYTE_LEVEL, added, characters, metaspace, probe, sequence, split
from tokshard.text.tokenizer.definition import load_tokenizer
from tokshard.text.tokenizer.encoders import (
    EncodedBatch,
    Encoder,
    reference_encoder,
)
from tokshard.text.tokenizer.fast import fast_encoder, fast_encoder_refusal
from tokshard.text.tokenizer.fast.structure import KNOWN_PATTERNS

_STRINGS = 2000
_CONTROL_BATCHES = 20


def own_definitions() -> dict[str, dict[str, Any]]:
    """Return the definitions that the project can make, by name."""
    found = {"sample-data": json.loads((SAMPLE_DATA / "tokenizer.json").read_text(encoding="utf-8"))}
    for number, pattern in enumerate(sorted(KNOWN_PATTERNS, key=lambda one: (len(one), one))):
        definition = probe(sequence(split(pattern), BYTE_LEVEL))
        size = len(definition["model"]["vocab"])
        definition["added_tokens"] = [added(size, "<|x|>"), added(size + 1, "<s>")]
        found[f"pattern-{number}"] = definition
    found["gpt2"] = probe()
    found["characters"] = characters()
    found["metaspace"] = metaspace()
    found["metaspace-first"] = metaspace(prepend_scheme="first")
    return found


class EncodingCampaign:
    """The cases, in this process."""

    def __init__(self, place: Place) -> None:
        self._paths: dict[str, Path] = {}
        if place.tokenizers:
            self._paths = {path.stem: path for path in sorted(Path(place.tokenizers).glob("*.json"))}
        else:
            for name, definition in own_definitions().items():
                self._paths[name] = place.directory / f"{name}.json"
                self._paths[name].write_text(json.dumps(definition), encoding="utf-8")
        self._refused = {}
        for name, path in self._paths.items():
            if reason := fast_encoder_refusal(
                load_tokenizer(str(path), need_eod=False), special_tokens=False
            ):
                self._refused[name] = reason
        self._texts = texts_of(place.texts)
        self._tools = cache(self._load)

    def cases(self, seed: int, worker: int, workers: int) -> Iterator[str]:
        names = [name for name in self._paths if name not in self._refused]
        number = worker
        while True:
            yield f"{names[number // workers % len(names)]}/{seed}.{number}"
            number += workers

    def run(self, case: str) -> Result:
        name, _, _ = case.partition("/")
        strings, fast, reference = self._tools(name)
        chance = random.Random(case)
        texts = list(strings.draw(chance, _STRINGS))
        wrong = difference(texts, fast, reference)
        outcomes = Counter({"equal" if wrong is None else "differs": len(texts)})
        return Result("", outcomes.total(), wrong, outcomes)

    def controls(self) -> Iterator[tuple[str, str | None]]:
        name = next(name for name in self._paths if name not in self._refused)
        strings, fast, reference = self._tools(name)
        batches = [
            list(strings.draw(random.Random(f"control {n}"), _STRINGS)) for n in range(_CONTROL_BATCHES)
        ]
        wrong = _SwapsIds(fast)
        caught = any(difference(batch, wrong, reference) for batch in batches)
        yield "positive: ids are swapped in texts with a rare pattern", None if caught else "was not caught"
        same = difference(batches[0], reference, reference)
        yield "negative: the reference with itself", same

    def _load(self, name: str) -> tuple[Strings, Encoder, Encoder]:
        path = self._paths[name]
        tokenizer = load_tokenizer(str(path), need_eod=False)
        strings = Strings(json.loads(path.read_text(encoding="utf-8")), self._texts)
        fast = fast_encoder(tokenizer, special_tokens=False)
        return strings, fast, reference_encoder(tokenizer, special_tokens=False)


class _SwapsIds:
    """An encoder that is wrong on purpose: it swaps the last two ids of texts with a joiner after a space."""

    name = "wrong"

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder

    def encode(self, texts: list[str]) -> EncodedBatch:
        found = self._encoder.encode(texts)
        ids = found.ids.copy()
        for text, end in zip(texts, found.offsets[1:].tolist(), strict=True):
            if " \u200d" in text:
                ids[end - 2 : end] = ids[end - 2 : end][::-1].copy()
        return EncodedBatch(ids, found.offsets)


def difference(texts: list[str], encoder: Encoder, reference: Encoder) -> str | None:
    """Say which text two encoders encode differently."""
    found, right = encoder.encode(texts), reference.encode(texts)
    if np.array_equal(found.offsets, right.offsets) and np.array_equal(found.ids, right.ids):
        return None
    for number, text in enumerate(texts):
        one, other = (
            each.ids[each.offsets[number] : each.offsets[number + 1]].tolist() for each in (found, right)
        )
        if one != other:
            return f"{text!a}: {one} instead of {other}"
    return "other offsets"


make = EncodingCampaign
