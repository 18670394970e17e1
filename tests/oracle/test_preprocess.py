"""The main job against Megatron: its own builder fed as preprocess_data.py feeds it, byte for byte."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from oracle.support import cases, megatron_or_skip
from support.tokenize_runs import run_tokenize

pytestmark = pytest.mark.oracle

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "sample_data"
MOST_DOCUMENTS = 60  # of each source: enough for several units


@pytest.fixture(scope="module")
def megatron():
    return megatron_or_skip()


def preprocess(megatron, path, prefix, tokenizer_path, *, special_tokens, append_eod, field="text"):
    """What Megatron's preprocess_data.py does with each line, on one process."""
    library = tokenizers.Tokenizer.from_file(str(tokenizer_path))
    eod = library.token_to_id("<|endoftext|>")
    dtype = megatron.DType.optimal_dtype(library.get_vocab_size())
    builder = megatron.IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        value = json.loads(line)[field]
        tokens, lengths = [], []
        for text in value if isinstance(value, list) else [value]:
            ids = library.encode(text, add_special_tokens=special_tokens).ids
            if ids:
                tokens.extend(ids)
                lengths.append(len(ids))
        if tokens and append_eod:
            tokens.append(eod)
            lengths[-1] += 1
        builder.add_document(tokens, lengths)
    builder.finalize(f"{prefix}.idx")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A part of both sources, and documents that are lists, with empty texts among them."""
    directory = tmp_path_factory.mktemp("inputs")
    paths = []
    for name in ("stories", "manuals"):
        lines = (SAMPLE / f"{name}.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
        paths.append(directory / f"{name}.jsonl")
        paths[-1].write_text("".join(lines[:MOST_DOCUMENTS]), encoding="utf-8")
    texts = [json.loads(line)["text"] for line in paths[0].read_text(encoding="utf-8").splitlines()]
    pieces = [["", *text.split(". ")] if number % 3 else [] for number, text in enumerate(texts)]
    paths.append(directory / "lists.jsonl")
    paths[-1].write_text("".join(json.dumps({"text": each}) + "\n" for each in pieces), encoding="utf-8")
    return paths


@pytest.fixture(scope="module")
def tokenizer_files(tmp_path_factory):
    """The sample tokenizer, one that adds BOS, and one whose vocabulary needs int32."""
    directory = tmp_path_factory.mktemp("tokenizers")
    definition = json.loads((SAMPLE / "tokenizer.json").read_text())
    eod = next(token["id"] for token in definition["added_tokens"] if token["content"] == "<|endoftext|>")
    definition["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            "<|endoftext|>": {"id": "<|endoftext|>", "ids": [eod], "tokens": ["<|endoftext|>"]}
        },
    }
    (directory / "bos.json").write_text(json.dumps(definition))
    vocabulary = definition["model"]["vocab"]
    vocabulary.update({f"filler{n}": n for n in range(len(vocabulary), 65500)})
    (directory / "large.json").write_text(json.dumps(definition))
    return {
        "plain": SAMPLE / "tokenizer.json",
        "bos": directory / "bos.json",
        "large": directory / "large.json",
    }


TOKENIZERS = [("plain", False), ("bos", True), ("bos", False), ("large", False)]


@pytest.mark.parametrize(("source", "tokenizer", "append_eod"), cases([0, 1, 2], TOKENIZERS, [False, True]))
def test_the_bytes_are_megatrons(megatron, tmp_path, inputs, tokenizer_files, source, tokenizer, append_eod):
    name, special_tokens = tokenizer
    options = {"special_tokens": special_tokens, "append_eod": append_eod}
    theirs = tmp_path / "theirs"
    preprocess(megatron, inputs[source], theirs, tokenizer_files[name], **options)
    for engine in ("reference", "fast"):
        ours = tmp_path / engine
        run_tokenize(
            str(inputs[source]),
            str(ours),
            tokenizer=str(tokenizer_files[name]),
            encoder=engine,
            unit_size=30_000,
            **options,
        )
        for suffix in (".bin", ".idx"):
            assert ours.with_suffix(suffix).read_bytes() == theirs.with_suffix(suffix).read_bytes()


def test_megatron_reads_ours(megatron, tmp_path, inputs):
    library = tokenizers.Tokenizer.from_file(str(SAMPLE / "tokenizer.json"))
    eod = library.token_to_id("<|endoftext|>")
    prefix = str(tmp_path / "ours")
    run_tokenize([str(path) for path in inputs[:2]], prefix, tokenizer=str(SAMPLE / "tokenizer.json"))
    dataset = megatron.IndexedDataset(prefix)
    texts = [
        json.loads(line)["text"]
        for path in inputs[:2]
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    assert len(dataset.document_indices) == len(texts) + 1
    expected = [[*library.encode(text, add_special_tokens=False).ids, eod] for text in texts if text]
    assert [dataset[k].tolist() for k in range(len(dataset))] == expected
    assert dataset.sequence_lengths.tolist() == [len(token_ids) for token_ids in expected]
    assert np.array_equal(dataset.get(3, 1, 2), expected[3][1:3])
