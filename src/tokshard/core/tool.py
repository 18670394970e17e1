"""Name and version of the program that wrote a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from tokshard.core.codec import Key
from tokshard.version import __version__


@dataclass(frozen=True, slots=True)
class Tool:
    """The program that wrote a file."""

    name: Annotated[str, Key("name", "Its name.")] = "tokshard"
    version: Annotated[str, Key("version", "Its version.")] = __version__
