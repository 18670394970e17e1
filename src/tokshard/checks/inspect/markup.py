"""Elements of HTML and SVG, as a tree.

A plain ``str`` is text from data: markup in it is escaped, and control characters and bidi marks are made
visible. Only :class:`Markup` is markup.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass

from tokshard.core.formatting import visible

_NAME = re.compile(r"[a-z][a-zA-Z0-9-]*")
_EMPTY = {"meta", "rect", "line", "path", "circle", "col", "br"}


@dataclass(frozen=True, slots=True)
class Markup:
    """Markup that is not escaped again."""

    text: str

    def __str__(self) -> str:
        return self.text


Child = str | Markup | None


def text(value: object) -> Markup:
    """Return a text from data as escaped markup."""
    return Markup(html.escape(visible(value), quote=True))


def tag(name: str, /, *children: Child, **attributes: object) -> Markup:
    r"""Return an element.

    Args:
        name: The element.
        children: Its content; None is left out.
        attributes: Its attributes: ``class_`` is ``class``, ``view_box`` stays as SVG spells it
            (``viewBox``), other underscores are hyphens. None is left out.

    Raises:
        ValueError: The name of the element or of an attribute is invalid. Pass no names from data.

    Example:
        >>> str(tag("p", "a <b> & \x1b", tag("b", "bold"), title='"'))
        '<p title="&quot;">a &lt;b&gt; &amp; \\x1b<b>bold</b></p>'
    """
    opening = name + "".join(
        f' {_attribute(key)}="{text(value)}"' for key, value in attributes.items() if value is not None
    )
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"{name!r} is not an element name")
    if name in _EMPTY:
        return Markup(f"<{opening}/>" if name != "meta" else f"<{opening}>")
    return Markup(f"<{opening}>{join(*children)}</{name}>")


def join(*children: Child) -> Markup:
    """Concatenate pieces."""
    return Markup("".join(_child(child) for child in children))


def _child(child: Child) -> str:
    if child is None:
        return ""
    return child.text if isinstance(child, Markup) else text(child).text


def _attribute(key: str) -> str:
    name = {"view_box": "viewBox", "preserve": "preserveAspectRatio"}.get(key) or key.strip("_").replace(
        "_", "-"
    )
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"{name!r} is not an attribute name")
    return name
