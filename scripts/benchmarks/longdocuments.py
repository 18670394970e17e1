"""scripts/bench memory: peak memory of `tokshard tokenize` for one large document.

The memory is that of the largest process: a worker, or what loads the tokenizer for it. Parsing the document
with Python's json is what it is compared with. The encoders must write the same tokens.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import sys
import unicodedata
from collections.abc import Callable
from functools import partial
from pathlib import Path

from measure import ELAPSED, TOKSHARD, Contender, Figure, Run, parser, program, session

LARGEST = Figure("peak MB", lambda run: run["largest_bytes"] / 1e6, "lower")
PARSE = "for line in open(sys.argv[1]): json.loads(line)"

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


def _unicode(chance: random.Random) -> str:
    kinds = ("Cs", "Cn", "Co")
    every = [chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) not in kinds]
    return "".join(chance.choices(every, k=_UNIT_CHARACTERS))


TEXTS: dict[str, Callable[[random.Random], str]] = {
    "prose": _prose,
    "code": _code,
    "Chinese": _chinese,
    "Unicode": _unicode,
}


def _write(path: Path, kind: str, size: int) -> None:
    unit = TEXTS[kind](random.Random(1))
    text = unit * (size // len(unit.encode()))
    short = json.dumps({"text": "a short document of a few words " * 15}) + "\n"
    long = json.dumps({"text": text}, ensure_ascii=False) + "\n"
    path.write_text(short * _SHORT_DOCUMENTS + long, encoding="utf-8")


def main(arguments: list[str]) -> None:
    """Run the benchmark."""
    options = parser("memory", __doc__, rounds=1)
    options.add_argument("tokenizers", nargs="*", help="tokenizer files; without any: the built-in tokenizer")
    options.add_argument("--encoders", nargs="+", default=["fast", "reference"])
    options.add_argument("--texts", nargs="+", default=list(TEXTS), choices=list(TEXTS))
    options.add_argument("--size", type=int, default=16_000_000, help="bytes of the document")
    with session(options, arguments, "tokshard", "tokenizers", "fastokens", "orjson") as bench:
        path = bench.directory / "text.jsonl"
        parsing = program("", PARSE, arguments=[path])
        for kind in bench.options.texts:
            _write(path, kind, bench.options.size)
            for tokenizer in bench.options.tokenizers or [None]:
                encoders = bench.options.encoders if tokenizer else ["reference"]
                base = Contender("json.loads", parsing, is_peer=True, is_watched=True)
                contenders = [base, *(_contender(path, tokenizer, encoder) for encoder in encoders)]
                name = Path(tokenizer).name if tokenizer else "built-in tokenizer"
                title = f"{kind}, {path.stat().st_size / 1e6:.0f} MB, {name}"
                found = bench.run(contenders)
                if len({run["digest"] for result in [*found.values()][1:] for run in result.runs}) > 1:
                    sys.exit(f"{title}: the encoders write different tokens")
                bench.show(found, title=title, base=base.name, figures=[LARGEST, ELAPSED])


def _contender(path: Path, tokenizer: str | None, encoder: str) -> Contender:
    out = path.parent / "out"
    command = [*TOKSHARD, "tokenize", str(path), "-o", str(out / "x"), "--workers", "1", "--quiet"]
    command += ["--max-document-bytes", "1GB"]
    command += ["--tokenizer", tokenizer, "--encoder", encoder, "--eod", "0"] if tokenizer else []

    def digest() -> Run:
        return {"digest": hashlib.sha256((out / "x.bin").read_bytes()).hexdigest()}

    clean = partial(shutil.rmtree, out, ignore_errors=True)
    return Contender(f"{encoder} encoder", command, before=clean, after=digest, is_watched=True)
