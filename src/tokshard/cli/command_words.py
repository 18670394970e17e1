"""The words of a command that was run, for the jobs that run it again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import typer

# Options that a job file leaves out of the command of its tasks.
_OWN_OPTIONS = frozenset({"array_task", "tasks", "emit", "image", "as_json", "dry_run"})


def command_words(context: typer.Context) -> list[str]:
    """Return the words of a command with the options that its tasks need, without the name of the program."""
    words = [str(context.info_name)]
    inputs: list[str] = []
    for parameter in context.command.params:
        name = str(parameter.name)
        source = context.get_parameter_source(name)
        if name in _OWN_OPTIONS or source is None or source.name != "COMMANDLINE":
            continue
        value = context.params[name]
        if parameter.param_type_name == "argument":
            inputs = value
        else:
            words += _option_words(parameter, value)
    if any(name.startswith("-") for name in inputs):
        return [*words, "--", *inputs]
    return [*words[:1], *inputs, *words[1:]]


def _option_words(option: Any, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [option.opts[0] if value else option.secondary_opts[0]]
    words = []
    for item in value if isinstance(value, (list, tuple)) else [value]:
        word = str(item)
        words += [f"{option.opts[0]}={word}"] if word.startswith("-") else [option.opts[0], word]
    return words
