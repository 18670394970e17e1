"""``python -m tokshard``: the command line."""

from tokshard.cli import run

run()
