"""scripts/bench memory: peak memory of `tokshard tokenize` for one very long document."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import sys
import tempfile
import unicodedata
from collections.abc import Callable
from pathlib import Path

import footprint
from measure import machine

_UNIT_CHARACTERS = 300_000
_MARKS = "\uff0c\u3002\uff01\uff1f\u3001\n"
_SHORT_DOCUMENTS = 3000  # before the long one, so that the tokenizer is in use when it comes


def _prose(chance: random.Random) -> str:
    words = ["the", "quick", "brown", "fox", "It's", "don't", "Zürich", "naïve", "and", "of", "3,141", "1999"]
    ends = ["", "", "", "", ".", ",", ",\n"]
    return " ".join(chance.choice(words) + chance.choice(ends) for _ in range(_UNIT_CHARACTERS // 6)) + " "


def _code(chance: random.Random) -> str:
    lines = [
        "def f(x):",
        "return x ** 2  # square",
        "if (a != b) {",
        "}",
        "",
        "print(f(3), a[i])",
        "x['k'] = 7",
    ]
    return "".join("    " * chance.randrange(4) + chance.choice(lines) + "\n" for _ in range(20_000))


def _chinese(chance: random.Random) -> str:
    known = [chr(chance.randrange(0x4E00, 0x9FA5)) for _ in range(3000)]
    return "".join(
        chance.choice(known) + (chance.choice(_MARKS) if chance.random() < 0.06 else "")
        for _ in range(_UNIT_CHARACTERS)
    )


def _ideographs(chance: random.Random) -> str:
    return "".join(chr(chance.randrange(0x4E00, 0x9FA5)) for _ in range(_UNIT_CHARACTERS))


def _unicode(chance: random.Random) -> str:
    kinds = ("Cs", "Cn", "Co")
    every = [chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) not in kinds]
    return "".join(chance.choices(every, k=_UNIT_CHARACTERS))


def _emoji(_: random.Random) -> str:
    return "the quick 😀 brown fox jumps over it. " * (_UNIT_CHARACTERS // 38)


def _bases(chance: random.Random) -> str:
    return "".join(chance.choices("ACGT", k=_UNIT_CHARACTERS))


def _letters(_: random.Random) -> str:
    return "a" * _UNIT_CHARACTERS


TEXTS: dict[str, Callable[[random.Random], str]] = {
    "prose": _prose,
    "code": _code,
    "Chinese": _chinese,
    "ideographs": _ideographs,
    "Unicode": _unicode,
    "emoji": _emoji,
    "bases": _bases,
    "letters": _letters,
}


def _write(path: Path, kind: str, size: int) -> None:
    unit = TEXTS[kind](random.Random(1))
    text = unit * (size // len(unit.encode()))
    short = json.dumps({"text": "a short document of a few words " * 15}) + "\n"
    long = json.dumps({"text": text}, ensure_ascii=False) + "\n"
    path.write_text(short * _SHORT_DOCUMENTS + long, encoding="utf-8")


def main(arguments: list[str]) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="scripts/bench memory", description=__doc__)
    parser.add_argument("tokenizers", nargs="*", help="tokenizer files; without any: the built-in tokenizer")
    parser.add_argument("--encoders", nargs="+", default=["fast", "reference"])
    parser.add_argument("--texts", nargs="+", default=list(TEXTS)[:6], choices=list(TEXTS))
    parser.add_argument("--size", type=int, default=60_000_000, help="bytes of the document")
    options = parser.parse_args(arguments)
    print(machine("tokshard", "tokenizers", "fastokens", "orjson"))
    print(f"{'tokenizer':<20}{'encoder':<11}{'text':<12}{'peak MB':>9}{'seconds':>9}  tokens")
    with tempfile.TemporaryDirectory() as folder:
        for kind in options.texts:
            path = Path(folder) / f"{kind}.jsonl"
            _write(path, kind, options.size)
            for tokenizer in options.tokenizers or [None]:
                for encoder in options.encoders if tokenizer else ["reference"]:
                    _measure(path, tokenizer, encoder, kind, Path(folder) / "out")
            path.unlink()


def _measure(path: Path, tokenizer: str | None, encoder: str, kind: str, out: Path) -> None:
    # The process whose memory is reported is the largest one: a worker, or what loads the tokenizer for it.
    command = [sys.executable, "-c", "from tokshard.cli.main import main; main()"]
    command += ["tokenize", str(path), "-o", str(out / "x"), "--workers", "1", "--quiet"]
    command += ["--tokenizer", tokenizer, "--encoder", encoder, "--eod", "0"] if tokenizer else []
    measured = footprint.take(command, out)
    tokens = hashlib.sha256((out / "x.bin").read_bytes()).hexdigest()[:12]
    name = os.path.basename(tokenizer) if tokenizer else "built-in"
    peak = f"{measured.largest_bytes / 1e6:>9.0f}{measured.seconds:>9.1f}"
    print(f"{name:<20}{encoder:<11}{kind:<12}{peak}  {tokens}", flush=True)
