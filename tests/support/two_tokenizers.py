"""Datasets of two tokenizers, and the files of three: ``a.json``, ``b.json`` and ``c.json``."""

import json

from support.mixture_data import run
from support.tokenizer_definitions import added, probe

TEXTS = ["hello world", "camelCase 1234567 don't", "日本語テキスト русский", "3.14 http://a.b/c?d=1"] * 12


def write_tokenizer(path, *names):
    """Write a tokenizer with some added tokens before the EOD token; return its path."""
    definition = probe()
    first = len(definition["model"]["vocab"])
    tokens = [*names, "<|endoftext|>"]
    definition["added_tokens"] = [added(first + place, token) for place, token in enumerate(tokens)]
    path.write_text(json.dumps(definition))
    return str(path)


def write_two_tokenizers(directory):
    """Write the tokenizers, and ``data/web`` of ``a.json`` and ``data/code`` of ``b.json``."""
    for letter, names in (("a", ()), ("b", ("<x>",)), ("c", ("<x>", "<y>"))):
        write_tokenizer(directory / f"{letter}.json", *names)
    lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)
    (directory / "corpus.jsonl").write_text(lines)
    tokenize(directory, "web", "a")
    tokenize(directory, "code", "b")
    return directory


def tokenize(directory, name, letter, *options):
    """Tokenize the corpus into ``data/NAME`` with one of the tokenizers."""
    words = (directory / "corpus.jsonl", "-o", directory / f"data/{name}", "--workers", 1)
    done = run("tokenize", *words, "--tokenizer", directory / f"{letter}.json", *options)
    assert done.returncode == 0, done.stderr
