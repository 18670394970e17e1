"""tokshard: data preparation for LLM pre-training, from raw text to the batches of each rank.

Public names are imported on first use, so that ``import tokshard`` is fast.
Type checkers read the same table in ``__init__.pyi``.
"""

from tokshard.version import __version__

}
"""The home of each public name, in the order of docs/reference/api.md."""

_HOMES = {name: home for names in _TOPICS.values() for name, home in names.items()}

__all__ = ["__version__", *_HOMES]  # noqa: PLE0604 - its keys are strings


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'tokshard' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
