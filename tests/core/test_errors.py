from __future__ import annotations

import re
import tomllib
from pathlib import Path

from tokshard.errors import EXTRA_PACKAGES, MissingExtraError

ROOT = Path(__file__).resolve().parents[2]


def test_packages_of_a_missing_extra_are_those_of_pyproject():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = {extra: tuple(re.split("[<>=]", one)[0] for one in extras[extra]) for extra in EXTRA_PACKAGES}
    assert names == EXTRA_PACKAGES
    assert set(extras) - {"test", "docs"} == set(EXTRA_PACKAGES)


def test_the_hint_of_a_missing_extra_installs_its_packages():
    error = MissingExtraError("the URL s3://bucket/x", "remote")
    assert str(error) == "the URL s3://bucket/x requires fsspec and s3fs, which are not installed"
    assert error.hint == "pip install fsspec s3fs"
