"""Tables of the fields of manifest.json, blend.json, plan.json and sources.json, from docstrings.

Each of the three pages has one place for them: first the fields of the file, then those of each class in it.
A class that an earlier page describes is linked.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from tokshard.core.codec import Bounds, Record
from tokshard.core.options import declared_options
from tokshard.dataset.manifest import Manifest
from tokshard.ranks.plan import Plan
from tokshard.ranks.sources import PlanSources
from tokshard.samples.blend.document import BlendDocument

DIRECTORY = Path(__file__).resolve().parents[1] / "docs/reference/formats"
PAGES: dict[str, tuple[Any, ...]] = {
    "manifest.md": (Manifest,),
    "blend.md": (BlendDocument,),
    "plan.md": (Plan, PlanSources),
}
START, END = "<!-- fields, by scripts/update_docs -->\n\n", "\n<!-- end of fields -->"
NOUNS = {int: "integer", float: "number", str: "text", bool: "boolean", Any: "any value"}


def format_pages() -> dict[str, str]:
    """Return the three pages by file name, with the fields of today's classes."""
    pages: dict[str, str] = {}
    homes: dict[Any, str] = {}
    for page, (cls, *others) in PAGES.items():
        records = records_in(cls, {cls: None})
        for other in others:
            records[other] = None
            records_in(other, records)
        parts = [part for part in records if part not in (*homes, cls)]
        homes |= dict.fromkeys(parts, page)
        link = functools.partial(link_from, page, homes)
        tables = table(cls, link) + "".join(f"\n### {title(part)}\n\n{table(part, link)}" for part in parts)
        before, _, rest = (DIRECTORY / page).read_text().partition(START)
        pages[page] = before + START + tables + END + rest.partition(END)[2]
    return pages


def records_in(hint: Any, found: dict[Any, None]) -> dict[Any, None]:
    """Add the classes in a type to those found, each followed by those in its fields, and return them."""
    is_record = isinstance(hint, type) and issubclass(hint, Record)
    for part in stored_fields(hint).values() if is_record else get_args(hint):
        if part in found:
            continue
        if isinstance(part, type) and issubclass(part, Record):
            found[part] = None
        records_in(part, found)
    return found


def link_from(page: str, homes: dict[Any, str], cls: Any, plural: str) -> str:
    """Return a link to the fields of a class."""
    anchor = re.sub(r"[^\w\- ]", "", title(cls).lower()).replace(" ", "-")
    name = f"`{cls.TAG[1]}`" if hasattr(cls, "TAG") else f"object{plural}"
    return f"[{name}]({'' if homes[cls] == page else homes[cls]}#{anchor})"


def stored_fields(cls: Any) -> dict[str, Any]:
    """Return the types of the fields of a class."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}


def title(cls: Any) -> str:
    """Return the first phrase of a docstring as a heading."""
    phrase = re.split(r"[,:.](?:\s|$)", inspect.getdoc(cls) or "")[0]
    phrase = re.sub(r"^(The|An?) ", "", plain(phrase))
    return phrase[0].upper() + phrase[1:]


def meanings(cls: Any) -> dict[str, str]:
    """Return the descriptions of the attributes, also of base classes, and the help of options."""
    described: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        section = inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")[2].partition("\n\n")[0]
        attributes = re.findall(r"(?m)^ {4}(\w+): (.*(?:\n {8}.*)*)", section)
        described |= {name: plain(text) for name, text in attributes}
    options = declared_options(cls)
    return described | {name: plain(f"`{each.name}`: {each.option.help}") for name, each in options.items()}


def plain(text: str) -> str:
    """Return text of a docstring as one line of Markdown."""
    return re.sub(r"\s+", " ", text.replace("``", "`")).replace("|", "\\|")


def table(cls: Any, link: Callable[[Any, str], str]) -> str:
    """Return the table of the fields of a class."""
    rows = [("field", "type", "meaning"), ("---", "---", "---")]
    if hasattr(cls, "SCHEMA"):
        rows.append(("`schema`", f'`"{cls.SCHEMA}"`', "Name and version of the format."))
    if hasattr(cls, "TAG"):
        rows.append((f"`{cls.TAG[0]}`", f'`"{cls.TAG[1]}"`', "Value that selects these fields."))
    if hasattr(cls, "ALGORITHM"):
        rows.append(("`algorithm`", f'`"{cls.ALGORITHM}"`', "Name and version of the algorithm."))
    defaults = {field.name: field.default for field in dataclasses.fields(cls)}
    for name, kind in stored_fields(cls).items():
        text = type_text(kind, link)
        if defaults[name] is None:
            text = f"{text.removesuffix(' or null')} or absent"
        rows.append((f"`{name}`", text, meanings(cls)[name]))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def type_text(hint: Any, link: Callable[[Any, str], str], plural: str = "") -> str:
    """Return a type in words, with links to the classes in it."""
    marks = getattr(hint, "__metadata__", ())
    hint = hint.__origin__ if marks else hint
    origin, items = get_origin(hint), get_args(hint)
    if origin is Literal:
        return ", ".join(f'`"{item}"`' if isinstance(item, str) else f"`{item}`".lower() for item in items)
    if origin in {Union, types.UnionType}:
        kinds = ("null" if item is types.NoneType else type_text(item, link, plural) for item in items)
        text = " or ".join(kinds)
        return f"({text})" if plural else text
    if origin is tuple:
        (item,) = {*items} - {...}  # all items have one type
        number = "" if ... in items else f"{len(items)} "
        return f"array{plural} of {number}{type_text(item, link, 's')}"
    if origin is dict:
        return f"object{plural} by name: {type_text(items[1], link, 's')}"
    bounds = next((mark for mark in marks if isinstance(mark, Bounds)), Bounds())
    return bounded(NOUNS[hint] + plural, bounds) if hint in NOUNS else link(hint, plural)


def bounded(noun: str, bounds: Bounds) -> str:
    """Return a noun with the bounds of its values."""
    if bounds.pattern is not None:
        digits = re.fullmatch(r"\[0-9a-f\]\{(\d+)\}", bounds.pattern)
        is_list = re.fullmatch(r"[\w-]+(\|[\w-]+)+", bounds.pattern)
        choices = ", ".join(f'`"{choice}"`' for choice in bounds.pattern.split("|"))
        return f"{digits[1]} hex digits" if digits else choices if is_list else noun
    limits = (("at least", bounds.low), ("at most", bounds.high))
    text = ", ".join(f"{words} {limit}" for words, limit in limits if limit is not None)
    return f"{noun} ({text})" if text else noun
