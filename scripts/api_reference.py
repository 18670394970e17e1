"""docs/reference/api.md from the docstrings of the public names."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import textwrap
import types
import typing
from collections.abc import Iterator
from typing import Any

import tokshard
from tokshard import errors, loader
from tokshard.core.codec import Key
from tokshard.loader import torch

SECTIONS = ("Args", "Attributes", "Returns", "Yields", "Warns", "Raises", "Example", "Examples", "Note")
HEAD = """# Python API

Every command is a typed function that takes one options dataclass and returns one report. This page is
generated from the docstrings by `scripts/update_docs`; the examples in them run as tests.

```python
import tokshard
```

Every report has `to_json()`, which returns the document that `--json` prints (see [JSON output](json.md)).
Functions raise the errors of [`tokshard.errors`](#errors); each error has the exit code of the command line.
"""


def api_reference() -> str:
    """Return the page."""
    public = public_of(tokshard)
    functions = {name: value for name, value in public.items() if inspect.isfunction(value)}
    options = {name: value for name, value in public.items() if name.endswith("Options")}
    documents = {
        name: value
        for name, value in public.items()
        if (inspect.isclass(value) and dataclasses.is_dataclass(value) and name not in options)
        or isinstance(value, types.UnionType)
    }
    rest = {name: value for name, value in public.items() if name not in {*functions, *options, *documents}}
    chapters = [
        ("Functions", functions),
        ("Options", options),
        ("Reports and other values", documents),
        ("Readers, writers and indexes", rest),
    ]
    parts = [HEAD]
    for title, members in chapters:
        parts.append(f"## {title}\n")
        parts += [entry(name, value) for name, value in members.items()]
    for module in (loader, torch):
        parts.append(f"## `{module.__name__}`\n\n{plain(inspect.cleandoc(module.__doc__ or ''))}")
        parts += [entry(name, value) for name, value in public_of(module).items()]
    parts.append("## Errors\n\n```text\n" + error_tree() + "\n```\n")
    return "\n".join(parts)


def public_of(module: types.ModuleType) -> dict[str, Any]:
    """Return the names that a module exports."""
    return {name: getattr(module, name) for name in sorted(module.__all__) if not name.startswith("_")}


def error_tree() -> str:
    """Return the tree that the docstring of ``tokshard.errors`` draws."""
    text = inspect.cleandoc(errors.__doc__ or "")
    block = text.split("::\n\n", 1)[1]
    lines = []
    for line in block.splitlines():
        if line and not line.startswith(" "):
            break
        lines.append(line[4:])
    return "\n".join(lines).rstrip()


def entry(name: str, value: Any) -> str:
    """Return the entry of one public name."""
    if isinstance(value, types.UnionType):
        kinds = " | ".join(kind.__name__ for kind in value.__args__)
        return f"### `{name}`\n\n```python\n{name} = {kinds}\n```\n"
    text = f"### `{name}`\n\n```python\n{signature(name, value)}\n```\n\n{docstring(value)}"
    if inspect.isclass(value):
        fields = described_fields(value)
        text += f"\n**Fields**\n\n{fields}" if fields else ""
        for method_name, method in members_of(value):
            text += f"\n#### `{name}.{method_name}`\n\n"
            if inspect.isfunction(method):
                text += f"```python\n{signature(method_name, method)}\n```\n\n"
            text += docstring(method)
    return text


def members_of(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties that a class itself defines and documents."""
    for name, member in vars(cls).items():
        function = getattr(member, "__func__", member)
        is_shown = isinstance(function, property) or inspect.isfunction(function)
        if is_shown and function.__doc__ and not name.startswith("_"):
            yield name, function


def signature(name: str, value: Any) -> str:
    """Return how a function or class is called, one parameter a line where it is long."""
    if is_protocol(value):
        return f"class {name}(Protocol)"
    if dataclasses.is_dataclass(value) and isinstance(value, type):
        kinds = field_types(value)
        fields = [field_line(field, kinds[field.name]) for field in dataclasses.fields(value) if field.init]
        return f"{name}(\n    " + ",\n    ".join(fields) + ",\n)" if fields else f"{name}()"
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return name
    parameters = [text for text in parameter_texts(found) if text not in {"self", "cls"}]
    is_bare = inspect.isclass(value) or found.return_annotation is found.empty
    result = "" if is_bare else f" -> {annotation(found.return_annotation)}"
    one_line = f"{name}({', '.join(parameters)}){result}"
    if len(one_line) <= 100:
        return one_line
    return f"{name}(\n    " + ",\n    ".join(parameters) + f",\n){result}"


def parameter_texts(found: inspect.Signature) -> Iterator[str]:
    """Yield the parameters of a signature as source code, with the marker of those by keyword only."""
    is_marked = False
    for parameter in found.parameters.values():
        is_marked |= parameter.kind is parameter.VAR_POSITIONAL
        if parameter.kind is parameter.KEYWORD_ONLY and not is_marked:
            is_marked = True
            yield "*"
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        kind = "" if parameter.annotation is parameter.empty else f": {annotation(parameter.annotation)}"
        value = "" if parameter.default is parameter.empty else default_text(parameter.default)
        spaced = " = " if kind else "="
        yield f"{stars}{parameter.name}{kind}" + (f"{spaced}{value}" if value else "")


def annotation(kind: object) -> str:
    """Return an annotation as it is written in the source."""
    return kind if isinstance(kind, str) else inspect.formatannotation(kind)


def field_types(cls: type) -> dict[str, Any]:
    """Return the types of the fields; the text where a type is imported for type checkers alone."""
    types_of_fields: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        for name, text in vars(base).get("__annotations__", {}).items():
            try:
                types_of_fields[name] = eval(text, vars(sys.modules[base.__module__]), dict(vars(base)))
            except (NameError, TypeError):
                types_of_fields[name] = text
    return types_of_fields


def field_kind(field: dataclasses.Field[Any], resolved: Any) -> str:
    """Return the type of a field as it is written in the source, without what the codec needs of it."""
    text = str(field.type)
    if text.startswith("Annotated["):
        return re.split(r", (?:Key|NotStored)\(", text.removeprefix("Annotated["))[0]
    if typing.get_origin(resolved) is typing.Annotated:
        return re.sub(r"\b(?:\w+\.)+(?=\w)", "", inspect.formatannotation(resolved.__origin__))
    return text


def is_protocol(value: object) -> bool:
    """Return whether a value is a class that only says what others have."""
    return inspect.isclass(value) and getattr(value, "_is_protocol", False)


def described_fields(cls: type) -> str:
    """Return the fields that a docstring does not describe, with the descriptions of the JSON schema."""
    if not dataclasses.is_dataclass(cls):
        return ""
    kinds = field_types(cls)
    text = ""
    for field in dataclasses.fields(cls):
        keys = [mark for mark in getattr(kinds[field.name], "__metadata__", ()) if isinstance(mark, Key)]
        if keys and not re.search(rf"(?m)^ +{field.name}: ", cls.__doc__ or ""):
            other = "" if keys[0].name == field.name else f" (`{keys[0].name}` in JSON)"
            text += f"- `{field.name}`{other}: {keys[0].description}\n"
    return text


def default_text(value: object) -> str:
    """Return a default as source code."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        try:
            return f"{type(value).__name__}()" if value == type(value)() else repr(value)
        except TypeError:
            return repr(value)
    return "..." if repr(value).startswith("<") else repr(value)


def field_line(field: dataclasses.Field[Any], resolved: Any) -> str:
    """Return a field of a dataclass as a parameter."""
    text = f"{field.name}: {field_kind(field, resolved)}"
    if field.default is not dataclasses.MISSING:
        return f"{text} = {default_text(field.default)}"
    if field.default_factory is not dataclasses.MISSING:
        return f"{text} = {default_text(field.default_factory())}"
    return text


def docstring(value: Any) -> str:
    """Return a docstring as Markdown: its sections as lists, its examples as code."""
    text = inspect.cleandoc(value.__doc__ or "")
    parts = re.split(rf"(?m)^({'|'.join(SECTIONS)})::?\n", text)
    result = plain(parts[0])
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        body = re.sub(r" +# doctest:.*", "", textwrap.dedent(body).strip("\n").rstrip())  # noqa: PLW2901
        if title.startswith("Example"):
            result += f"\n```python\n{body}\n```\n"
        elif title in {"Returns", "Yields", "Note"}:
            result += f"\n**{title}**\n\n{plain(body)}"
        else:
            result += f"\n**{title}**\n\n{listed(body)}"
    return result


def listed(body: str) -> str:
    """Return ``name: text`` paragraphs as a list."""
    items: list[str] = []
    for line in body.splitlines():
        if line.startswith(" ") and items:
            items[-1] += f" {line.strip()}"
        elif line.strip():
            items.append(line.strip())
    marked = [re.sub(r"^([\w*, ]+?): ", names_marked, plain(item).strip()) for item in items]
    return "".join(f"- {item}\n" for item in marked)


def names_marked(match: re.Match[str]) -> str:
    """Return the names before a colon, each as code."""
    return ", ".join(f"`{name}`" for name in match[1].split(", ")) + ": "


def plain(text: str) -> str:
    """Return text of a docstring without the roles and double backquotes of reStructuredText."""
    text = re.sub(r":\w+:`~?([^`]+)`", lambda match: f"`{match[1].rsplit('.', 1)[-1]}`", text)
    text = re.sub(r"(?m)::$", ":", text)
    return re.sub(r"``([^`]+)``", r"`\1`", text).rstrip() + "\n"


if __name__ == "__main__":
    print(api_reference())
