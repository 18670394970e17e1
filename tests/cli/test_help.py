"""Help of all commands: complete, within the width of the terminal, and short."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import typer

from support.command_line import tokshard
from tokshard.cli import help_page
from tokshard.cli.help_page import MESSAGES, common_options
from tokshard.cli.main import COMMANDS, app
from tokshard.core.options import RUN

NAMES = [*COMMANDS]
LONGEST = {"tokenize": 69, "shard-plan": 89}
"""Most lines of ``--help`` at 80 columns."""


def command_of(name):
    group = typer.main.get_command(app)
    return group.get_command(typer.Context(group), name)


def options_of(name):
    return [each for each in command_of(name).params if each.param_type_name == "option" and not each.hidden]


def page(name, option="--help", width=80):
    shown = tokshard(name, option, env={"COLUMNS": str(width)})
    assert (shown.returncode, shown.stderr) == (0, "")
    return shown.stdout


def names_in(text):
    return set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", text))


def sentences(text):
    return " ".join(text.split())


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", NAMES)
def test_help_is_complete_and_fits(name, width):
    command = command_of(name)
    for option in ("--help", "--help-all"):
        shown = page(name, option, width)
        assert max(map(len, shown.splitlines())) <= min(width, 110)
        common = common_options(command)
        listed = options_of(name) if option == "--help-all" else common
        if len(common) == len(options_of(name)):
            listed = [each for each in listed if each.opts != ["--help-all"]]
        text = sentences(shown)
        for each in listed:
            names = each.opts if option == "--help-all" else each.opts[:1]
            assert names_in(shown) >= {*names, *each.secondary_opts}
            assert sentences(each.help) in text
        for argument in command.params:
            if argument.param_type_name == "argument":
                assert sentences(argument.help) in text
        assert "│" not in shown
        assert "<bool>" not in shown


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", NAMES)
def test_help_is_short(name, width):
    assert len(page(name, width=width).splitlines()) <= LONGEST.get(name, 95)


@pytest.mark.parametrize("name", NAMES)
def test_help_names_the_way_to_rare_options_where_there_are_any(name):
    common = [each.opts for each in common_options(command_of(name))]
    rare = [each for each in options_of(name) if each.opts not in common]
    noun = "option" if len(rare) == 1 else "options"
    last = page(name).splitlines()[-1]
    if rare:
        assert last == f"{len(rare)} more {noun}: run `tokshard {name} --help-all`."
    else:
        assert "--help-all" not in page(name)
    assert "--help-all`" not in page(name, "--help-all")


@pytest.mark.parametrize("name", NAMES)
def test_options_that_many_commands_share_come_last(name):
    panels = list(dict.fromkeys(each.rich_help_panel for each in help_page.options_of(command_of(name))))
    shared = [panel for panel in (RUN, MESSAGES) if panel in panels]
    assert panels[-len(shared) :] == shared


def test_the_mixture_of_a_blend_comes_first():
    panels = list(dict.fromkeys(each.rich_help_panel for each in help_page.options_of(command_of("blend"))))
    assert panels[:3] == [None, "Mixture", "Samples"]


@pytest.mark.parametrize("name", NAMES)
def test_options_about_messages_are_common(name):
    common = [each.opts for each in common_options(command_of(name))]
    assert all(each.opts in common for each in options_of(name) if each.rich_help_panel == MESSAGES)


@pytest.mark.parametrize("name", NAMES)
def test_help_strings_are_complete_sentences(name):
    for each in command_of(name).params:
        text = each.help.partition(" [choices:")[0]
        assert re.match(r"[A-Z]", text), text
        assert text.endswith("."), text
        if each.param_type_name == "option":
            verb = text.partition(": ")[2] if text.startswith("With ") else text
            assert len(verb.split()) > 1, text
            assert each.is_flag or each.metavar, each.opts


@pytest.mark.parametrize("name", NAMES)
def test_values_are_parsed_by_our_own_parsers(name):
    # Those of the option parser have messages in other words.
    for each in options_of(name):
        assert each.type.name not in {"integer", "float", "choice", "integer range", "float range"}, each.opts


def test_a_narrow_terminal_cuts_nothing():
    shown = page("shard-plan", "--help-all", 20)
    assert "--pipeline-model-parallel-size" in shown
    assert max(map(len, shown.splitlines())) < 100


def test_help_is_bold_on_a_terminal_only():
    code = (
        "import sys; sys.argv[:] = ['tokshard', 'merge', '--help']; sys.stdout.isatty = lambda: True\n"
        "from tokshard.cli.main import main; main()"
    )

    def shown(**environment):
        command = [sys.executable, "-c", code]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    assert "\x1b[1mUsage:\x1b[0m" in shown(TERM="xterm")
    plain = shown(TERM="xterm", NO_COLOR="1")
    assert "\x1b" not in plain
    assert plain == shown(TERM="dumb")
    assert re.sub(r"\x1b\[[0-9]*m", "", shown(TERM="xterm")) == plain


@pytest.mark.parametrize("name", NAMES)
def test_help_imports_nothing_heavy(name):
    code = (
        f"import sys; sys.argv[:] = ['tokshard', {name!r}, '--help']\n"
        "from tokshard.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert stop.code == 0\n"
        "heavy = {'numpy', 'rich', 'pydantic', 'tokenizers', 'orjson', 'numba', 'fastokens', 'asyncio'}\n"
        "assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_doctor_takes_options_of_the_launch_command():
    done = tokshard(
        "doctor", "torchrun", "--nproc-per-node", "8", "pretrain_gpt.py", "--nonsense", "--data-path"
    )
    assert "unknown option" not in done.stderr
    shown = tokshard("doctor", "torchrun", "--help").stdout
    assert sentences(shown).startswith(COMMANDS["doctor"].summary)
