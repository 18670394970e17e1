"""``tokenize --preset megatron`` against Megatron's tokenizers, and against its script where there is one.

``TOKSHARD_MEGATRON=DIR`` names a checkout of Megatron-LM of the installed version, whose
tools/preprocess_data.py is run. Without it, Megatron's own tokenizer and builder are fed as that script feeds
them.
"""

import argparse
import importlib
import importlib.metadata
import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from oracle.support import megatron_or_skip
from support.command_line import tokshard
from support.preset_inputs import (
    EXCLUDE,
    HUGGING_FACE,
    INCLUDE,
    NULL,
    OWN_TOKENS,
    TIKTOKENIZER,
    gpt2,
    make_inputs,
)
from tokshard.core.megatron_rules import is_at_least, known_version

pytestmark = pytest.mark.oracle

CHECKOUT = os.environ.get("TOKSHARD_MEGATRON")
CASES = {
    "Hugging Face": (*HUGGING_FACE, "bos"),
    "Hugging Face, included": (*HUGGING_FACE, "bos", INCLUDE),
    "Hugging Face, not included": (*HUGGING_FACE, "bos", EXCLUDE),
    "Hugging Face, SEP": (*HUGGING_FACE, "sep"),
    "Llama 2": ("--tokenizer-type", "Llama2Tokenizer", "--tokenizer-model", "x.model"),
    "GPT SentencePiece": ("--tokenizer-type", "GPTSentencePieceTokenizer", "--tokenizer-model", "x.model"),
    "SentencePiece": ("--tokenizer-type", "SentencePieceTokenizer", "--tokenizer-model", "x.model"),
    "TikTokenizer": (*TIKTOKENIZER, "1500"),
    "TikTokenizer v1": (*TIKTOKENIZER, "1400", "--tiktoken-pattern", "v1"),
    "TikTokenizer, fewer": (*TIKTOKENIZER, "700", "--tiktoken-num-special-tokens", "150"),
    "TikTokenizer, own": (*TIKTOKENIZER, "700", "--tiktoken-num-special-tokens", "150",
                          "--tokenizer-special-tokens", *OWN_TOKENS),
    "GPT-2": gpt2("gpt2"),
    "null": (*NULL, "50000"),
    "null, int32": (*NULL, "65500"),
    "null, EOD": (*NULL, "50000", "--null-tokenizer-eod-id", "3"),
}  # fmt: skip
NOT_IN = {  # the version that has the option first, or the last one
    "Hugging Face, included": lambda version: is_at_least(version, "0.18") or version == "0.15",
    "Hugging Face, not included": lambda version: not is_at_least(version, "0.17"),
    "TikTokenizer, own": lambda version: version == "0.15",
    "null, EOD": lambda version: not is_at_least(version, "0.18"),
}


@pytest.fixture(scope="module")
def version():
    megatron_or_skip()
    for name in ("transformers", "sentencepiece", "tiktoken"):
        if os.environ.get("TOKSHARD_ORACLE") == "required":
            importlib.import_module(name)
        else:
            pytest.importorskip(name)
    return known_version(importlib.metadata.version("megatron-core"))


@pytest.fixture(scope="module")
def place(version, tmp_path_factory):
    """Return a directory with the inputs and a tokenizer of each type."""
    del version  # it skips
    directory = tmp_path_factory.mktemp("preset")
    make_inputs(directory)
    return directory


def arguments(options):
    """Return what the parser of preprocess_data.py returns, with the defaults of all versions."""
    parser = argparse.ArgumentParser()
    for name in ("tokenizer-type", "tokenizer-model", "vocab-file", "merge-file", "tokenizer-metadata",
                 "tiktoken-pattern", "chat-template"):  # fmt: skip
        parser.add_argument(f"--{name}")
    for name in ("vocab-size", "null-tokenizer-eod-id"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--null-tokenizer-pad-id", type=int, default=-1)
    parser.add_argument("--tiktoken-num-special-tokens", type=int, default=1000)
    for name in ("tokenizer-special-tokens", "tiktoken-special-tokens"):
        parser.add_argument(f"--{name}", nargs="+")
    for name in ("tokenizer-hf-use-fast", "tokenizer-hf-include-special-tokens", "tokenizer-hf-no-use-fast",
                 "tokenizer-hf-no-include-special-tokens", "trust-remote-code", "use-gigatoken",
                 "tokenizer-sentencepiece-legacy"):  # fmt: skip
        parser.add_argument(f"--{name}", action="store_true")
    parsed = parser.parse_args(options)
    parsed.metadata_path, parsed.special_tokens = parsed.tokenizer_metadata, parsed.tokenizer_special_tokens
    parsed.tokenizer_sentencepiece_ignore_extra_whitespaces = parsed.pad_vocab_size = True
    parsed.rank, parsed.make_vocab_size_divisible_by, parsed.tensor_model_parallel_size = 1, 128, 1
    return parsed


def preprocess(version, source, prefix, options, *, append_eod):
    """What preprocess_data.py does, on one process."""
    megatron = megatron_or_skip()
    text = "" if is_at_least(version, "0.17") else "text."
    module = importlib.import_module(f"megatron.core.tokenizers.{text}utils.build_tokenizer")
    tokenizer = module.build_tokenizer(arguments(options))
    dtype = megatron.DType.optimal_dtype(tokenizer.vocab_size)
    builder = megatron.IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
    for line in Path(source).read_text(encoding="utf-8").split("\n")[:-1]:
        value = json.loads(line)["text"]
        tokens, lengths = [], []
        for each in value if isinstance(value, list) else [value]:
            ids = tokenizer.tokenize(each)
            if len(ids) > 0:
                tokens.extend(ids)
                lengths.append(len(ids))
        if len(tokens) > 0 and append_eod:
            tokens.append(tokenizer.eod)
            lengths[-1] += 1
        builder.add_document(tokens, lengths)
    builder.finalize(f"{prefix}.idx")


def run_script(directory, words):
    script = f"{CHECKOUT}/tools/preprocess_data.py"
    search = os.pathsep.join(filter(None, [CHECKOUT, os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": search}
    done = subprocess.run(
        [sys.executable, script, *words, "--workers", "1"],
        cwd=directory, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("case", "append_eod"),
    [
        *((case, True) for case in CASES),
        *((case, False) for case in ("Hugging Face", "Llama 2", "GPT-2", "null")),
    ],
)
def test_the_preset_writes_megatrons_bytes(version, place, tmp_path, monkeypatch, case, append_eod):
    if case in NOT_IN and NOT_IN[case](version):
        pytest.skip(f"Megatron {version} has no such option")
    monkeypatch.chdir(place)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    options, theirs = list(CASES[case]), tmp_path / "theirs_text_document"
    source = str(place / ("ids.jsonl" if case.startswith("null") else "texts.jsonl"))
    end = ["--append-eod"] if append_eod else []
    if CHECKOUT is not None:
        words = ["--input", source, "--output-prefix", str(tmp_path / "theirs"), *options, *end]
        run_script(place, words)
    else:
        preprocess(version, source, theirs, options, append_eod=append_eod)
    preset = ("--preset", "megatron", "--megatron", version, "--workers", "1")
    paths = ("--input", source, "--output-prefix", tmp_path / "ours")
    done = tokshard("tokenize", *preset, *paths, *options, *end, cwd=place)
    assert done.returncode == 0, done.stderr
    for suffix in (".bin", ".idx"):
        ours = (tmp_path / "ours_text_document").with_suffix(suffix)
        assert ours.read_bytes() == theirs.with_suffix(suffix).read_bytes()


LLAMA = {
    "type": "Sequence",
    "normalizers": [
        {"type": "Prepend", "prepend": "\u2581"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
    ],
}
NORMALIZERS = {"none": None, "llama": LLAMA, "lower": {"type": "Lowercase"}, "nfc": {"type": "NFC"}}
FLAGS = [
    dict(zip(("lstrip", "rstrip", "normalized"), flags, strict=True))
    for flags in product((False, True), repeat=3)
]


@pytest.mark.parametrize("normalizer", NORMALIZERS.values(), ids=NORMALIZERS)
@pytest.mark.parametrize("content", ["<s>", "<S>"])
def test_the_added_tokens_that_megatron_does_not_find(version, tmp_path, normalizer, content):
    module = importlib.import_module(
        f"megatron.core.tokenizers.{'' if is_at_least(version, '0.17') else 'text.'}utils.build_tokenizer"
    )
    ids = {name: place for place, name in enumerate(["<unk>", *"ab \u2581"])}
    model = {"type": "BPE", "vocab": ids, "merges": [], "unk_token": "<unk>"}
    for number, flags in enumerate(FLAGS):
        added = {"id": 5, "content": content, "single_word": False, "special": True, **flags}
        directory = tmp_path / str(number)
        directory.mkdir()
        parsed = {"version": "1.0", "added_tokens": [added], "normalizer": normalizer, "model": model}
        parsed |= dict.fromkeys(("truncation", "padding", "pre_tokenizer", "post_processor", "decoder"))
        (directory / "tokenizer.json").write_text(json.dumps(parsed))
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "a", "unk_token": "<unk>"}
        (directory / "tokenizer_config.json").write_text(json.dumps(config))
        exclude = [EXCLUDE] if is_at_least(version, "0.17") else []
        megatron = module.build_tokenizer(arguments([*HUGGING_FACE, str(directory), *exclude]))
        (directory / "in.jsonl").write_text(json.dumps({"text": f"a {content} b"}) + "\n")
        preset = ("--preset", "megatron", "--megatron", version)
        paths = ("--input", "in.jsonl", "--output-prefix", "out")
        done = tokshard("tokenize", *preset, *paths, *HUGGING_FACE, ".", *exclude, cwd=directory)
        finds = 5 in megatron.tokenize(f"a {content} b")
        assert (done.returncode == 0) == finds, (flags, done.stderr)
        assert finds or f"gives other ids for {content!r} of ./tokenizer.json" in done.stderr
