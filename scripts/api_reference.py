"""docs/api.md from the docstrings of the public names."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
import types
from collections.abc import Iterator
from typing import Any

import tokshard
from tokshard import errors, loader, testing

SECTIONS = ("Args", "Attributes", "Returns", "Yields", "Raises", "Example", "Examples", "Note")
HEAD = """# Python API

Everything that a user can do from the command line, as typed functions: one options dataclass in, one report
out. `scripts/update_docs` makes this page from the docstrings; their examples run as tests.

```python
import tokshard
```

Every report has `to_json()`: the document that `--json` prints (see [schemas](schemas)). Errors are those of
[`tokshard.errors`](#errors); each has the exit code of the command line.
"""


def api_reference() -> str:
    """Return the page."""
    public = public_of(tokshard)
    functions = {name: value for name, value in public.items() if inspect.isfunction(value)}
    options = {name: value for name, value in public.items() if name.endswith("Options")}
    documents = {
        name: value
        for name, value in public.items()
        if inspect.isclass(value) and dataclasses.is_dataclass(value) and name not in options
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
    for module in (loader, testing):
        parts.append(f"## `{module.__name__}`\n\n{plain(inspect.cleandoc(module.__doc__ or ''))}")
        parts += [entry(name, value) for name, value in public_of(module).items()]
    parts.append("## Errors\n\n```text\n" + error_tree() + "\n```\n")
    return "\n".join(parts)


def public_of(module: types.ModuleType) -> dict[str, Any]:
    """Return the names that a module exports."""
    names = getattr(module, "__all__", None) or [
        name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__
    ]
    return {name: getattr(module, name) for name in sorted(names) if not name.startswith("_")}


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
    text = f"### `{name}`\n\n```python\n{signature(name, value)}\n```\n\n{docstring(value)}"
    if inspect.isclass(value):
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
    if dataclasses.is_dataclass(value) and isinstance(value, type):
        fields = [field_line(field) for field in dataclasses.fields(value) if field.init]
        return f"{name}(\n    " + ",\n    ".join(fields) + ",\n)" if fields else f"{name}()"
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return name
    one_line = f"{name}{found}".replace("'", "")
    if len(one_line) <= 100:
        return one_line
    parameters = ",\n    ".join(str(parameter) for parameter in found.parameters.values())
    result = f" -> {found.return_annotation}" if found.return_annotation is not found.empty else ""
    return f"{name}(\n    {parameters},\n){result}".replace("'", "")


def field_line(field: dataclasses.Field[Any]) -> str:
    """Return a field of a dataclass as a parameter; what the codec needs of its type is left out."""
    kind = str(field.type)
    if kind.startswith("Annotated["):
        kind = kind.removeprefix("Annotated[").split(", Key(")[0]
    default = field.default
    if default is dataclasses.MISSING:
        return f"{field.name}: {kind}" + ("" if field.default_factory is dataclasses.MISSING else " = ...")
    return f"{field.name}: {kind} = {default!r}"


def docstring(value: Any) -> str:
    """Return a docstring as Markdown: its sections as lists, its examples as code."""
    text = inspect.cleandoc(value.__doc__ or "")
    parts = re.split(rf"(?m)^({'|'.join(SECTIONS)})::?\n", text)
    result = plain(parts[0])
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        body = textwrap.dedent(body).rstrip()  # noqa: PLW2901
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
    marked = [re.sub(r"^([\w*, ]+?): ", r"`\1`: ", plain(item).strip()) for item in items]
    return "".join(f"- {item}\n" for item in marked)


def plain(text: str) -> str:
    """Return text of a docstring without the roles and double backquotes of reStructuredText."""
    text = re.sub(r":\w+:`~?([^`]+)`", lambda match: f"`{match[1].rsplit('.', 1)[-1]}`", text)
    text = re.sub(r"(?m)::$", ":", text)
    return re.sub(r"``([^`]+)``", r"`\1`", text).rstrip() + "\n"


if __name__ == "__main__":
    print(api_reference())
