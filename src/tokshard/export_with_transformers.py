"""Load a tokenizer directory with AutoTokenizer of transformers, and export its definition.

It imports transformers and the standard library only, so it also runs where tokshard is not installed:
tokshard starts a Python and writes this program and a request to the standard input.

The request is JSON on the standard input, ``{"files": {name: base64}}``. The answer is a line of JSON on the
standard output, with the key ``definition`` or ``error``; its key ``tokshard`` tells it from other output.
"""

from __future__ import annotations

import base64
import contextlib
import io
import itertools
import json
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

ANSWER = {"tokshard": "export_with_transformers"}
_SHOWN_TOKENS = 4


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a request; whatever the libraries raise is an answer as well."""
    try:
        return {**ANSWER, **_answer(request["files"])}
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 - also panics of Rust code
        reason = str(error).strip() or type(error).__name__
        return {**ANSWER, "error": f"{type(error).__name__}: {reason}"}


def _answer(files: dict[str, str]) -> dict[str, Any]:
    import transformers

    before = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="tokenizer-") as directory:
        for name, content in files.items():
            Path(directory, os.path.basename(name)).write_bytes(base64.b64decode(content))
        # transformers 4 may take the type of the model from the path: this one names none.
        os.chdir(directory)
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                ".", use_fast=True, trust_remote_code=False, local_files_only=True
            )
        finally:
            os.chdir(before)
    definition = export(tokenizer)
    add_for_megatron(tokenizer)
    if mismatched := _mismatched(definition, tokenizer):
        raise ValueError(f"Megatron finds {_listed(mismatched)} in other texts than AutoTokenizer")
    return {
        "definition": definition,
        "splits_special_tokens": tokenizer.backend_tokenizer.encode_special_tokens,
        "size": len(tokenizer),
        "eos_token": None if tokenizer.eos_token is None else str(tokenizer.eos_token),
        "transformers": transformers.__version__,
    }


def add_for_megatron(tokenizer: Any) -> None:
    """Add BOS, EOS, CLS and SEP once more, as Megatron's HuggingFaceTokenizer does."""
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


def export(tokenizer: Any) -> dict[str, Any]:
    """Return the definition of a tokenizer in the form of ``tokenizer.json``, without truncation and padding.

    Raises:
        ValueError: No definition gives the ids of the tokenizer.
    """
    name = type(tokenizer).__name__
    if not tokenizer.is_fast:
        raise ValueError(f"{name} has no definition: it is a slow tokenizer")
    definition: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
    definition.update(truncation=None, padding=None)
    # tokenizers below 0.23 matches a token that was added twice by its first flag, but saves the second.
    for token in _mismatched(definition, tokenizer):
        token["normalized"] = not token["normalized"]
    if mismatched := _mismatched(definition, tokenizer):
        raise ValueError(f"no definition gives the ids of {name} in texts with {_listed(mismatched)}")
    return definition


def _mismatched(definition: dict[str, Any], tokenizer: Any) -> list[dict[str, Any]]:
    """Return the added tokens around which a definition gives other ids than the tokenizer."""
    from tokenizers import Tokenizer

    exported = Tokenizer.from_str(json.dumps(definition))
    exported.encode_special_tokens = tokenizer.backend_tokenizer.encode_special_tokens

    def differs(text: str) -> bool:
        # Normalizers make spaces of U+3000 and marks (U+2581) of spaces: a token may strip only one of them.
        beside = itertools.product(("", "a", " ", "\u3000\u2581"), ("", "b", " ", "\n", text))
        probes = [f"{before}{text}{after}" for before, after in beside] + [text.lower(), text.upper()]
        # A text in a batch is encoded as a text by itself: no padding was requested.
        ours = [encoding.ids for encoding in exported.encode_batch(probes)]
        return ours != list(tokenizer(probes, add_special_tokens=True).input_ids)

    return [token for token in definition["added_tokens"] if differs(token["content"])]


def _listed(tokens: list[dict[str, Any]]) -> str:
    return ", ".join(repr(token["content"]) for token in tokens[:_SHOWN_TOKENS])


def main() -> int:
    """Answer the request on the standard input; return the exit code."""
    warnings.simplefilter("ignore")
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    answers = io.TextIOWrapper(sys.stdout.buffer, "ascii")
    # Libraries print to stdout as they please; only the answer belongs there.
    with contextlib.redirect_stdout(sys.stderr):
        answers.write(json.dumps(answer(json.load(sys.stdin))) + "\n")
        answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
