"""Version of tokshard."""

__version__ = "0.1.0"
