"""What holds for the tests of tokenizers."""

import pytest


@pytest.fixture
def without_transformers(monkeypatch):
    """Hide transformers, if it is installed."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
