"""Syntax trees of shell scripts, from the parser of ``shfmt`` (mvdan.cc/sh).

The trees are those of ``shfmt --to-json``: dictionaries with the node types and field names of its Go package
``syntax``.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

from tokshard.checks.doctor.shell.values import script_of, unknown, value_of_script, written_text
from tokshard.errors import UsageError

Node = dict[str, Any]
"""A node of a syntax tree: its fields, and the text of its class under ``Type``."""

_HINT = "pass the command that starts the job alone"
_PACKAGE = "shfmt-py"
_MAX_CHARACTERS = 4 << 20
# The parser takes about 6 KB for a word: it reads up to 45,000 words.
_LIMITS = ((resource.RLIMIT_CPU, 3), (resource.RLIMIT_DATA, 280 << 20))  # s and bytes
_MAX_PARSER_SECONDS = 20  # on a busy machine
_PROGRAM = "shfmt"
# Published scripts contain texts such as <path of the data>, which bash would take for redirections.
_FILL_IN = re.compile(
    r"""(?<![<\d&])<[A-Za-z][^<>\n&|;"'$]*(?<!\s)(?<!\s\d)>(?=[\s"'_/\\),.]|$)""",
    re.MULTILINE,
)
# And array elements such as [0]*3, which only bash accepts.
_BRACKET = re.compile(r"(?<=\s)\[(?=[^\s\[\]]*\](?!\s|\+?=))")
ASSIGNMENT = re.compile(r"\+\+|--|(?:[-+*/%&|^]|<<|>>)?=")
"""Operators of arithmetic that set a variable."""

_MESSAGE = re.compile(r"(?:<standard input>:)?(\d+):\d+: (.*)")


class SyntaxProblemError(UsageError):
    """A text that is not a shell script."""


class ShellText:
    """A shell script and its syntax tree.

    Attributes:
        statements: The statements of the script.
        size: The size of the syntax tree as JSON.

    Raises:
        UsageError: It is not a shell script.
    """

    def __init__(self, text: str) -> None:
        if len(text) > _MAX_CHARACTERS:
            most = f"{_MAX_CHARACTERS:,} characters"
            raise UsageError(f"a launch script must have at most {most}, got {len(text):,}", hint=_HINT)
        # The parser counts bytes, and rejects what is not UTF-8.
        text = text.replace("\r\n", "\n").replace("\0", "?")
        text = _FILL_IN.sub(lambda match: _filled(match) if " " in match[0] else match[0], text)
        self._source = text.encode("utf-8", "replace")
        try:
            tree, self.size = _parse(self._source)
        except SyntaxProblemError:
            text = _BRACKET.sub(r"\\[", _FILL_IN.sub(_filled, text))
            self._source = text.encode("utf-8", "replace")
            tree, self.size = _parse(self._source)
        self.statements: list[Node] = tree.get("Stmts", [])

    def written(self, node: Node) -> str:
        """Return a node as it is written."""
        return written_text(value_of_script(self._source[node["Pos"][0] : node["End"][0]].decode()))

    @property
    def text(self) -> str:
        """The script."""
        return self._source.decode()


def assigned_names(node: Any) -> Iterator[str]:
    """Yield the names of the variables that the statements of a tree set."""
    if isinstance(node, dict):
        if isinstance(node.get("Name"), dict) and ("Value" in node or "Array" in node):
            yield node["Name"].get("Value", "")
        if node.get("Type") in ("BinaryArithm", "UnaryArithm") and ASSIGNMENT.fullmatch(node["Op"]):
            for part in node["X"].get("Parts", ()):
                yield part.get("Value") or part.get("Param", {}).get("Value", "")
        node = list(node.values())
    if isinstance(node, list):
        for item in node:
            yield from assigned_names(item)


def _filled(match: re.Match[str]) -> str:
    return script_of(unknown(match[0]))


def _parse(source: bytes) -> tuple[Node, int]:
    command = [_program(), "--language-dialect", "bash", "--to-json"]
    environment = {**os.environ, "GOGC": "70"}  # a smaller heap
    pipe = subprocess.PIPE
    try:
        with subprocess.Popen(  # noqa: S603 - the text is read, not run
            command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe
        ) as parser:
            _limit(parser.pid)
            try:
                output, problem = parser.communicate(source, _MAX_PARSER_SECONDS)
            finally:
                parser.kill()
        if parser.returncode == 0:
            return json.loads(output, object_hook=_compact), len(output)
    except subprocess.TimeoutExpired:
        raise _too_large() from None
    except RecursionError:
        raise too_deep() from None
    lines = problem.decode("utf-8", "replace").strip().splitlines() or [""]
    if (match := _MESSAGE.fullmatch(lines[0])) is None:
        raise _too_large()  # the parser has run out of memory
    raise SyntaxProblemError(
        f"cannot read the launch script: line {match[1]}: {match[2]}",
        hint="check the script with bash -n, or pass the command alone",
    )


def _limit(process: int) -> None:
    """Limit a process that has not read yet; ``preexec_fn`` would copy the page tables of this one."""
    if sys.platform == "linux":
        for kind, most in _LIMITS:
            with contextlib.suppress(ValueError, OSError):  # a lower limit is in effect
                resource.prlimit(process, kind, (most, most))


def _compact(node: Node) -> Any:
    """Return a position as its offset and line, and other nodes without the positions of their text."""
    if "Col" in node:
        return node.get("Offset", 0), node["Line"]
    node.pop("ValuePos", None)
    node.pop("ValueEnd", None)
    return node


def _too_large() -> UsageError:
    return UsageError("the launch script is too large to parse", hint=_HINT)


def too_deep() -> UsageError:
    """Return the error about a script that is nested too deeply."""
    return UsageError("the launch script is nested too deeply", hint=_HINT)


@cache
def _program() -> str:
    for file in importlib.metadata.files(_PACKAGE) or ():
        if file.name == _PROGRAM and os.path.isfile(file.locate()):
            return str(file.locate())
    if (path := shutil.which(_PROGRAM)) is not None:
        return path
    raise UsageError(
        f"the package {_PACKAGE}, which reads launch scripts, is incomplete",
        hint=f"install it again: pip install --force-reinstall {_PACKAGE}",
    )
