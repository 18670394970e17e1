"""Views with one defect each, made from a sound one."""

from __future__ import annotations

from pathlib import Path

from support.bad_datasets import sequence_pointers, sound
from support.file_changes import edit_manifest, poke
from support.views import view_of


def sound_view(directory):
    """Write a view of two pieces of a dataset; return its prefix."""
    return view_of(sound(directory), directory / "view", [(3, 5), (20, 4)])


def view_damaged(directory):
    prefix = sound_view(directory)
    record = Path(f"{prefix}.tokshard/view.json")
    record.write_text(record.read_text().replace('"sequences": 2', '"sequences": 3'))
    return prefix


def view_of_other_files(directory):
    prefix = sound_view(directory)
    record = Path(f"{prefix}.tokshard/view.json").read_bytes()
    view_of(directory / "data/web", prefix, [(3, 5), (20, 4), (30, 1)])
    Path(f"{prefix}.tokshard/view.json").write_bytes(record)
    return prefix


def view_changed(directory):
    prefix = sound_view(directory)
    edit_manifest(directory / "data/web", lambda value: value.update(fingerprint="0" * 64))
    return prefix


def view_alone(directory):
    prefix = sound_view(directory)
    (directory / "data/web.idx").unlink()
    return prefix


def view_pointer(directory):
    prefix = sound_view(directory)
    poke(f"{prefix}.idx", sequence_pointers(prefix), "<q", 3)
    return prefix


def view_digest(directory):
    prefix = sound_view(directory)
    poke(f"{prefix}.idx", sequence_pointers(prefix), "<q", 8)
    return prefix


def view_of_nothing(directory):
    prefix = sound_view(directory)
    (directory / "data/web.bin").unlink()
    return prefix
