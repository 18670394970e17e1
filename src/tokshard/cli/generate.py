"""Commands from options classes: a command is a function whose parameters are options.

    def merge(options: MergeOptions, run: CommandRun) -> None:
        '''Concatenate indexed datasets. ...'''

Each field with an :class:`~tokshard.core.options.Option` becomes an option or argument of the command, in the
order of the parameters and fields; a field that holds options itself stands for those. The function is called
with objects of these classes, or with :class:`Given` options where it adds its own.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, get_args, get_origin

import typer
from typer.core import TyperArgument, TyperOption

from tokshard.cli.command_run import CommandRun
from tokshard.cli.help_page import Command, OptionParameter
from tokshard.core.options import Declared, Options, all_options, make_options
from tokshard.errors import UsageError

OptionsT = TypeVar("OptionsT", bound=Options)
_LONGEST_METAVAR = 28


@dataclass(frozen=True)
class Given(Generic[OptionsT]):
    """The options of a class that were passed, for commands that add their own.

    Attributes:
        kind: The class.
        values: The values by fields.
        command: The name of the command.
    """

    kind: type[OptionsT]
    values: Mapping[str, Any]
    command: str

    @property
    def declared(self) -> dict[str, Declared]:
        """All options of the class, by fields."""
        return {found.field: found for found in all_options(self.kind)}

    def words(self, *fields: str) -> list[str]:
        """Return the words of these options on a command line, as far as they are given."""
        given = [field for field in fields if field in self.values]
        return [word for field in given for word in self.declared[field].words(self.values[field])]

    def make(self, **more: Any) -> OptionsT:
        """Return the options, with more or other values."""
        return _made(self.kind, {**self.values, **more}, self.command)


def command(name: str, function: Callable[..., None], settings: Mapping[str, Any]) -> Command:
    """Return the command of a function.

    Args:
        name: Its name on the command line.
        function: Its parameters are annotated by options classes, :class:`Given` of these, and
            :class:`~tokshard.cli.command_run.CommandRun`.
        settings: More settings of its context.
    """
    kinds = typing.get_type_hints(function)
    kinds.pop("return")
    declared = {found.field: found for kind in kinds.values() for found in all_options(_class_of(kind))}
    run = next((kind for kind in map(_class_of, kinds.values()) if issubclass(kind, CommandRun)), CommandRun)

    def call(**words: Any) -> None:
        # An option that was not passed is None, or empty where it can be repeated.
        values = {
            field: value
            for field, value in words.items()
            if value is not None and (value != () or declared[field].items == 1)
        }
        messages = _made(run, values, name)
        with messages.reported():
            function(**{each: _argument(kind, values, messages, name) for each, kind in kinds.items()})

    return Command(
        name,
        params=[_parameter(found) for found in declared.values()],
        callback=call,
        help=inspect.cleandoc(function.__doc__ or ""),
        context_settings=dict(settings),
        rich_markup_mode=None,
        add_help_option=False,
    )


def _class_of(kind: Any) -> type[Options]:
    found: type[Options] = get_args(kind)[0] if get_origin(kind) is Given else kind
    return found


def _argument(kind: Any, values: Mapping[str, Any], messages: CommandRun, command: str) -> Any:
    if kind is type(messages):
        return messages
    if get_origin(kind) is not Given:
        return _made(kind, values, command)
    own = {found.field for found in all_options(_class_of(kind))}
    return Given(_class_of(kind), {name: values[name] for name in values if name in own}, command)


def _made(cls: type[OptionsT], values: Mapping[str, Any], command: str) -> OptionsT:
    try:
        return make_options(cls, values)
    except UsageError as error:
        rare = {found.name for found in all_options(cls) if found.option.is_rare}
        page = "--help-all" if str(error).split(maxsplit=1)[0] in rare else "--help"
        error.hint = error.hint or f"run `tokshard {command} {page}` for its options"
        raise


def _parameter(found: Declared) -> TyperArgument | TyperOption:
    """Return the parameter of the command line that a field declares."""
    option, choices = found.option, found.choices
    shown: dict[str, Any] = {"help": option.help, "hidden": option.is_hidden}
    if found.kind is not bool:
        shown["type"] = _Word(found.parse_word)
        shown["nargs"] = -1 if option.is_argument and found.items is None else found.items or 1
        shown["required"] = found.is_required
    if option.is_argument:
        return TyperArgument(param_decls=[found.field], metavar=option.metavar or found.name, **shown)
    names = [found.field, found.name, *option.aliases]
    if found.kind is bool and (found.default is True or found.is_optional or option.default):
        names[1] += f"/--no-{found.name[2:]}"
    metavar = found.metavar
    if len(found.name) + len(metavar) > _LONGEST_METAVAR and choices:
        metavar, shown["help"] = "NAME", f"{option.help} [choices: {', '.join(choices)}]"
    parameter = OptionParameter(
        param_decls=names,
        is_flag=found.kind is bool,
        multiple=found.items is None,
        metavar=metavar,
        show_default=option.default or _words(found),
        rich_help_panel=option.group,
        autocompletion=lambda _, __, start: [word for word in choices if word.startswith(start)],
        **shown,
    )
    parameter.is_rare = option.is_rare
    return parameter


class _Word:
    """The type of a value, for the option parser, which ignores the text of a ValueError."""

    def __init__(self, parse: Callable[[str], Any]) -> None:
        self._parse = parse
        self.__name__ = "word"

    def __call__(self, word: str) -> Any:
        try:
            return self._parse(word)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None


def _words(found: Declared) -> str | bool:
    default = found.default
    if default is True:
        return found.name
    if default is False or default in (None, dataclasses.MISSING, ()):
        return False
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
