"""Install sizes: tokshard alone, with each extra, and the environments of the peers."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

from tools import ENVIRONMENTS, ROOT, Tool

NOT_COUNTED = {"pip", "setuptools", "__pycache__"}


def measure(chosen: list[Tool], directory: Path) -> dict[str, int]:
    """Return sizes in bytes by what is installed; an extra counts what it adds."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    base = installed(directory / "base", "")
    found = {
        "tokshard": base,
        "tokshard and numpy only, for the loader": installed(directory / "loader", None),
    }
    for name in extras:
        if name not in {"docs", "test", "torch"}:
            found[f"tokshard, extra `{name}`, adds"] = installed(directory / name, f"[{name}]") - base
    for tool in chosen:
        if tool.is_peer:
            found[tool.title] = size(next((ENVIRONMENTS / tool.name).glob("lib*/python*/site-packages")))
    return found


def installed(target: Path, extras: str | None) -> int:
    """Install tokshard with extras, or with numpy alone, into a directory; return the size."""
    print(f"sizes: {target.name}", file=sys.stderr, flush=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    wanted = [[f"{ROOT}{extras}"]] if extras is not None else [["numpy"], ["--no-deps", str(ROOT)]]
    for words in wanted:
        subprocess.run([*pip, "--target", str(target), *words], check=True, stderr=subprocess.DEVNULL)
    return size(target)


def size(directory: Path) -> int:
    """Return the size of the files below a directory that are counted."""
    return sum(
        path.stat().st_size
        for path in directory.rglob("*")
        if path.is_file() and not NOT_COUNTED & set(path.relative_to(directory).parts)
    )
