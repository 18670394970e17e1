#!/usr/bin/env python3
"""Record the ids of transformers for the directories of tests/support/directory_cases.py.

Run it with a Python that has transformers 4, and with one that has transformers 5; each writes its own file.
"""

import json
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "support"), str(HERE.parents[2] / "src" / "tokshard")]

import directory_cases  # noqa: E402
import encode_with_transformers as program  # noqa: E402
import transformers  # noqa: E402


def recorded(files):
    with tempfile.TemporaryDirectory() as directory:
        for name, content in files.items():
            Path(directory, name).write_text(json.dumps(content), encoding="utf-8")
        try:
            tokenizer = program.load(directory)
        except Exception as error:
            return {"error": str(error).split("\n")[0].replace(directory, "DIRECTORY")[:100]}
        return {
            "size": len(tokenizer),
            "eos_token": tokenizer.eos_token,
            "ids": program.encode(tokenizer, directory_cases.TEXTS, special_tokens=False),
            "ids_with_special_tokens": program.encode(tokenizer, directory_cases.TEXTS, special_tokens=True),
        }


major = transformers.__version__.split(".")[0]
result = {name: recorded(files) for name, files in directory_cases.cases().items()}
lines = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in result.items()]
text = f'{{\n  "transformers": "{transformers.__version__}",\n' + ",\n".join(lines) + "\n}\n"
(HERE / f"transformers{major}.json").write_text(text, encoding="utf-8")
