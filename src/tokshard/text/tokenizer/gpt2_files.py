"""GPT-2's two files, vocab.json and merges.txt, and the tokenizer.json that they stand for."""

from __future__ import annotations

from typing import Any, Final

from tokshard.errors import TokenizerError
from tokshard.text.tokenizer.files import parse_object, read_file

_EOD: Final = "<|endoftext|>"


def gpt2_definition(vocabulary: str, merges: str) -> dict[str, Any]:
    """Return the ``tokenizer.json`` that GPT2TokenizerFast of transformers 4 makes of two files.

    Args:
        vocabulary: Path of the ``vocab.json``: a JSON object of tokens and ids.
        merges: Path of the ``merges.txt``: ``#version: 0.2``, then two tokens in each line.

    Raises:
        TokenizerError: A file cannot be read, or is damaged.
    """
    ids = parse_object(read_file(vocabulary), vocabulary)
    if set(map(type, ids.values())) - {int}:
        raise TokenizerError(
            f"{vocabulary} is not a vocabulary: it must have an id for each token",
            hint="pass the vocab.json of a GPT-2 tokenizer",
        )
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    eod = {"id": ids.get(_EOD, len(ids)), "content": _EOD, "normalized": True, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{**eod, "single_word": False, "lstrip": False, "rstrip": False}],
        "normalizer": None,
        "pre_tokenizer": {**byte_level, "add_prefix_space": False},
        "post_processor": {**byte_level, "trim_offsets": False},
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": ids,
            "merges": _read_merges(merges),
        },
    }


def _read_merges(path: str) -> list[list[str]]:
    try:
        first, *lines = read_file(path).decode("utf-8").replace("\r\n", "\n").split("\n")
    except UnicodeDecodeError as error:
        raise TokenizerError(
            f"{path} is not UTF-8 text", hint="pass the merges.txt of a tokenizer"
        ) from error
    # transformers 4 drops the first and the last line, whatever they contain.
    if not first.startswith("#version") or not lines or lines[-1]:
        raise TokenizerError(
            f"{path} must begin with a line '#version: 0.2' and end with a line break",
            hint="fetch the file again if it is cut off, or add what is missing",
        )
    merges: dict[tuple[str, ...], None] = {}
    for number, line in enumerate(lines[:-1], start=2):
        pair = tuple(line.split())
        if len(pair) != 2:
            raise TokenizerError(
                f"{path}:{number} must have two tokens, got {line[:40]!r}", hint="fetch the file again"
            )
        merges[pair] = None
    return [list(pair) for pair in merges]
