"""The tools that are compared, and their environments below .venv-peers."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ENVIRONMENTS = ROOT / ".venv-peers"


@dataclass(frozen=True)
class Tool:
    """A tool.

    Attributes:
        name: Of its environment, its requirements file and its results.
        title: What the page calls it.
        runner: The module in runners/.
        stages: What it can do: tokens, blend (and index), load.
        packages: Distributions whose versions the page lists.
        workers: Numbers of worker processes for ``tokens``; the first round tries all.
        loaders: The same for ``load``.
        job: Members of its jobs.
    """

    name: str
    title: str
    runner: str
    stages: tuple[str, ...]
    packages: tuple[str, ...] = ()
    workers: tuple[int, ...] = (1, 2)
    loaders: tuple[int | None, ...] = (0, 2)
    job: dict[str, Any] = field(default_factory=dict)

    @property
    def is_peer(self) -> bool:
        """Whether it has an environment of its own."""
        return (HERE / "requirements" / f"{self.name}.txt").is_file()

    @property
    def python(self) -> str:
        """Its interpreter."""
        return str(ENVIRONMENTS / self.name / "bin/python") if self.is_peer else sys.executable


OURS = "tokshard"
PLAIN = f"{OURS}/plain"
TOKENS = f"{OURS}/tokens"
TOOLS = {
    tool.name: tool
    for tool in (
        Tool(
            OURS,
            "tokshard",
            "ours",
            ("tokens", "blend", "load"),
            ("tokshard", "fastokens", "tokenizers", "numpy"),
            workers=(2,),
            job={"encoder": "auto"},
        ),
        Tool(
            "reference", "tokshard `--encoder reference`", "ours", ("tokens",), job={"encoder": "reference"}
        ),
        Tool("least", "minimal script with `tokenizers`", "least", ("tokens",), workers=(1,)),
        Tool(
            "megatron",
            "Megatron Core",
            "megatroncore",
            ("tokens", "blend", "load"),
            ("megatron-core", "transformers", "tokenizers", "torch"),
        ),
        Tool("datatrove", "datatrove", "trove", ("tokens", "load"), ("datatrove", "tokenizers", "torch")),
        Tool("dolma", "dolma", "olmo", ("tokens",), ("dolma", "tokenizers")),
        Tool("litdata", "litdata", "lit", ("tokens", "load"), ("litdata", "tokenizers", "torch")),
        Tool(
            "streaming",
            "MosaicML streaming",
            "mosaic",
            ("tokens", "load"),
            ("mosaicml-streaming", "tokenizers", "torch"),
        ),
        Tool(
            "datasets",
            "Hugging Face datasets",
            "huggingface",
            ("tokens", "load"),
            ("datasets", "tokenizers", "torch", "pyarrow"),
        ),
    )
}


def install(tool: Tool) -> str:
    """Install the environment of a tool, or reuse it; return why it cannot be used, or nothing."""
    if not tool.is_peer:
        return ""
    requirements = HERE / "requirements" / f"{tool.name}.txt"
    venv = ENVIRONMENTS / tool.name
    stamp = venv / "installed.txt"
    wanted = f"# Python {sys.version.split()[0]}\n{requirements.read_text()}"
    if stamp.is_file() and stamp.read_text() == wanted:
        return ""
    print(f"installing {tool.title} into {venv.relative_to(ROOT)}", file=sys.stderr, flush=True)
    shutil.rmtree(venv, ignore_errors=True)
    pip = [str(venv / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for command in ([sys.executable, "-m", "venv", str(venv)], [*pip, "-r", str(requirements)]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [
                "unknown reason"
            ]
            return re.sub(r"\S+://\S+", "(address)", lines[0])[:300]
    stamp.write_text(wanted)
    return ""


def versions(tool: Tool) -> dict[str, str]:
    """Return the versions of the packages of a tool."""
    code = "import importlib.metadata as m, json, sys; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"  # noqa: E501
    done = subprocess.run(
        [tool.python, "-c", code, *tool.packages], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def command(tool: Tool, job: dict[str, Any], directory: Path, python: str | None = None) -> list[str]:
    """Return the command for a job, whose file is written into the directory."""
    file = directory / "job.json"
    file.write_text(json.dumps({**tool.job, **job}))
    return [python or tool.python, str(HERE / "runners" / f"{tool.runner}.py"), str(file)]


def variables(directory: Path, *, ours: bool) -> dict[str, str]:
    """Return the environment variables of runs: caches are in the directory, and nothing asks a network."""
    found = {
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(directory / "huggingface"),
        "HOME": str(directory / "home"),
        "TMPDIR": str(directory / "tmp"),
        "DO_NOT_TRACK": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "PYTHONWARNINGS": "ignore",
    }
    for name in ("home", "tmp"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    if ours:
        found["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return found
