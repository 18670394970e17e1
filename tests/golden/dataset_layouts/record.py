"""Write layouts.json: the configs, splits and files that the ``datasets`` library finds in directories.

    pip install datasets
    python tests/golden/dataset_layouts/record.py

Each case is a list of files and the YAML of its README. The library opens each case as a local directory.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

CASES: dict[str, tuple[list[str], str]] = {
    "shards": (
        [
            "data/test-00000-of-00001.parquet",
            "data/train-00000-of-00002.parquet",
            "data/train-00001-of-00002.parquet",
        ],
        "",
    ),
    "shards with hashes and other splits": (
        [
            "data/zulu-00000-of-00001-0123456789abcdef.parquet",
            "data/validation-00000-of-00001-0123456789abcdef.parquet",
            "data/afrikaans-00000-of-00001-0123456789abcdef.parquet",
            "data/extra.parquet",
        ],
        "",
    ),
    "shards elsewhere": (["train-00000-of-00001.parquet", "sub/data/test-00000-of-00001.parquet"], ""),
    "file names": (["train.jsonl", "sub/my_test_1.jsonl", "dev-2.jsonl", "notes.jsonl"], ""),
    "numbered files": (
        ["train10.jsonl", "train2.jsonl", "train1.jsonl", "training_a.jsonl", "x-train.jsonl"],
        "",
    ),
    "words inside words": (["retrain.jsonl", "constrained.jsonl", "testament.jsonl", "latest.jsonl"], ""),
    "directory names": (["train/a.jsonl", "train/b/c.jsonl", "eval/d.jsonl", "other/e.jsonl", "f.jsonl"], ""),
    "directories and file names": (["train/test.jsonl", "train/x.jsonl", "test.jsonl"], ""),
    "directory forms": (
        ["my-train-1/a.jsonl", "train_2/b.jsonl", "x/3 train/c.jsonl", "train/train-1/d.jsonl"],
        "",
    ),
    "all files": (["b.jsonl", "a.jsonl", "sub/c.jsonl", "part-10.jsonl", "part-9.jsonl"], ""),
    "hidden files": (
        [".hidden.jsonl", ".git/a.jsonl", "__cache__/b.jsonl", "__c.jsonl", "_d.jsonl", "e.jsonl"],
        "",
    ),
    "files that are no data": (["dataset_infos.json", "config.json", "a.parquet", "LICENSE", "x.py"], ""),
    "most files decide": (["a.parquet", "b.parquet", "stats.json"], ""),
    "compressed": (["a.jsonl.gz", "b.jsonl.zst", "c.json.bz2", "d.jsonl.xz"], ""),
    "one path": (["a/x.jsonl", "b/y.jsonl"], "configs:\n- config_name: default\n  data_files: a/x.jsonl\n"),
    "a list of paths": (
        ["a/x.jsonl", "b/y.jsonl", "c/z.jsonl"],
        'configs:\n- config_name: default\n  data_files: ["c/*.jsonl", "a/*"]\n',
    ),
    "configs and splits": (
        ["en/1.parquet", "en/2.parquet", "de/1.parquet", "de/t/1.parquet"],
        (
            "configs:\n- config_name: en\n  data_files:\n  - split: train\n    path: en/*\n"
            "- config_name: de\n  default: true\n  data_files:\n  - split: train\n    path: de/*\n"
            "  - split: test\n    path: [de/t/1.parquet]\n"
        ),
    ),
    "patterns": (
        [
            "data/2024-10/000_00000.parquet",
            "data/2024-10/000_00001.parquet",
            "data/2025-05/000_00000.parquet",
        ],
        (
            "configs:\n- config_name: default\n  data_files:\n  - split: train\n    path: data/*/*\n"
            "- config_name: y24\n  data_files:\n  - split: train\n    path: data/2024-*/*\n"
            "- config_name: one\n  data_files:\n  - split: train\n    path: data/**/000_0000[0].parquet\n"
            "- config_name: question\n  data_files:\n  - split: train\n    path: data/202?-10/*.parquet\n"
        ),
    ),
    "a directory of a config": (
        ["one/train.jsonl", "one/test.jsonl", "two/a.jsonl", "train.jsonl"],
        "configs:\n- config_name: one\n  data_dir: one\n- config_name: two\n  data_dir: two\n",
    ),
    "everything": (
        ["a.jsonl", "x/b.jsonl", "x/y/c.jsonl", "README.md"],
        "configs:\n- config_name: default\n  data_files:\n  - split: train\n    path: '**'\n",
    ),
    "names that look like patterns": (
        ["a[1].jsonl", "a1.jsonl"],
        "configs:\n- config_name: default\n  data_files: 'a[1].jsonl'\n",
    ),
    "dots": (["a/x.jsonl"], "configs:\n- config_name: default\n  data_files: ./a/x.jsonl\n"),
}


def write(directory: Path, files: list[str], yaml: str) -> None:
    """Write the files of a case."""
    import pyarrow as pa
    from pyarrow import parquet

    for name in files:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".parquet"):
            parquet.write_table(pa.table({"text": ["a"]}), path)
        else:
            path.write_text("{}" if name in {"config.json", "dataset_infos.json"} else '{"text": "a"}\n')
    (directory / "README.md").write_text(f"---\nlicense: mit\n{yaml}---\n# A dataset\n")


def found(directory: Path) -> dict[str, dict[str, list[str]]]:
    """Return the files of each split of each config."""
    import datasets

    return {
        config: {
            str(split): [os.path.relpath(path, os.path.realpath(directory)) for path in files]
            for split, files in datasets.load_dataset_builder(
                str(directory), config
            ).config.data_files.items()
        }
        for config in datasets.get_dataset_config_names(str(directory))
    }


def main() -> None:
    """Record all cases."""
    import datasets

    cases = []
    for name, (files, yaml) in CASES.items():
        with tempfile.TemporaryDirectory() as directory:
            place = Path(os.path.realpath(directory))
            write(place, files, yaml)
            try:
                result = found(place)
            except Exception as error:
                print(name, type(error).__name__, str(error)[:300])
                continue
            cases.append({"name": name, "files": files, "yaml": yaml, "found": result})
    target = Path(__file__).with_name("layouts.json")
    target.write_text(json.dumps({"datasets": datasets.__version__, "cases": cases}, indent=1) + "\n")


if __name__ == "__main__":
    main()
