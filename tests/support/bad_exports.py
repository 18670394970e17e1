"""Exports with one defect each."""

from __future__ import annotations

import shutil
from pathlib import Path

from support.blends import write_dataset
from support.file_changes import edit_json, flip
from tokshard import ExportOptions, export

LENGTHS = [5, 1, 17, 3, 40, 1, 9, 26]


def sound_export(directory):
    source = write_dataset(f"{directory}/data/web", LENGTHS)
    export(ExportOptions(source=source, to="olmo", output=f"{directory}/out", shard_tokens=50))
    return f"{directory}/out"


def damaged(directory):
    path = sound_export(directory)
    edit_json(f"{path}/.tokshard/export.json", lambda value: value.update(tokens="many"))
    return path


def changed(directory):
    path = sound_export(directory)
    edit_json(f"{path}/.tokshard/export.json", lambda value: value.update(records=7))
    return path


def unfinished(directory):
    path = sound_export(directory)
    Path(path, ".tokshard", "work").mkdir()
    return path


def file_missing(directory):
    path = sound_export(directory)
    Path(path, "part-0-00001.csv.gz").unlink()
    return path


def file_size(directory):
    path = sound_export(directory)
    with open(f"{path}/part-0-00001.npy", "ab") as file:
        file.write(b"12")
    return path


def file_digest(directory):
    path = sound_export(directory)
    flip(f"{path}/part-0-00000.npy", 4)
    return path


def other_files(directory):
    path = sound_export(directory)
    shutil.copy(f"{path}/part-0-00000.npy", f"{path}/part-7-00000.npy")
    return path


def source_changed(directory):
    path = sound_export(directory)
    flip(f"{directory}/data/web.bin", 4)
    return path


def source_missing(directory):
    path = sound_export(directory)
    Path(directory, "data/web.bin").unlink()
    return path
