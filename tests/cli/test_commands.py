from importlib import import_module

import pytest

from support.command_line import SAMPLE, tokshard
from tokshard.cli.main import COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_a_summary_is_the_first_line_of_the_commands_help(name):
    entry = COMMANDS[name]
    function = getattr(import_module(f"tokshard.cli.{entry.module}"), entry.module)
    assert function.__doc__.splitlines()[0] == entry.summary


def commands_in(page):
    table = page.split("Commands:\n")[1].split("\n\n")[0]
    return [line.split()[0] for line in table.splitlines() if line[2:3] != " "]


@pytest.mark.parametrize("words", [(), ("-h",), ("--help",), ("--help-all",)])
def test_the_list_of_commands_names_each_once(words):
    shown = tokshard(*words)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert commands_in(shown.stdout) == [*COMMANDS]


@pytest.mark.parametrize("width", [80, 120])
def test_the_list_of_commands_is_complete_and_fits(width):
    shown = tokshard("--help", env={"COLUMNS": str(width)}).stdout
    assert max(map(len, shown.splitlines())) <= width
    assert all(entry.summary in " ".join(shown.split()) for entry in COMMANDS.values())


def test_help_of_a_command():
    pages = {tokshard(*words).stdout for words in (("merge", "-h"), ("merge", "--help"))}
    (page,) = pages
    assert page.startswith(COMMANDS["merge"].summary)


def test_help_of_an_unknown_command():
    asked = tokshard("tokenise", "--help")
    assert (asked.returncode, asked.stdout) == (2, "")
    assert asked.stderr == 'error: unknown command "tokenise"\nhint: run `tokshard tokenize`\n'


def test_the_examples_of_the_list_of_commands_run(tmp_path):
    (tmp_path / "sample_data").symlink_to(SAMPLE)
    examples = tokshard("--help").stdout.split("Examples:\n")[1].replace("\\\n", "").strip().splitlines()
    assert len(examples) > 3
    for example in examples:
        done = tokshard(*example.split()[1:], cwd=tmp_path)
        assert done.returncode == 0, (example, done.stderr)
