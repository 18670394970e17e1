"""Options: the field of an options class is the only declaration of an option.

    @dataclass(frozen=True, kw_only=True)
    class PackOptions(Options):
        '''Options of packing.'''

        output: Annotated[str, Option("Write the samples to DIR.", aliases=("-o",), metavar="DIR")]
        limit: Annotated[Positive | None, Option("Pack at most N documents.", default="no limit")] = None
        shuffle: Annotated[bool, Option("Shuffle the documents.")] = False
        seed: Annotated[Count, Option("Seed the order with N.", requires="shuffle")] = 1234

The command line (:mod:`tokshard.cli.generate`), its help and its reference follow from these fields, and so
do the checks, in the API as on the command line. An option has the name of its field: ``--limit``. Types and
bounds are those of :mod:`tokshard.core.codec`. An option is given where its value differs from the default.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from tokshard.core.codec import Record, checker, shown
from tokshard.errors import UsageError

StrPath = str | os.PathLike[str]
StrPaths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""One path, or several; an options class holds a string, or a tuple of strings."""

RecordT = TypeVar("RecordT", bound=Record)
OptionsT = TypeVar("OptionsT", bound="Options")

RUN = "Run"
"""The group of options that many commands share: how a command runs."""


@dataclass(frozen=True, slots=True)
class Option:
    """How a field of an options class is an option of the command line.

    Attributes:
        help: Complete sentences.
        name: The name, if it is not that of the field.
        aliases: Further names, such as ``-o``.
        metavar: The value's name in the help, which tells its unit; by default N, TEXT, or the choices.
        group: The title in the help under which it is listed.
        default: The words for the default, if the default value does not tell. A switch with words, with
            the default True or with None has two names: ``--x`` and ``--no-x``.
        parse: Returns the value that a word means, or raises ValueError, on the command line and in the API;
            by default the type decides. For a ``tuple[X, ...]`` it returns an item.
        is_argument: Whether the field holds the arguments of the command, which have no name.
        is_list: Whether one word holds all items of a tuple; otherwise the option is repeated.
        is_rare: Whether only ``--help-all`` lists it.
        is_hidden: Whether no help lists it.
        requires: Other fields of which one must be given, such as ``"shuffle"`` or ``"on_error=skip"``.
        excludes: Other fields that must not be given, in the same form.
        reason: Why it excludes them, for the message.
        with_launch: Whether it can be used with ``--from-launch``.
    """

    help: str
    _: KW_ONLY
    name: str | None = None
    aliases: tuple[str, ...] = ()
    metavar: str | None = None
    group: str | None = None
    default: str | None = None
    parse: Callable[[str], Any] | None = None
    is_argument: bool = False
    is_list: bool = False
    is_rare: bool = False
    is_hidden: bool = False
    requires: str | tuple[str, ...] = ()
    excludes: str | tuple[str, ...] = ()
    reason: str | None = None
    with_launch: bool = False


Force = Annotated[bool, Option("Replace an existing or unfinished output.", group=RUN, with_launch=True)]
"""The type of the option ``--force`` of all commands that write."""


@dataclass(frozen=True, slots=True)
class Declared:
    """An option with what its field says.

    Attributes:
        field: The name of the field.
        option: The declaration.
        kind: The type of the value, or of an item where there are several.
        choices: The values of a ``Literal``; empty for other types.
        items: How many values it takes: 1, a fixed number, or None for any number.
        is_optional: Whether the value can be None.
        default: The default; ``dataclasses.MISSING`` if it is required.
        check: Checks a value and returns it.
    """

    field: str
    option: Option
    kind: Any
    choices: tuple[Any, ...]
    items: int | None
    is_optional: bool
    default: Any
    check: Callable[[Any, str], Any]

    @property
    def is_required(self) -> bool:
        """Whether it must be given."""
        return self.default is dataclasses.MISSING

    @property
    def name(self) -> str:
        """Its name on the command line: ``--limit``, or that of an argument."""
        if self.option.is_argument:
            return (self.option.metavar or self.field.upper()).split()[-1].strip("[.]")
        return self.option.name or f"--{self.field.replace('_', '-')}"

    @property
    def metavar(self) -> str:
        """The name of its value in the help: ``N``, ``TEXT``, or the choices; empty for a switch."""
        if self.kind is bool:
            return ""
        return self.option.metavar or "|".join(self.choices) or ("TEXT" if self.kind is str else "N")

    @property
    def parse_word(self) -> Callable[[str], Any]:
        """The function that returns the value of a word, or raises ValueError."""
        parsers: dict[Any, Callable[[str], Any]] = {int: parse_count, float: parse_number}
        return self.option.parse or parsers.get(self.kind, str)

    def words(self, value: Any) -> list[str]:
        """Return the words of a command line that give a value."""
        if self.kind is bool:
            return [self.name if value else f"--no-{self.name[2:]}"]
        texts = ["=".join(each) if isinstance(each, tuple) else str(each) for each in several(value)]
        return [word for text in texts for word in (self.name, text)]

    def normalized(self, value: Any) -> Any:
        """Return a valid value: paths are strings, words are parsed, and several values are a tuple."""
        if self.items is None and value is not None:
            value = tuple(map(self._parsed, several(value)))
        return self.check(self._parsed(value), self.name)

    def _parsed(self, value: Any) -> Any:
        if isinstance(value, os.PathLike):
            return os.fspath(value)
        if self.option.parse is None or not isinstance(value, str):
            return value
        try:
            return self.option.parse(value)
        except ValueError as error:
            raise UsageError(f"{self.name} {error}") from None


@dataclass(frozen=True, kw_only=True)
class Options(Record):
    """Base class of the options of a function; see the module.

    Raises:
        UsageError: A value is out of range, or options cannot be used together.
    """

    def __post_init__(self) -> None:
        kind: Any = type(self)
        declared = declared_options(kind)
        for name, found in declared.items():
            object.__setattr__(self, name, found.normalized(getattr(self, name)))
        for name, nested in nested_options(kind).items():
            if not isinstance(value := getattr(self, name), nested):
                raise UsageError(f"{name} must be {nested.__name__}, got {shown(value)}")
        for name, found in declared.items():
            if self.is_given(name):
                self._check_others(found)
        self._validate()

    def is_given(self, condition: str) -> bool:
        """Return whether a field, ``"shuffle"``, differs from its default, or has a value: ``"to=olmo"``."""
        kind: Any = type(self)
        name, _, value = condition.partition("=")
        own, default = getattr(self, name), declared_options(kind)[name].default
        return str(own) == value if value else own != default

    def _check_others(self, found: Declared) -> None:
        needed, refused = _conditions(found.option.requires), _conditions(found.option.excludes)
        if needed and not any(map(self.is_given, needed)):
            raise UsageError(
                f"{found.name} requires {' or '.join(map(self._spelled, needed))}",
                hint=f"pass {' or '.join(map(self._passed, needed))}, or leave out {found.name}",
            )
        for condition in filter(self.is_given, refused):
            own = f"{found.name} {getattr(self, found.field)}" if found.choices else found.name
            reason = f": {found.option.reason}" if found.option.reason else ""
            raise UsageError(
                f"{own} cannot be used with {self._spelled(condition)}{reason}", hint="leave out one of them"
            )

    def _spelled(self, condition: str) -> str:
        kind: Any = type(self)
        name, _, value = condition.partition("=")
        found = declared_options(kind)[name]
        if found.kind is bool:
            return found.words(value != "False")[0]
        return f"{found.name} {value}" if value else found.name

    def _passed(self, condition: str) -> str:
        kind: Any = type(self)
        spelled = self._spelled(condition)
        if "=" in condition or declared_options(kind)[condition].option.is_argument:
            return spelled
        return f"{spelled} {declared_options(kind)[condition].metavar}".strip()


def several(values: Any) -> tuple[Any, ...]:
    """Return the values of a field with several; paths are strings."""
    if isinstance(values, str | os.PathLike) or not isinstance(values, Iterable):
        values = [values]
    return tuple(os.fspath(value) if isinstance(value, os.PathLike) else value for value in values)


def _conditions(conditions: str | tuple[str, ...]) -> tuple[str, ...]:
    return (conditions,) if isinstance(conditions, str) else conditions


@functools.cache
def declared_options(cls: Any) -> dict[str, Declared]:
    """Return the options of a class by their fields, in order."""
    hints = typing.get_type_hints(cls, include_extras=True)
    found = {}
    for field in ordered_fields(cls):
        option = next((each for each in get_args(hints[field.name]) if isinstance(each, Option)), None)
        if option is not None:
            default = field.default
            if field.default_factory is not dataclasses.MISSING:
                default = field.default_factory()
            found[field.name] = _declared(field.name, option, hints[field.name], default)
    return found


def ordered_fields(cls: Any) -> list[dataclasses.Field[Any]]:
    """Return the fields of a class in the order of the help: its own before those that it inherits."""
    annotated = list(map(inspect.get_annotations, cls.__mro__))
    return sorted(
        dataclasses.fields(cls),
        key=lambda field: next(depth for depth, names in enumerate(annotated) if field.name in names),
    )


def recorded(cls: type[RecordT], options: Options, **more: Any) -> RecordT:
    """Return a record with the fields of the same names of ``options``, and more fields."""
    target: Any = cls
    source: Any = type(options)
    names = {field.name for field in dataclasses.fields(target)} & {*declared_options(source)}
    return cls(**{name: getattr(options, name) for name in names - more.keys()}, **more)


@functools.cache
def nested_options(cls: Any) -> dict[str, type[Options]]:
    """Return the fields of a class that hold options themselves, with their classes."""
    hints = typing.get_type_hints(cls)
    return {
        name: hint for name, hint in hints.items() if isinstance(hint, type) and issubclass(hint, Options)
    }


def make_options(cls: type[OptionsT], values: Mapping[str, Any]) -> OptionsT:
    """Return the options of a class, and those nested in it, with values by the names of fields.

    Raises:
        UsageError: A value is invalid, or options cannot be used together.
    """
    made = {field.name: values[field.name] for field in dataclasses.fields(cls) if field.name in values}
    own: Any = cls
    for name, kind in nested_options(own).items():
        if name not in made and any(found.field in values for found in all_options(kind)):
            made[name] = make_options(kind, values)
    return cls(**made)


def all_options(cls: Any) -> Iterator[Declared]:
    """Yield the options of a class, those of its nested options included, in the order of the help."""
    declared, nested = declared_options(cls), nested_options(cls)
    for field in ordered_fields(cls):
        if field.name in declared:
            yield declared[field.name]
        elif field.name in nested:
            yield from all_options(nested[field.name])


def _declared(name: str, option: Option, hint: Any, default: Any) -> Declared:
    kind = hint.__origin__
    is_optional = False
    items: int | None = 1
    if get_origin(kind) in {Union, types.UnionType}:
        is_optional = types.NoneType in get_args(kind)
        kinds = [each for each in get_args(kind) if each is not types.NoneType]
        if os.PathLike[str] in kinds:  # a path, or several
            kind = tuple[str, ...] if len(kinds) > 2 else str
            hint = kind | None if is_optional else kind
        else:
            kind = kinds[0]
    if get_origin(kind) is tuple:
        item, *more = get_args(kind)
        kind, items = item, None if more == [Ellipsis] else 1 + len(more)
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    if option.is_list:
        items = 1
    return Declared(name, option, kind, choices, items, is_optional, default, checker(hint))


# The words of values.

_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SIZES = {f"{unit}{end}": scale for unit, scale in (_DECIMAL | _BINARY).items() for end in ("", "b")}
_COUNTS = {**_DECIMAL, "b": 10**9}
# A comma separates thousands only: "1,2" is a list, which no option with a number takes.
_NUMBER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9][0-9_]*)(?:\.[0-9]+)?"
_PERCENT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*")
_FRACTION = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE]-?[0-9]{1,3})?)\s*")
_PATTERN = re.compile(rf"^\s*({_NUMBER})\s*([a-z]*)\s*$", re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """Return the number of bytes that a text means: decimal (kB, MB, GB, TB) or binary (KiB, MiB, ...).

    Raises:
        ValueError: It is not a size.

    Example:
        >>> parse_bytes("256MB"), parse_bytes("16MiB"), parse_bytes("1_000")
        (256000000, 16777216, 1000)
    """
    if (value := _scaled(text, _SIZES)) is None:
        raise ValueError(f"must be a size such as 64MB, 16MiB or 1000000, got {text!r}")
    return value


def parse_count(text: str) -> int:
    """Return the whole number that a text means: ``10B``, ``2.5M``, ``4k``, ``1_000``, ``-1``.

    Raises:
        ValueError: It is not such a number.

    Example:
        >>> parse_count("10B"), parse_count("2.5M"), parse_count("1_000"), parse_count("-1")
        (10000000000, 2500000, 1000, -1)
    """
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text)
    if (value := _scaled(digits, _COUNTS)) is None:
        raise ValueError(f"must be a whole number such as 1000, 2M or 10B, got {text!r}")
    return sign * value


def _scaled(text: str, scales: Mapping[str, int]) -> int | None:
    # In integers: as floats, 1.001 * 1000 is no whole number.
    match = _PATTERN.match(str(text))
    scale = scales.get(match.group(2).lower()) if match else None
    if match is None or scale is None:
        return None
    whole, _, fraction = match.group(1).replace("_", "").replace(",", "").partition(".")
    value, rest = divmod(int(whole + fraction) * scale, 10 ** len(fraction))
    return None if rest else int(value)


def parse_number(text: str) -> float:
    """Return a number that may have a fraction.

    Raises:
        ValueError: It is not a number.
    """
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"must be a number such as 1 or 0.5, got {text!r}") from None


def parse_share(text: str) -> float:
    """Return a share as a number: of ``0.01`` or ``1%``.

    Raises:
        ValueError: It is not such a share.

    Example:
        >>> parse_share("0.1%"), parse_share("0.001")
        (0.001, 0.001)
    """
    if percent := _PERCENT.fullmatch(text):
        return float(f"{percent[1]}e-2")
    if fraction := _FRACTION.fullmatch(text):
        return float(fraction[1])
    raise ValueError(f"must be a percentage or a fraction such as 1% or 0.01, got {text!r}")


def parse_pair(form: str, example: str) -> Callable[[str], tuple[str, str]]:
    """Return the parser of a pair of texts, joined by ``=``, neither of them empty.

    Args:
        form: The form of the pair, for messages.
        example: Such a pair.

    Example:
        >>> parse_pair("LOCAL=TRAINING", "out=/data/v1")("out=/data/v1")
        ('out', '/data/v1')
    """

    def parse(text: str) -> tuple[str, str]:
        first, _, second = text.partition("=")
        if not (first and second):
            raise ValueError(f"must be {form} such as {example}, got {text!r}")
        return first, second

    return parse
