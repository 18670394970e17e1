"""What a tokenize run stages: from a finished assembly to index, sidecars and manifest of each field."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tokshard.dataset.manifest import (
    PROVENANCE_NAME,
    REJECTED_NAME,
    SCHEMA,
    UNITS_NAME,
    Manifest,
)
from tokshard.dataset.plan import Plan
from tokshard.dataset.staging import DigestingWriter, file_chunks, stage_chunks, stage_file, stage_manifest
from tokshard.storage.digest import piecewise_digest
from tokshard.tokenization.assembly import Assembly
from tokshard.tokenization.counts import UnitCounts
from tokshard.version import __version__

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def stage(directory: str, assembly: Assembly, plan: Plan, dtype: str) -> list[Manifest]:
    """Write every output's files into the work directory; return the manifests.

    Args:
        directory: The work directory.
        assembly: The assembly, with all units in it.
        plan: The plan of the run.
        dtype: ``"uint16"`` or ``"int32"``.
    """
    assembly.complete()
    inputs = _input_entries(assembly, plan)
    engine = _engine_entry(assembly)
    manifests = []
    for k, field in enumerate(plan.options["field"]):
        files = {
            "bin": {
                "bytes": os.stat(os.path.join(directory, f"{k}.bin")).st_size,
                "pieces_xxh3_128": piecewise_digest(unit["tokens_xxh3_128"][k] for unit in assembly.units()),
            },
            "idx": _stage_index(directory, k, assembly.counts, dtype),
            UNITS_NAME: stage_chunks(directory, k, UNITS_NAME, _unit_lines(assembly, k)),
        }
        for name, source in ((PROVENANCE_NAME, "offsets"), (REJECTED_NAME, "rejected.jsonl")):
            path = os.path.join(directory, source)
            wanted = plan.options["provenance"] if source == "offsets" else os.path.getsize(path)
            if wanted:
                files[name] = stage_chunks(directory, k, name, file_chunks(path))
        manifest = Manifest(
            schema=SCHEMA,
            tool={"name": "tokshard", "version": __version__},
            fingerprint=plan.fingerprint,
            dataset=_dataset_entry(assembly, k, field, dtype),
            files=files,
            tokenizer=plan.tokenizer,
            options=plan.options,
            engine=engine,
            inputs=inputs,
            counts={
                key: value
                for key, value in assembly.counts.to_json().items()
                if key not in {"fields", "compared"}
            },
        )
        stage_manifest(directory, k, manifest)
        manifests.append(manifest)
    return manifests


def _dataset_entry(assembly: Assembly, k: int, field: str, dtype: str) -> dict[str, Any]:
    return {
        "dtype": dtype,
        "multimodal": False,
        "field": field,
        "units": sum(1 for _ in assembly.units()),
        "documents": assembly.counts.documents,
        **asdict(assembly.counts.fields[k]),
    }


def _input_entries(assembly: Assembly, plan: Plan) -> list[dict[str, Any]]:
    """Return each input's entry of the plan with what was found in it."""
    found = [(UnitCounts(fields=[]), list[str]()) for _ in plan.inputs]
    for unit in assembly.units():
        counts, digests = found[unit["file"]]
        counts.add(UnitCounts.from_json({**unit["counts"], "fields": []}))
        digests.append(unit["content_xxh3_128"])
    return [
        {
            **entry,
            "content_bytes": counts.content_bytes,
            "pieces_xxh3_128": piecewise_digest(digests),
            "records": counts.records,
            "documents": counts.documents,
            "rejected": counts.rejected_total,
            "blank_lines": counts.blank_lines,
        }
        for entry, (counts, digests) in zip(plan.inputs, found, strict=True)
    ]


def _engine_entry(assembly: Assembly) -> dict[str, Any]:
    """Return how many documents each engine made, and on how many both were compared."""
    documents: dict[str, int] = {}
    for unit in assembly.units():
        documents[unit["engine"]] = documents.get(unit["engine"], 0) + unit["counts"]["documents"]
    return {"documents": documents, "compared": assembly.counts.compared, "differences": 0}


def _unit_lines(assembly: Assembly, k: int) -> Iterator[bytes]:
    """Yield the lines of an output's units.jsonl: the journal's, for one field."""
    for unit in assembly.units():
        counts = unit["counts"]
        line = {
            "input": unit["file"],
            "unit": unit["unit"],
            "content_bytes": counts["content_bytes"],
            "content_xxh3_128": unit["content_xxh3_128"],
            "lines": counts["lines"],
            "documents": counts["documents"],
            "rejected": sum(counts["rejected"].values()),
            "sequences": counts["fields"][k]["sequences"],
            "tokens": counts["fields"][k]["tokens"],
            "tokens_xxh3_128": unit["tokens_xxh3_128"][k],
            "engine": unit["engine"],
        }
        yield (json.dumps(line, separators=(",", ":")) + "\n").encode("ascii")


def _stage_index(directory: str, k: int, counts: UnitCounts, dtype: str) -> dict[str, Any]:
    from tokshard.dataset.writer import write_index

    def write(file: DigestingWriter) -> None:
        write_index(
            file,
            dtype=dtype,
            sequence_count=counts.fields[k].sequences,
            document_count=counts.documents,
            lengths=_column(os.path.join(directory, f"{k}.lengths"), "<i4"),
            sequences_per_document=_column(os.path.join(directory, f"{k}.sequences"), "<u4"),
        )

    return stage_file(directory, k, "idx", write)


def _column(path: str, dtype: str) -> Callable[[], Iterator[NDArray[np.generic]]]:
    """Return a function that reads a file of numbers in pieces, as often as it is called."""
    import numpy as np

    def pieces() -> Iterator[NDArray[np.generic]]:
        for chunk in file_chunks(path):
            yield np.frombuffer(chunk, dtype)

    return pieces
