"""docs/reference/api.md from the docstrings of the public names, by topic."""

from __future__ import annotations

import ast
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
from tokshard import _TOPICS, errors, loader
from tokshard.core.options import Options, declared_options, ordered_fields
from tokshard.loader import torch

SECTIONS = ("Args", "Attributes", "Returns", "Yields", "Warns", "Raises", "Example", "Examples", "Note")
HEAD = """# Python API

Every command is a typed function that takes one options dataclass and returns one report:

```python
import tokshard

report = tokshard.tokenize(tokshard.TokenizeOptions(inputs="corpus.jsonl", output="data/web"))
print(report.counts.documents, report.outputs[0].tokens)
print(report.to_json())
```

The options are those of the command line, by the same names. `StrPath` is a string or an `os.PathLike`, and
`StrPaths` is one path or a sequence of paths. Every report has `to_json()`, which returns the document that
`--json` prints (see [JSON output](json.md)).
Functions raise the errors of [`tokshard.errors`](#errors); each error has the exit code of the command line.
Names are imported from `tokshard`, or from the module that their heading has.

This page is generated from the docstrings by `scripts/update_docs`; the examples in them run as tests.
"""


def api_reference() -> str:
    """Return the page."""
    shown = {*tokshard.__all__}
    parts = [HEAD]
    for topic, names in _TOPICS.items():
        parts.append(f"## {topic}\n")
        for name in names:
            value = getattr(tokshard, name)
            parts.append(entry(name, value, shown))
            for kind in kinds_of(result_of(value)) if inspect.isfunction(value) else ():
                if kind.__name__ not in shown:
                    shown.add(kind.__name__)
                    parts.append(entry(f"{kind.__module__}.{kind.__name__}", kind, shown))
    parts.append("## Read batches in training\n")
    for module in (loader, torch):
        parts.append(f"`{module.__name__}`: {plain(inspect.cleandoc(module.__doc__ or ''))}")
        for name in sorted(module.__all__):
            parts += [entry(f"{module.__name__}.{name}", getattr(module, name), shown)]
    tree = inspect.cleandoc(errors.__doc__ or "").split("::\n\n", 1)[1].split("\n\n", 1)[0]
    parts.append(f"## Errors\n\n```text\n{textwrap.dedent(tree).rstrip()}\n```\n")
    return "\n".join(parts)


def entry(name: str, value: Any, shown: set[str]) -> str:
    """Return the entry of a name; ``shown``: the names of the classes that need no description anymore."""
    text = f"### `{name}`\n\n"
    if dataclasses.is_dataclass(value):
        return text + record(value, shown)
    text += f"```python\n{signature(value)}\n```\n\n{docstring(value)}"
    return text + (methods(value) if inspect.isclass(value) else "")


def record(cls: type, shown: set[str]) -> str:
    """Return the entry of a dataclass: its docstring with its fields, and the classes that only it has."""
    described: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        described |= items(sections(base).get("Attributes", ""))
    fields = {name: text for text, name in fields_of(cls)}
    is_options = issubclass(cls, Options)
    for name, found in (declared_options(cls) if is_options else {}).items():
        default = f" [default: {found.option.default}]" if found.option.default else ""
        described[name] = f"{found.option.help}{default}"
    for name, member in vars(cls).items():
        if isinstance(member, property) and not name.startswith("_") and not is_options:
            fields[name] = f"{name}: {ast.unparse(definition(member.fget).returns)}"
            described[name] = sections(member)[""].split("\n\n")[0]
    texts = {name: f": {text}" for name, text in described.items()}
    text = docstring(cls, fields="\n".join(f"- `{fields[name]}`{texts.get(name, '')}" for name in fields))
    parts = "" if cls is tokshard.Plan else "\n".join(nested(cls, shown))  # formats/plan.md has them
    text += f"\n```python\n{parts}\n```\n" if parts else ""
    return text if is_options or hasattr(cls, "SCHEMA") else text + methods(cls)


def nested(cls: type, shown: set[str]) -> Iterator[str]:
    """Yield the classes of the fields, and of theirs; files of their own have a page each."""
    for field in dataclasses.fields(cls):
        for kind in kinds_of(resolved(cls, str(field.type))):
            is_part = dataclasses.is_dataclass(kind) and kind.__module__.startswith("tokshard.")
            if is_part and kind.__name__ not in shown and not hasattr(kind, "SCHEMA"):
                shown.add(kind.__name__)
                yield wrapped(f"{kind.__name__}({', '.join(text for text, _ in fields_of(kind))})")
                yield from nested(kind, shown)


def methods(cls: type) -> str:
    """Return the public methods, and properties that are no fields, that a class defines and documents."""
    shown = types.FunctionType if dataclasses.is_dataclass(cls) else types.FunctionType | property
    text = ""
    for name, member in vars(cls).items():
        function = getattr(member, "__func__", member)
        if isinstance(function, shown) and function.__doc__ and not name.startswith("_"):
            text += f"\n#### `{cls.__name__}.{name}`\n\n"
            if inspect.isfunction(function):
                text += f"```python\n{signature(function)}\n```\n\n"
            text += docstring(function)
    return text


def result_of(function: Any) -> Any:
    """Return the type that a function returns."""
    name = function.__annotations__["return"]
    return function.__globals__.get(name) or getattr(tokshard, name)


def kinds_of(kind: Any) -> list[type]:
    """Return the classes that a type consists of."""
    if arguments := typing.get_args(kind):
        return [found for argument in arguments for found in kinds_of(argument)]
    return [kind] if isinstance(kind, type) else []


def resolved(cls: type, text: str) -> Any:
    """Return the type of a field, or None if only type checkers import it."""
    for base in cls.__mro__:
        try:
            return eval(text, vars(sys.modules[base.__module__]), dict(vars(base)))
        except (NameError, TypeError):
            continue
    return None


class PlainTypes(ast.NodeTransformer):
    """Replaces annotated types by the types that they annotate."""

    def __init__(self, cls: type) -> None:
        self.cls = cls

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """Replace ``Annotated[kind, ...]``."""
        if ast.unparse(node.value) == "Annotated":
            return self.visit(node.slice.elts[0])
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Replace the name of an annotated type."""
        alias = resolved(self.cls, node.id)
        kind = alias.__origin__ if typing.get_origin(alias) is typing.Annotated else alias
        if kind is alias and typing.get_origin(alias) is not typing.Literal:
            return node
        text = re.sub(r"\b(?:[a-z]\w*\.)+(?=\w)", "", inspect.formatannotation(kind))
        return ast.parse(text, mode="eval").body


def fields_of(cls: type) -> Iterator[tuple[str, str]]:
    """Yield the source of each field, with its plain type and its default, and the field's name."""
    for field in ordered_fields(cls) if issubclass(cls, Options) else dataclasses.fields(cls):
        kind = PlainTypes(cls).visit(ast.parse(str(field.type), mode="eval").body)
        text = f"{field.name}: {ast.unparse(kind)}"
        if field.default is not dataclasses.MISSING:
            text += f" = {default_text(field.default)}"
        elif field.default_factory is not dataclasses.MISSING:
            text += f" = {default_text(field.default_factory())}"
        yield text, field.name


def default_text(value: object) -> str:
    """Return a default as source code."""
    if dataclasses.is_dataclass(value):
        return f"{type(value).__name__}()"
    return "..." if repr(value).startswith("<") else repr(value)


def definition(function: Any) -> ast.FunctionDef:
    """Return the syntax tree of a function."""
    return ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]


def signature(value: Any) -> str:
    """Return how a function or class is called."""
    found = definition(value.__init__ if inspect.isclass(value) else value)
    arguments = re.sub(r"^(self|cls)(, )?", "", ast.unparse(found.args)).replace("=", " = ")
    result = "" if inspect.isclass(value) or not found.returns else f" -> {ast.unparse(found.returns)}"
    return wrapped(f"{value.__name__}({arguments}){result}")


def wrapped(code: str) -> str:
    """Return code in lines of at most 100 characters, which end after commas."""
    fixed = re.sub(r"(?<!,) | (?=\.\.\.)", "\0", code)
    wrapper = textwrap.TextWrapper(
        100, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )
    return wrapper.fill(fixed).replace("\0", " ")


def sections(value: Any) -> dict[str, str]:
    """Return the sections of a docstring by their titles; the text before them has the title ``""``."""
    parts = re.split(rf"(?m)^({'|'.join(SECTIONS)})::?\n", inspect.cleandoc(value.__doc__ or ""))
    bodies = (textwrap.dedent(body).strip("\n") for body in parts[::2])
    return dict(zip(["", *parts[1::2]], bodies, strict=True))


def docstring(value: Any, fields: str = "") -> str:
    """Return a docstring as Markdown: its sections as lists, its examples as code.

    ``fields``: the list that replaces that of the attributes.
    """
    texts = sections(value)
    result = plain(texts.pop(""))
    if fields:
        texts.pop("Attributes", "")
        result += f"\n{fields}\n"
    for title, body in texts.items():
        if title.startswith("Example"):
            code = re.sub(r" +# doctest:.*", "", body)
            result += f"\n```python\n{code}\n```\n"
        elif title in {"Returns", "Yields", "Note"}:
            result += f"\n**{title}**: {plain(body)}"
        else:
            lines = [f"`{name}`: {text}\n" for name, text in items(body)]
            result += f"\n**{title}**" + (f" {lines[0]}" if len(lines) == 1 else "\n\n- " + "- ".join(lines))
    return result


def items(body: str) -> Iterator[tuple[str, str]]:
    """Yield the names and texts of ``name: text`` and ``name, name: text`` paragraphs."""
    for paragraph in re.split(r"\n(?! )", body):
        names, _, text = " ".join(paragraph.split()).partition(": ")
        for name in names.split(", ") if text else ():
            yield name, plain(text).strip()


def plain(text: str) -> str:
    """Return text of a docstring without the roles and double backquotes of reStructuredText."""
    text = re.sub(r":\w+:`~?([^`]+)`", lambda match: f"`{match[1].rsplit('.', 1)[-1]}`", text)
    text = re.sub(r"(?m)::$", ":", text)
    return re.sub(r"``([^`]+)``", r"`\1`", text).rstrip() + "\n"


if __name__ == "__main__":
    print(api_reference())
