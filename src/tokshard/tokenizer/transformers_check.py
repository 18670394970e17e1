"""Comparison of a tokenizer with the AutoTokenizer of the same directory, for ``--check-against``.

transformers runs in a process of its own, here or elsewhere: the program
:mod:`tokshard.encode_with_transformers`, the files of the directory and the texts are written to the standard
input of a Python. The other environment needs neither tokshard nor a file of this machine.
"""

from __future__ import annotations

import base64
import glob
import importlib.resources
import importlib.util
import itertools
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from tokshard.core.codec import Key
from tokshard.errors import EncoderMismatchError, MissingExtraError, TokenizerError, UsageError
from tokshard.storage.reading import open_file
from tokshard.tokenizer.definition import Tokenizer
from tokshard.tokenizer.encoders import reference_encoder
from tokshard.tokenizer.equivalence import first_difference
from tokshard.tokenizer.files import parse_object
from tokshard.tokenizer.location import locate_tokenizer

INSTALLED: Final = "transformers"
"""The value of the option for transformers in the environment of tokshard."""

_PROGRAM = "encode_with_transformers"
_DEFINITION = "tokenizer.json"
# What AutoTokenizer looks for in a directory, with the versioned names of tokenizer.json.
_FILES = (
    "tokenizer*.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "config.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece*.model",
    "tiktoken.model",
    "tekken.json",
)
_MAX_SPECIAL_TOKENS = 1000
_SHOWN_CHARACTERS = 300
_HINT = (
    "pass --check-against with a command that starts a Python with transformers, such as "
    "/envs/train/bin/python"
)


@dataclass(frozen=True, slots=True)
class TransformersCheck:
    """The result of a comparison with transformers that found no difference."""

    version: Annotated[str, Key("version", "The version of transformers.")]
    tokenizer_class: Annotated[str, Key("tokenizer_class", "The class that AutoTokenizer chose.")]
    texts: Annotated[int, Key("texts", "Texts that were encoded by both, with equal results.", minimum=0)]


def check_against_transformers(
    tokenizer: Tokenizer, texts: Sequence[str], *, against: str, special_tokens: bool, check_eod: bool
) -> TransformersCheck:
    """Compare ids, number of tokens and EOD token with those of AutoTokenizer.

    Args:
        tokenizer: The tokenizer of a directory.
        texts: The texts to encode; texts that contain the special tokens are added.
        against: ``"transformers"`` for the installed one, or a command that runs the Python program on its
            standard input, for example ``"docker run -i IMAGE python"``.
        special_tokens: Whether special tokens are added, as by ``add_special_tokens`` of transformers.
        check_eod: Whether the EOD token is compared, too.

    Raises:
        UsageError: The tokenizer is not that of a directory.
        MissingExtraError: transformers is not installed.
        TokenizerError: The command fails, or transformers cannot load or use the directory.
        EncoderMismatchError: There is a difference.
    """
    files = _files(tokenizer)
    compared = [*texts, *_special_texts(tokenizer)]
    load, encoded = _answers(
        _command(against),
        {"files": {name: base64.b64encode(content).decode() for name, content in files.items()}},
        {"texts": compared, "special_tokens": special_tokens},
    )
    for answer in (load, encoded):
        if "error" in answer:
            raise TokenizerError(
                f"transformers cannot use the directory of {tokenizer.path}: {_excerpt(answer['error'])}",
                hint="correct the files beside tokenizer.json: the training job would fail with them, too",
            )
    facts = load["facts"]
    version = f"transformers {facts['transformers']} ({facts['class']})"
    _compare_sizes(tokenizer, facts, version, check_eod=check_eod)
    _compare_ids(tokenizer, compared, encoded["ids"], version, special_tokens=special_tokens)
    return TransformersCheck(facts["transformers"], facts["class"], len(compared))


def _compare_sizes(tokenizer: Tokenizer, facts: dict[str, Any], version: str, *, check_eod: bool) -> None:
    if tokenizer.vocab_size != facts["size"]:
        raise _mismatch(
            f"{tokenizer.path} has {tokenizer.vocab_size} tokens, and {facts['size']} in {version}"
        )
    if check_eod and tokenizer.eod_id != facts["eod_id"]:
        eod = facts["tokens"].get("eos_token")
        theirs = "none" if eod is None else f"{eod[0]!r} ({eod[1]})"
        raise _mismatch(
            f"the EOD token of {tokenizer.path} is {tokenizer.eod_token!r} ({tokenizer.eod_id}), "
            f"and {theirs} in {version}"
        )


def _compare_ids(
    tokenizer: Tokenizer, texts: list[str], expected: list[list[int]], version: str, *, special_tokens: bool
) -> None:
    import numpy as np

    ours = reference_encoder(tokenizer, special_tokens=special_tokens).encode(texts)
    bounds = itertools.pairwise(ours.offsets)
    for text, ids, (begin, end) in zip(texts, expected, bounds, strict=True):
        theirs = np.array(ids, np.int64)
        if not np.array_equal(ours.ids[begin:end], theirs):
            difference = first_difference(text, ours.ids[begin:end], theirs)
            raise _mismatch(f"tokshard and {version} disagree on {tokenizer.path}, {difference}")


def _mismatch(message: str) -> EncoderMismatchError:
    return EncoderMismatchError(
        message,
        hint="save the tokenizer with save_pretrained in the training environment and pass the new "
        "directory, for tokshard and for the job; please report the files of this one",
    )


def _files(tokenizer: Tokenizer) -> dict[str, bytes]:
    name = os.path.basename(tokenizer.path or "")
    if tokenizer.kind != "huggingface" or name != _DEFINITION or tokenizer.argument is None:
        shown = tokenizer.argument or "the built-in tokenizer"
        raise UsageError(
            f"--check-against requires the directory of a tokenizer.json, got {shown}",
            hint="pass --tokenizer DIR, the directory that the training job loads",
        )
    location = locate_tokenizer(tokenizer.argument)
    paths = [location.definition, *location.beside]
    for pattern in _FILES:
        paths += glob.glob(os.path.join(glob.escape(os.path.dirname(location.definition)), pattern))
    files = {}
    for path in paths:
        try:
            with open_file(path) as file:
                files[os.path.basename(path)] = file.read()
        except OSError as error:
            raise TokenizerError(f"cannot read {path}: {error.strerror}") from error
    return files


def _special_texts(tokenizer: Tokenizer) -> Iterator[str]:
    # They are rare in a corpus, and settings may change which spaces around them they absorb.
    definition = parse_object(tokenizer.definition, str(tokenizer.path))
    for token in definition.get("added_tokens", [])[:_MAX_SPECIAL_TOKENS]:
        yield f"a {token['content']} b{token['content']}"


def _command(against: str) -> list[str]:
    if against == INSTALLED:
        if importlib.util.find_spec("transformers") is None:
            raise MissingExtraError("--check-against transformers", "transformers")
        return [sys.executable]
    try:
        words = shlex.split(against)
    except ValueError as error:
        raise UsageError(f"--check-against is not a command: {against!r} ({error})", hint=_HINT) from error
    if not words:
        raise UsageError("--check-against must be transformers or a command, got ''", hint=_HINT)
    return words


def _answers(command: Sequence[str], *requests: dict[str, Any]) -> list[dict[str, Any]]:
    try:
        done = subprocess.run(  # noqa: S603 - the command that the user named
            command, input=_script(requests), capture_output=True, check=False
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TokenizerError(f"cannot run {command[0]}: {reason}", hint=_HINT) from error
    answers = [answer for line in done.stdout.splitlines() if (answer := _answer(line)) is not None]
    if len(answers) != len(requests):
        reason = _excerpt(done.stderr.decode("utf-8", "replace")) or "it printed no answer"
        raise TokenizerError(
            f"the command {shlex.join(command)} failed with exit code {done.returncode}: {reason}", hint=_HINT
        )
    return answers


def _script(requests: Sequence[dict[str, Any]]) -> bytes:
    # Python reads its program from the standard input up to the end, so the requests are part of it.
    program = importlib.resources.files("tokshard").joinpath(f"{_PROGRAM}.py").read_bytes()
    lines = "\n".join(map(json.dumps, requests)).encode()
    return (
        "import base64, io, sys\n"
        f"sys.stdin = io.StringIO(base64.b64decode({base64.b64encode(lines)!r}).decode())\n"
        f"exec(compile(base64.b64decode({base64.b64encode(program)!r}), '{_PROGRAM}.py', 'exec'))\n"
    ).encode()


def _answer(line: bytes) -> dict[str, Any] | None:
    # Containers and libraries print lines of their own.
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) and value.get("tokshard") == _PROGRAM else None


def _excerpt(message: str) -> str:
    lines = [line.strip() for line in message.strip().splitlines() if line.strip()]
    return lines[-1][-_SHOWN_CHARACTERS:] if lines else ""
