"""Records that outlive a process are read and written as in golden files, and need every field."""

import dataclasses
import json
import re
import typing
from pathlib import Path

import pytest

from tokshard.core.codec import Document, Record, _shape_of, decode, encode
from tokshard.core.json_text import dump_json
from tokshard.core.options import declared_options
from tokshard.dataset.manifest import Manifest
from tokshard.dataset.records import PieceRecord, RejectionRecord, UnitRecord, to_line
from tokshard.dataset.run import RunJob
from tokshard.errors import IntegrityError
from tokshard.exchange.manifest import ExportManifest
from tokshard.loader.worlds import LoaderState
from tokshard.ranks.manifests import RankManifest
from tokshard.ranks.plan import Plan, StoppedPlan
from tokshard.ranks.sources import PlanSources
from tokshard.samples.blend.document import BlendDocument
from tokshard.samples.index.sidecar import Sidecar
from tokshard.storage.publication import Publication
from tokshard.text.tokenize.assembly import AppendedUnit
from tokshard.text.tokenize.part import PartFooter

GOLDEN = Path(__file__).parent / "golden/formats"
DOCUMENTS = (
    BlendDocument,
    ExportManifest,
    LoaderState,
    Manifest,
    PartFooter,
    Plan,
    PlanSources,
    Publication,
    RankManifest,
    RunJob,
    Sidecar,
)
RECORDS = {
    "appended-unit": AppendedUnit,
    "pieces": PieceRecord,
    "plan-history": StoppedPlan,
    "rejected": RejectionRecord,
    "units": UnitRecord,
}
CLASSES = {cls.SCHEMA: cls for cls in DOCUMENTS} | RECORDS


def records_in(hint):
    """Return the record classes that the values of a type consist of."""
    found, hints = set(), [hint]
    while hints:
        hint = hints.pop()
        if isinstance(hint, type) and issubclass(hint, Record) and hint not in found:
            found.add(hint)
            hints += typing.get_type_hints(hint, include_extras=True).values()
        hints += typing.get_args(hint)
    return found


def test_stored_classes_have_no_default_but_none():
    classes = set().union(*map(records_in, CLASSES.values()))
    assert len(classes) > 70
    for cls in classes:
        for field in dataclasses.fields(cls):
            # Files need recorded options all the same, as the test of required fields shows.
            is_option = field.name in declared_options(cls)
            assert is_option or field.default in {None, dataclasses.MISSING}, (cls, field.name)
            assert field.default_factory is dataclasses.MISSING, (cls, field.name)


def required_fields(record, value, where=""):
    """Yield each required field in the JSON of a record: its object, its name and its path."""
    items = ()
    if isinstance(record, Record):
        shape = _shape_of(type(record))
        for name in (*shape.constants, *shape.required):
            yield value, name, f"{where}.{name}".removeprefix(".")
        items = [(f".{name}", getattr(record, name), value[name]) for name in shape.readers if name in value]
    elif isinstance(record, tuple):
        items = [(f"[{place}]", *pair) for place, pair in enumerate(zip(record, value, strict=True))]
    elif isinstance(record, dict):
        items = [(f".{name}", record[name], value[name]) for name in record]
    for place, part, of_part in items:
        yield from required_fields(part, of_part, f"{where}{place}".removeprefix("."))


every_file = pytest.mark.parametrize(
    "path", [path for path in GOLDEN.iterdir() if path.is_file()], ids=lambda path: path.name
)


def golden_records(path):
    """Return the JSON and the record of a golden file, or of each of its lines."""
    content = path.read_bytes()
    found = []
    for line in content.splitlines(keepends=True) if path.suffix == ".jsonl" else [content]:
        value = json.loads(line)
        name = value.get("schema", re.split(r"-\d", path.name)[0])
        found.append((value, decode(CLASSES[name], value, path.name)))
    return found


def written(record):
    """Return the bytes of a record in a file."""
    if isinstance(record, Document):
        return record.to_bytes()
    if isinstance(record, PieceRecord | RejectionRecord | UnitRecord):
        return to_line(record)
    return dump_json(encode(record))


@every_file
def test_golden_files_are_read_and_written_byte_for_byte(path):
    assert b"".join(written(record) for _, record in golden_records(path)) == path.read_bytes()


@every_file
def test_stored_files_need_every_required_field_at_every_depth(path):
    for value, record in golden_records(path):
        for part, name, where in required_fields(record, value):
            content = part.pop(name)
            with pytest.raises(IntegrityError) as caught:
                decode(type(record), value, path.name)
            assert caught.value.field == where
            part[name] = content
