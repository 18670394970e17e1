"""scripts/megatron_options finds the options and choices of all tags of repositories."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[4] / "scripts/megatron_options"
ARGUMENTS = """
group.add_argument("--kind", "-k", choices=["a", "b"])
group.add_argument("--level", type=int, choices=[1, 2])
group.add_argument("--overlap", action=argparse.BooleanOptionalAction)
exclude = ["hidden", *names] if False else ["hidden"]
exclude = ["hidden"]
factory = ArgumentGroupFactory(TrainingConfig, exclude=exclude)
"""
CONFIG = """
@dataclass
class Base:
    seed: int = 1

@dataclass
class TrainingConfig(Base):
    hidden: int = 0
    style: Literal["x", "y"] | None = None
    fused: bool = True
    checked: bool = False
    renamed: int = field(metadata={"argparse_meta": {"arg_names": ["--other-name"], "choices": ["1"]}})
    computed: int = field(init=False)
"""
OTHERS = """
parser.add_argument("--kind")
parser.add_argument("--tool-only", choices=["t"])
if "--kind" in action.option_strings:
    action.choices.append("c")
add_choice(parser, "--style", "z")
"""


@pytest.fixture
def script(monkeypatch):
    loader = importlib.machinery.SourceFileLoader("megatron_options", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("megatron_options", loader))
    monkeypatch.setitem(sys.modules, "megatron_options", module)
    loader.exec_module(module)
    return module


def commit(repository: Path, files: dict[str, str], tag: str | None = None) -> None:
    for name, text in files.items():
        path = repository / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git = ["git", "-C", str(repository), "-c", "user.name=n", "-c", "user.email=e"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "x"], *([["tag", tag]] if tag else [])):
        subprocess.run([*git, *words], check=True)


def test_options_are_those_of_all_tags_and_forks_with_the_union_of_choices(tmp_path, script, monkeypatch):
    megatron, fork = tmp_path / "megatron", tmp_path / "fork"
    commit(megatron, {"megatron/arguments.py": 'parser.add_argument("--removed", choices=["r"])'}, "v1")
    (megatron / "megatron/arguments.py").unlink()
    files = {"megatron/training/arguments.py": ARGUMENTS, "megatron/training/config.py": CONFIG}
    commit(
        megatron,
        {**files, "tests/test.py": 'parser.add_argument("--of-a-test")', "broken.py": "add_argument("},
    )
    commit(fork, {"tools/tool.py": OTHERS, "fork/arguments.py": 'parser.add_argument("--removed")'})
    monkeypatch.setattr(script, "OUTPUT", tmp_path / "options.txt")
    script.main([str(megatron), str(fork)])
    training, others = (tmp_path / "options.txt").read_text().split("\n\n")
    assert training.splitlines() == [
        "checked",
        "disable-fused",
        "kind a b c",
        "level",
        "no-fused",
        "no-overlap",
        "other-name 1",
        "overlap",
        "removed",
        "seed",
        "style x y z",
    ]
    assert {"tool-only t", "deepspeed", "help"} <= set(others.splitlines())
    assert "of-a-test" not in others
