"""The memory that is available."""

from __future__ import annotations

import pytest

from tokshard.core import memory

MEMINFO = "MemTotal:       900 kB\nMemFree:        100 kB\nMemAvailable:   500 kB\n"
UNLIMITED_V1 = "9223372036854771712\n"


@pytest.fixture(name="system")
def pretended_system(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(memory, "_CGROUPS", tmp_path / "cgroup")

    def write(files):
        for name, content in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(content)

    return write


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"proc/meminfo": "MemTotal: 900 kB\n"}, None),
        ({"proc/meminfo": "MemAvailable: much kB\n"}, None),
        ({"proc/meminfo": MEMINFO}, 512_000),
        ({"proc/self/cgroup": "0::/\n", "proc/meminfo": MEMINFO, "cgroup/memory.max": "max\n"}, 512_000),
        ({"proc/self/cgroup": "0::/\n", "proc/meminfo": MEMINFO, "cgroup/memory.max": "4096\n"}, 4096),
        ({"proc/self/cgroup": "0::/\n", "proc/meminfo": MEMINFO, "cgroup/memory.max": "9999999\n"}, 512_000),
        (
            {
                "proc/self/cgroup": "0::/job/step\n",
                "proc/meminfo": MEMINFO,
                "cgroup/job/step/memory.max": "max\n",
                "cgroup/job/memory.max": "70000\n",
            },
            70_000,
        ),
        (
            {
                "proc/self/cgroup": "5:cpu,memory:/docker/77\n4:cpuset:/elsewhere\n0::/\n",
                "proc/meminfo": MEMINFO,
                "cgroup/memory/memory.limit_in_bytes": "80000\n",
                "cgroup/elsewhere/memory.max": "1\n",
            },
            80_000,
        ),
        (
            {
                "proc/self/cgroup": "5:memory:/slurm/job:7\n",
                "proc/meminfo": MEMINFO,
                "cgroup/memory/slurm/job:7/memory.limit_in_bytes": "60000\n",
                "cgroup/memory/memory.limit_in_bytes": UNLIMITED_V1,
            },
            60_000,
        ),
        ({"proc/self/cgroup": "nonsense\n", "proc/meminfo": MEMINFO}, 512_000),
    ],
)
def test_the_smallest_limit_counts(system, files, expected):
    system(files)
    assert memory.available_bytes() == expected
