#!/usr/bin/env python3
"""Record what transformers gives for the directories of tests/support/tokenizer_directories.py.

Run it with the Python of each environment of scripts/oracle; each version writes its own file.
"""

import json
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

import transformers  # noqa: E402

from support import tokenizer_directories as directories  # noqa: E402
from support.directory_comparison import PART_TEXTS, WAYS, expected_reading  # noqa: E402


def recorded(family, variant):
    """Return the size, the EOD token and the digest of ids in each way; a failure as its message."""
    files = directories.directory(family, variant)
    texts = directories.hostile_texts(files, PART_TEXTS)
    with tempfile.TemporaryDirectory() as folder:
        path = directories.write_directory(f"{folder}/tokenizer", files)
        readings = [
            expected_reading(path, texts, megatron=megatron, special=special) for megatron, special in WAYS
        ]
    return [
        reading.splitlines()[0][:200]
        if isinstance(reading, str)
        else [reading.size, reading.eod, reading.digest()]
        for reading in readings
    ]


lines = []
for family, variant in directories.cases():
    lines.append(f"{json.dumps(f'{family}: {variant}')}: {json.dumps(recorded(family, variant))}")
major = transformers.__version__.split(".")[0]
(HERE / f"transformers{major}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
