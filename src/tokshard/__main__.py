"""``python -m tokshard``: the command line."""

from tokshard.cli import run

if __name__ == "__main__":
    run()
