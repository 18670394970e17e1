from importlib import import_module

import pytest
from typer.testing import CliRunner

from tokshard.cli.main import COMMANDS, app


@pytest.mark.parametrize("name", COMMANDS)
def test_a_summary_is_the_first_line_of_the_commands_help(name):
    entry = COMMANDS[name]
    function = getattr(import_module(f"tokshard.cli.{entry.module}"), entry.module)
    assert function.__doc__.splitlines()[0] == entry.summary


def test_the_list_of_commands_names_each_once():
    shown = CliRunner().invoke(app, ["--help"])
    assert shown.exit_code == 0
    listed = shown.output.split("Commands:")[1]
    assert [line.split()[0] for line in listed.splitlines() if line[:2] == "  " and line[2:3] != " "] == list(
        COMMANDS
    )


def test_an_unknown_command_is_a_usage_error():
    asked = CliRunner().invoke(app, ["tokenise"])
    assert asked.exit_code == 2
    assert "tokenise" in asked.output
