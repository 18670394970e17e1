"""``tokenize --preset megatron`` against Megatron's tokenizers, and against its script where there is one.

``TOKSHARD_MEGATRON=DIR`` names a checkout of Megatron-LM of the installed version, whose
tools/preprocess_data.py is run. Without it, Megatron's own tokenizer and builder are fed as that script feeds
them.
"""

import argparse
import base64
import importlib
import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from oracle.support import megatron_or_skip
from support.command_line import SAMPLE, tokshard
from tokshard.core.megatron_versions import is_at_least, known_version

pytestmark = pytest.mark.oracle

CHECKOUT = os.environ.get("TOKSHARD_MEGATRON")
HUGGING_FACE = ("--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model")
INCLUDE, EXCLUDE = "--tokenizer-hf-include-special-tokens", "--tokenizer-hf-no-include-special-tokens"
TIKTOKENIZER = ("--tokenizer-type", "TikTokenizer", "--tokenizer-model", "ranks.json", "--vocab-size")
NULL = ("--tokenizer-type", "NullTokenizer", "--vocab-size")
OWN_TOKENS = ("</s>", "the", "<unk>", "<s>", "<mask>", "<pad>", "<cls>", "<sep>")
SPECIAL_TEXT = "<|endoftext|>two  spaces</s> <mask>\n\n <s>"

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
    "GPT-2": ("--tokenizer-type", "GPT2BPETokenizer", "--vocab-file", "gpt2/vocab.json",
              "--merge-file", "gpt2/merges.txt"),
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
    texts = []
    with (SAMPLE / "stories.jsonl").open(encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line in list(file)[:80]]
    documents = [text if number % 4 else ["", *text.split(". ")] for number, text in enumerate(texts)]
    documents += ["", " ", [], SPECIAL_TEXT, texts[0] + SPECIAL_TEXT + texts[1]]
    write_lines(directory / "texts.jsonl", documents)
    numbers = [" ".join(str(997 * n * k % 50000) for k in range(1, 2 + n % 50)) for n in range(200)]
    write_lines(directory / "ids.jsonl", [*numbers, ["1 2", "3"], []])
    make_hugging_face(directory)
    make_others(directory, texts)
    return directory


def write_lines(path, documents):
    path.write_text("".join(json.dumps({"text": each}, ensure_ascii=False) + "\n" for each in documents))


def make_hugging_face(directory):
    definition = json.loads((SAMPLE / "tokenizer.json").read_text())
    token = {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    named = {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}
    definition["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [token, text],
        "pair": [text, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|endoftext|>": named},
    }
    for name, key in (("bos", "eos_token"), ("sep", "sep_token")):
        (directory / name).mkdir()
        (directory / name / "tokenizer.json").write_text(json.dumps(definition))
        config = {"tokenizer_class": "PreTrainedTokenizerFast", key: "<|endoftext|>"}
        (directory / name / "tokenizer_config.json").write_text(json.dumps(config))


def make_others(directory, texts):
    import sentencepiece
    import tokenizers

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text.replace("\n", " ") for text in texts),
        model_prefix=str(directory / "x"),
        vocab_size=1000,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    # Megatron loads "gpt2" with transformers: here it finds a directory of this name.
    (directory / "gpt2").mkdir()
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator(texts, vocab_size=600, special_tokens=["<|endoftext|>"], show_progress=False)
    trained.save_model(str(directory / "gpt2"))
    vocabulary = json.loads((directory / "gpt2" / "vocab.json").read_text())
    trained.save(str(directory / "gpt2" / "tokenizer.json"))
    (directory / "gpt2" / "config.json").write_text('{"model_type": "gpt2"}')
    (directory / "gpt2" / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    byte_of = {character: byte for byte, character in byte_characters().items()}
    ordinary = [key for key in sorted(vocabulary, key=vocabulary.__getitem__) if key != "<|endoftext|>"]
    longer = [bytes(byte_of[character] for character in key) for key in ordinary if len(key) > 1]
    tokens = [*(bytes([byte]) for byte in range(256)), *longer]
    ranks = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": ""}
        for rank, token in enumerate(tokens)
    ]
    (directory / "ranks.json").write_text(json.dumps(ranks))


def byte_characters():
    """Return the characters that stand for bytes in GPT-2's vocabulary."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}


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
    for line in Path(source).read_text(encoding="utf-8").splitlines():
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
