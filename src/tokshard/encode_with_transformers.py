"""Load tokenizer directories with AutoTokenizer of transformers, export their definitions, and encode texts.

It imports transformers and the standard library only, so it also runs where tokshard is not installed:
tokshard starts a Python and writes this program and a request to the standard input.

Requests are lines of JSON on the standard input, answers are lines of JSON on the standard output::

    {"directory": "/models/llama"}                     load a tokenizer; or {"files": {name: base64}}
    {"directory": "/models/llama", "definition": true}   also export it in the form of tokenizer.json
    {"texts": ["some text"], "special_tokens": true}   encode with the loaded tokenizer

Each request has one answer, in order; its key ``tokshard`` tells it from other output. An answer has the key
``facts``, ``ids`` or ``error``.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

ANSWER = {"tokshard": "encode_with_transformers"}
NAMED_TOKENS = ("bos_token", "eos_token", "pad_token", "sep_token", "cls_token", "unk_token", "mask_token")


def load(directory: str, *, use_fast: bool = True) -> Any:
    """Return the tokenizer of a directory, prepared as by Megatron's HuggingFaceTokenizer."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(
        directory, use_fast=use_fast, trust_remote_code=False, local_files_only=True
    )
    same: dict[str, Any] = {"additional_special_tokens": []}
    if tokenizer.sep_token is None and tokenizer.eos_token:
        same["sep_token"] = tokenizer.eos_token
    elif tokenizer.eos_token is None and tokenizer.sep_token:
        same["eos_token"] = tokenizer.sep_token
    if tokenizer.bos_token is None and tokenizer.cls_token:
        same["bos_token"] = tokenizer.cls_token
    elif tokenizer.cls_token is None and tokenizer.bos_token:
        same["cls_token"] = tokenizer.bos_token
    tokenizer.add_special_tokens(same)
    return tokenizer


def encode(tokenizer: Any, texts: list[str], *, special_tokens: bool) -> list[list[int]]:
    """Return the ids of each text, encoded by itself."""
    return [list(tokenizer(text, add_special_tokens=special_tokens).input_ids) for text in texts]


def facts(tokenizer: Any) -> dict[str, Any]:
    """Return the properties of a tokenizer on which training depends, and the versions."""
    import tokenizers
    import transformers

    named = {name: getattr(tokenizer, name, None) for name in NAMED_TOKENS}
    return {
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
        "python": sys.version.split()[0],
        "class": type(tokenizer).__name__,
        "is_fast": bool(tokenizer.is_fast),
        "size": len(tokenizer),
        # Megatron's EOD token is the EOS token after its wrapper has replaced a missing one by SEP.
        "eod_id": None if named["eos_token"] is None else _id(tokenizer, named["eos_token"]),
        "tokens": {
            name: [str(token), _id(tokenizer, token)] for name, token in named.items() if token is not None
        },
    }


def _id(tokenizer: Any, token: Any) -> int | None:
    index = tokenizer.convert_tokens_to_ids([str(token)])[0]
    return None if index is None else int(index)


def export(tokenizer: Any) -> dict[str, Any]:
    """Return the definition of a tokenizer in the form of ``tokenizer.json``, without truncation and padding.

    ``encode_special_tokens`` is its first key if special tokens in texts are encoded as ordinary text.

    Raises:
        ValueError: No definition gives the ids of the tokenizer.
    """
    if not tokenizer.is_fast:
        raise ValueError(f"{type(tokenizer).__name__} has no definition: it is a slow tokenizer")
    backend = tokenizer.backend_tokenizer
    definition = json.loads(backend.to_str())
    definition.update(truncation=None, padding=None)
    # tokenizers below 0.23 matches a token that was added twice by its first flag, but saves the second.
    for token in _mismatched(definition, tokenizer):
        token["normalized"] = not token["normalized"]
    if mismatched := _mismatched(definition, tokenizer):
        names = ", ".join(repr(token["content"]) for token in mismatched[:4])
        raise ValueError(f"no definition gives the ids of {type(tokenizer).__name__} in texts with {names}")
    return {"encode_special_tokens": True, **definition} if backend.encode_special_tokens else definition


def _mismatched(definition: dict[str, Any], tokenizer: Any) -> list[dict[str, Any]]:
    """Return the added tokens around which a definition gives other ids than the tokenizer."""
    from tokenizers import Tokenizer

    exported = Tokenizer.from_str(json.dumps(definition))
    exported.encode_special_tokens = tokenizer.backend_tokenizer.encode_special_tokens

    def differs(text: str) -> bool:
        probes = [f"a{text}b", f" {text} ", f"{text}{text}", f"A {text}\n{text}", text.lower(), text.upper()]
        # A text in a batch is encoded as a text by itself: no padding was requested.
        theirs = tokenizer(probes, add_special_tokens=True).input_ids
        return any(ours.ids != ids for ours, ids in zip(exported.encode_batch(probes), theirs, strict=True))

    return [token for token in definition["added_tokens"] if differs(token["content"])]


class Session:
    """Answers requests; keeps the tokenizer that was loaded last."""

    def __init__(self) -> None:
        self._tokenizer: Any = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to one request; whatever the libraries raise is an answer, too."""
        try:
            return {**ANSWER, **self._answer(request)}
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - also panics of Rust code
            reason = str(error).strip() or type(error).__name__
            return {**ANSWER, "error": f"{type(error).__name__}: {reason}"}

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if "texts" in request:
            if self._tokenizer is None:
                return {"error": "no tokenizer is loaded"}
            special = bool(request["special_tokens"])
            return {"ids": encode(self._tokenizer, request["texts"], special_tokens=special)}
        self._tokenizer = None
        use_fast = bool(request.get("use_fast", True))
        if "files" not in request:
            self._tokenizer = load(request["directory"], use_fast=use_fast)
        else:
            with tempfile.TemporaryDirectory(prefix="tokenizer-") as directory:
                for name, content in request["files"].items():
                    Path(directory, os.path.basename(name)).write_bytes(base64.b64decode(content))
                self._tokenizer = load(directory, use_fast=use_fast)
        answer: dict[str, Any] = {"facts": facts(self._tokenizer)}
        if request.get("definition"):
            answer["definition"] = export(self._tokenizer)
        return answer


def main() -> int:
    """Answer the requests on the standard input; return the exit code."""
    warnings.simplefilter("ignore")
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    requests = io.TextIOWrapper(sys.stdin.buffer, "utf-8") if hasattr(sys.stdin, "buffer") else sys.stdin
    answers = io.TextIOWrapper(sys.stdout.buffer, "ascii")
    session = Session()
    # Libraries print to stdout as they please; only answers belong there.
    with contextlib.redirect_stdout(sys.stderr):
        for line in requests:
            if line.strip():
                answers.write(json.dumps(session.answer(json.loads(line))) + "\n")
                answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
