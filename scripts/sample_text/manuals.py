"""Source 2: small technical texts: code, configuration, tables, logs, numbered lists."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sample_text.chance import Chance

DOCUMENTS = 360
EMPTY = {17, 101, 256, 333}
# Quantiles (0 %, 10 %, ..., 100 %) of blocks per document.
BLOCKS = (1, 1, 1, 2, 2, 3, 4, 5, 7, 9, 40)
# These documents hold characters that JSON may write as escapes, among them a surrogate pair.
ESCAPED = "Caf\u00e9 \u201cN\u00famero\u201d\tfield\n\u00e9 \U0001f600 \u2028 \u00b5 \x7f \\ / \x08 \x0c\n"

_TABLE = tomllib.loads((Path(__file__).parent / "manuals.toml").read_text(encoding="utf-8"))
_SLOT = re.compile(r"@([A-Za-z]+)(\d?)@")


def manual_records() -> Iterator[dict[str, Any]]:
    """Yield the records of source 2: text, id and meta, in an order of fields that varies."""
    for number in range(1, DOCUMENTS + 1):
        chance = Chance(f"manual {number}")
        text, kinds = _document(chance)
        if number in EMPTY:
            text, kinds = "", []
        elif number % 40 == 0:
            text = ESCAPED + text
        meta = {
            "kinds": kinds,
            "version": {"major": chance.below(9), "minor": chance.below(30)},
            "draft": chance.often(0.1),
        }
        record = {"text": text, "id": number, "meta": meta}
        yield {key: record[key] for key in chance.shuffled(list(record))}


def _document(chance: Chance) -> tuple[str, list[str]]:
    count = chance.by_quantiles(BLOCKS)
    if count == 1 and chance.often(0.25):
        return _fill(chance.pick(_TABLE["prose"]["title"]), chance), ["title"]
    blocks = []
    kinds = []
    if count > 1:
        blocks.append("# " + _fill(chance.pick(_TABLE["prose"]["title"]), chance))
    for _ in range(count):
        kind = chance.pick(list(_BLOCKS))
        blocks.append(_BLOCKS[kind](chance))
        kinds.append(kind)
    return "\n\n".join(blocks) + "\n", sorted(set(kinds))


def _fill(template: str, chance: Chance) -> str:
    kept: dict[str, str] = {}

    def value(slot: re.Match[str]) -> str:
        name, kept_as = slot[1], slot[0] if slot[2] else ""
        if kept_as in kept:
            return kept[kept_as]
        if name == "n":
            word = str(chance.between(1, 99))
        elif name == "N":
            word = str(chance.between(100, 99_999))
        else:
            word = _SLOT.sub(value, chance.pick(_TABLE["slots"][name]))
        if kept_as:
            kept[kept_as] = word
        return word

    return _SLOT.sub(value, template)


def _prose(chance: Chance) -> str:
    sentences = chance.shuffled(_TABLE["prose"]["sentence"])[: chance.between(2, 7)]
    return " ".join(_fill(sentence, chance) for sentence in sentences)


def _steps(chance: Chance) -> str:
    steps = chance.shuffled(_TABLE["prose"]["step"])[: chance.between(3, 8)]
    return "\n".join(f"{number}. {_fill(step, chance)}" for number, step in enumerate(steps, start=1))


def _code(chance: Chance) -> str:
    snippet = chance.pick(_TABLE["code"])
    return f"```{snippet['language']}\n{_fill(snippet['text'], chance)}```"


def _configuration(chance: Chance) -> str:
    return _fill(chance.pick(_TABLE["configuration"])["text"], chance).rstrip("\n")


def _log(chance: Chance) -> str:
    second = chance.below(80_000)
    host = _fill("@host@", chance)
    lines = []
    for _ in range(chance.between(3, 14)):
        second += chance.below(90)
        clock = f"{second // 3600 % 24:02}:{second // 60 % 60:02}:{second % 60:02}.{chance.below(1000):03}"
        lines.append(
            f"2024-03-{1 + second // 86_400:02}T{clock}Z {host} "
            + _fill("@level@ @noun@[@N@]: @event@", chance)
        )
    return "\n".join(lines)


def _table(chance: Chance) -> str:
    rows = ["| part | value | unit | state |", "|---|---:|---|---|"]
    rows += [_fill("| @part@ | @N@.@n@ | @unit@ | @state@ |", chance) for _ in range(chance.between(2, 9))]
    return "\n".join(rows)


def _csv(chance: Chance) -> str:
    rows = [_fill('@N@,@noun@,@n@.@n@,"@host@, @state@"', chance) for _ in range(chance.between(3, 16))]
    return "\n".join(["id,kind,amount,note", *rows])


def _fields(chance: Chance) -> str:
    names = chance.shuffled(_TABLE["slots"]["field"])[: chance.between(2, 6)]
    sentences = _TABLE["prose"]["sentence"]
    return "\n".join(_fill(f"`{name}` (@type@)\n:   {chance.pick(sentences)}", chance) for name in names)


_BLOCKS = {
    "prose": _prose,
    "steps": _steps,
    "code": _code,
    "configuration": _configuration,
    "log": _log,
    "table": _table,
    "csv": _csv,
    "fields": _fields,
}
