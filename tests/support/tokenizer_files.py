"""Tokenizer files of other libraries than `tokenizers`, and slow twins of their published readers."""

import base64
import itertools
import json
from collections import Counter
from functools import cache

from support.tokenizer_definitions import random_texts
from tokshard.text.tokenizer.huggingface import byte_alphabet
from tokshard.text.tokenizer.tiktoken_files import TikTokenizerSettings

# As published, one literal each; tokshard composes them.
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
MEGATRON_PATTERNS = {
    "v1": r"[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    "v2": "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|\\p{N}"
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
}
LLAMA3_SPECIAL = [
    "<|begin_of_text|>",
    "<|end_of_text|>",
    *(f"<|reserved_special_token_{n}|>" for n in range(4)),
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|reserved_special_token_4|>",
    "<|eot_id|>",
    *(f"<|reserved_special_token_{n}|>" for n in range(5, 251)),
]
MEGATRON_SPECIAL = ["<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>"]
SPELLED = [
    *("<s>a</s>", "x<unk> <mask>", "<SPECIAL_7><SPECIAL_999>", "[INST] hi [/INST]", "<|begin_of_text|>a"),
    *("<|eot_id|>", "a<|im_start|>user\n<|im_end|>", "e\u0301<|endoftext|>e\u0301"),
]


@cache
def byte_tokens(count):
    """Return tokens of a byte-level BPE in the order of their ranks; the first 256 are single bytes."""
    texts = [text.encode() for text in random_texts(1, 2000)]
    counts = Counter(
        text[at : at + size] for text in texts for size in (2, 3) for at in range(len(text) - size)
    )
    pairs = [token for token, _ in counts.most_common() if len(token) == 2]
    triples = [token for token, _ in counts.most_common() if len(token) == 3]
    singles = [bytes((byte,)) for byte in range(256)]
    fill = map(bytes, itertools.chain(*(itertools.product(range(256), repeat=size) for size in (2, 3))))
    every = itertools.chain(singles, pairs, triples, fill)
    return tuple(itertools.islice(dict.fromkeys(itertools.islice(every, 2 * count + 70_000)), count))


def tokens_of(definition):
    """Return the bytes of the ordinary tokens of a byte-level BPE, in the order of their ids."""
    special = {token["content"] for token in definition["added_tokens"]}
    ids = {token: index for token, index in definition["model"]["vocab"].items() if token not in special}
    byte_of = {character: value for value, character in enumerate(byte_alphabet())}
    return [bytes(byte_of[character] for character in token) for token in sorted(ids, key=ids.get)]


def write_lines(path, tokens):
    """Write a file of tiktoken's own form."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(base64.b64encode(token) + b" %d\n" % n for n, token in enumerate(tokens)))
    return str(path)


def listed(tokens):
    """Return tokens as the JSON of TikTokenizer lists them."""
    return [
        {"rank": n, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for n, token in enumerate(tokens)
    ]


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
    return str(path)


def split_in_two(directory, definition, names=("vocab.json", "merges.txt")):
    """Write the vocabulary and the merges of a definition; return both paths."""
    model = definition["model"]
    vocabulary, merges = (directory / name for name in names)
    write_json(vocabulary, model["vocab"])
    pairs = (merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"])
    merges.write_text("#version: 0.2\n" + "".join(f"{pair}\n" for pair in pairs), encoding="utf-8")
    return str(vocabulary), str(merges)


def encoded_by_llama3(tokens, batch):
    """Encode as the tokenizer of Meta's repository llama3 does, without BOS."""
    import tiktoken

    special = {name: len(tokens) + n for n, name in enumerate(LLAMA3_SPECIAL)}
    ranks = {token: n for n, token in enumerate(tokens)}
    model = tiktoken.Encoding("llama3", pat_str=LLAMA3_PATTERN, mergeable_ranks=ranks, special_tokens=special)
    return [model.encode(text, allowed_special=set(), disallowed_special=()) for text in batch]


def tiktoken_settings(**arguments):
    """Return settings by the names of the arguments of Megatron's TikTokenTokenizer."""
    names = {name: name if name == "vocab_size" else f"tiktoken_{name}" for name in arguments}
    return TikTokenizerSettings(**{names[name]: value for name, value in arguments.items()})


def encoded_by_tiktokenizer(tokens, batch, *, pattern="v2", num_special_tokens=1000, vocab_size=131072):
    """Encode as Megatron's TikTokenTokenizer does."""
    import tiktoken

    names = [*MEGATRON_SPECIAL, *(f"<SPECIAL_{n}>" for n in range(len(MEGATRON_SPECIAL), num_special_tokens))]
    kept = tokens[: vocab_size - num_special_tokens]
    assert len(kept) == vocab_size - num_special_tokens
    model = tiktoken.Encoding(
        "x",
        pat_str=MEGATRON_PATTERNS[pattern],
        mergeable_ranks={token: n + num_special_tokens for n, token in enumerate(kept)},
        special_tokens={name: n for n, name in enumerate(names)},
    )
    return [model.encode(text, allowed_special="all") for text in batch]
