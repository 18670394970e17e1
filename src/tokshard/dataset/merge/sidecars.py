"""What a merge stages beside the tokens: the index, the sidecar files and the manifest."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import xxhash

from tokshard.core.strict_json import MAX_JSON_BYTES, dump_json
from tokshard.dataset.manifest import (
    PROVENANCE_NAME,
    REJECTED_NAME,
    SCHEMA,
    UNITS_NAME,
    Manifest,
    file_of,
)
from tokshard.dataset.merge.inputs import MergeInput
from tokshard.dataset.merge.plan import common_option
from tokshard.dataset.plan import Plan
from tokshard.dataset.staging import DigestingWriter, file_chunks, stage_chunks, stage_file, stage_manifest
from tokshard.dataset.writer import write_index
from tokshard.errors import InputError, IntegrityError
from tokshard.storage.digest import file_digest, piecewise_digest
from tokshard.storage.paths import bin_path
from tokshard.version import __version__

if TYPE_CHECKING:
    from numpy.typing import NDArray

UNKNOWN_ENGINE = "unknown"


def stage(
    directory: str, inputs: Sequence[MergeInput], digests: Mapping[int, str], plan: Plan
) -> list[Manifest]:
    """Write everything but the tokens into the work directory; return the manifest in a list.

    Args:
        directory: The work directory.
        inputs: The inputs.
        digests: The XXH3-128 of the ``.bin`` of each input without a manifest, by its number.
        plan: The plan of the run.

    Raises:
        IntegrityError: A sidecar file of an input is not what its manifest says.
    """
    pieces: list[str] = []
    files = {
        "bin": {"bytes": sum(one.bin_bytes for one in inputs)},
        "idx": _stage_index(directory, inputs, multimodal=plan.options["multimodal"]),
        UNITS_NAME: stage_chunks(directory, 0, UNITS_NAME, _unit_lines(inputs, digests, pieces)),
    }
    files["bin"]["pieces_xxh3_128"] = piecewise_digest(pieces)
    if all(one.has_provenance for one in inputs):
        chunks = _concatenated(inputs, PROVENANCE_NAME)
        files[PROVENANCE_NAME] = stage_chunks(directory, 0, PROVENANCE_NAME, chunks)
    if any(one.manifest and REJECTED_NAME in one.manifest.files for one in inputs):
        files[REJECTED_NAME] = stage_chunks(directory, 0, REJECTED_NAME, _concatenated(inputs, REJECTED_NAME))
    manifest = Manifest(
        schema=SCHEMA,
        tool={"name": "tokshard", "version": __version__},
        fingerprint=plan.fingerprint,
        dataset=_dataset_entry(inputs, len(pieces), multimodal=plan.options["multimodal"]),
        files=files,
        tokenizer=plan.tokenizer,
        options={"merge": [one.prefix for one in inputs], **plan.options, **_ends(inputs)},
        engine=_engine_entry(inputs),
        inputs=input_entries(inputs, digests),
        counts=_counts(inputs),
    )
    stage_manifest(directory, 0, manifest)
    return [manifest]


def _ends(inputs: Sequence[MergeInput]) -> dict[str, bool]:
    """Return whether documents end with EOD, where that is known and the same of all inputs."""
    appended = common_option(inputs, "append-eod")
    return {"append-eod": appended} if isinstance(appended, bool) else {}


def input_entries(inputs: Sequence[MergeInput], digests: Mapping[int, str]) -> list[dict[str, Any]]:
    """Return the entries of all inputs of the inputs; one without a manifest is an input itself."""
    entries: list[dict[str, Any]] = []
    for number, one in enumerate(inputs):
        if one.manifest is not None:
            entries += one.manifest.inputs
        else:
            entries.append(_foreign_entry(one, digests.get(number, "0" * 32)))
    return entries


def check_manifest_size(inputs: Sequence[MergeInput]) -> None:
    """Check that the list of the inputs' inputs can be written so that it can be read again.

    Raises:
        InputError: There are too many.
    """
    size = len(dump_json({"inputs": input_entries(inputs, {})}))
    if size > MAX_JSON_BYTES // 2:
        raise InputError(
            f"the manifest would need {size} bytes to list the inputs of all {len(inputs)} datasets, "
            f"more than {MAX_JSON_BYTES // 2}",
            hint="merge them into several datasets, and blend these",
        )


def _stage_index(directory: str, inputs: Sequence[MergeInput], *, multimodal: bool) -> dict[str, Any]:
    """Write the index from those of the inputs, of which one is open at a time."""

    def lengths() -> Iterator[NDArray[Any]]:
        for one in inputs:
            yield from one.columns(multimodal=multimodal).sequence_lengths.pieces()

    def sequences_per_document() -> Iterator[NDArray[Any]]:
        for one in inputs:
            yield from one.columns(multimodal=multimodal).sequences_per_document()

    def modes() -> Iterator[NDArray[Any]]:
        for one in inputs:
            yield from one.columns(multimodal=multimodal).sequence_modes.pieces()

    def write(file: DigestingWriter) -> None:
        write_index(
            file,
            dtype=inputs[0].header.dtype,
            sequence_count=sum(one.header.sequence_count for one in inputs),
            document_count=sum(one.header.document_count for one in inputs),
            lengths=lengths,
            sequences_per_document=sequences_per_document,
            modes=modes if multimodal else None,
        )

    return stage_file(directory, 0, "idx", write)


def _unit_lines(
    inputs: Sequence[MergeInput], digests: Mapping[int, str], pieces: list[str]
) -> Iterator[bytes]:
    """Yield the units of all inputs with the new numbers of their inputs; collect the digests of pieces."""
    first_input = 0
    for number, one in enumerate(inputs):
        before = len(pieces)
        for unit in _units(one, digests.get(number, "")):
            pieces.append(unit["tokens_xxh3_128"])
            renumbered = {**unit, "input": first_input + unit["input"]}
            yield (json.dumps(renumbered, separators=(",", ":")) + "\n").encode("ascii")
        if one.manifest is not None:
            _check_pieces(one, one.manifest, pieces[before:])
        first_input += len(one.manifest.inputs) if one.manifest else 1


def _units(one: MergeInput, digest: str) -> Iterator[dict[str, Any]]:
    if one.manifest is None:
        yield {
            "input": 0,
            "unit": 0,
            "content_bytes": one.bin_bytes,
            "content_xxh3_128": digest,
            "lines": 0,
            "documents": one.header.document_count,
            "rejected": 0,
            "sequences": one.header.sequence_count,
            "tokens": one.tokens,
            "tokens_xxh3_128": digest,
            "engine": UNKNOWN_ENGINE,
        }
        return
    path = file_of(one.prefix, UNITS_NAME)
    if file_digest(path) != one.manifest.files[UNITS_NAME]["xxh3_128"]:
        raise _damaged(one, UNITS_NAME)
    with open(path, "rb") as file:
        for line in file:
            yield json.loads(line)


def _check_pieces(one: MergeInput, manifest: Manifest, pieces: Sequence[str]) -> None:
    if piecewise_digest(pieces) != manifest.files["bin"].get("pieces_xxh3_128"):
        raise IntegrityError(
            f"{one.prefix}: the digests in {UNITS_NAME} do not make the one in the manifest", path=one.prefix
        )


def _concatenated(inputs: Sequence[MergeInput], name: str) -> Iterator[bytes]:
    """Yield a sidecar file of all inputs that have it, each held against its digest."""
    for one in inputs:
        if one.manifest is None or name not in one.manifest.files:
            continue
        state = xxhash.xxh3_128()
        for chunk in file_chunks(file_of(one.prefix, name)):
            state.update(chunk)
            yield chunk
        if state.hexdigest() != one.manifest.files[name]["xxh3_128"]:
            raise _damaged(one, name)


def _damaged(one: MergeInput, name: str) -> IntegrityError:
    path = file_of(one.prefix, name)
    return IntegrityError(
        f"{path} is not what was written: its digest is not the one in the manifest",
        path=path,
        hint="copy it again from its source, or make the dataset again",
    )


def _dataset_entry(inputs: Sequence[MergeInput], units: int, *, multimodal: bool) -> dict[str, Any]:
    fields = {one.manifest.dataset.get("field") if one.manifest else None for one in inputs}
    counts = [one.counts for one in inputs]
    return {
        "dtype": inputs[0].header.dtype.name,
        "multimodal": multimodal,
        "field": fields.pop() if len(fields) == 1 else None,
        "units": units,
        **{name: sum(one[name] for one in counts) for name in counts[0]},
        "longest_sequence": max(one["longest_sequence"] for one in counts),
        "eod_in_text": sum(one.manifest.dataset["eod_in_text"] for one in inputs if one.manifest),
    }


def _foreign_entry(one: MergeInput, digest: str) -> dict[str, Any]:
    return {
        "path": bin_path(one.prefix),
        "size_bytes": one.bin_bytes,
        "mtime_ns": one.state["bin_mtime_ns"],
        "format": "indexed",
        "compression": "none",
        "content_bytes": one.bin_bytes,
        "pieces_xxh3_128": piecewise_digest([digest]),
        **_foreign_counts(one),
        "rejected": 0,
    }


def _foreign_counts(one: MergeInput) -> dict[str, Any]:
    documents = one.header.document_count
    return {"records": documents, "documents": documents, "blank_lines": 0}


def _engine_entry(inputs: Sequence[MergeInput]) -> dict[str, Any]:
    documents: Counter[str] = Counter()
    compared = 0
    for one in inputs:
        if one.manifest is None:
            documents[UNKNOWN_ENGINE] += one.header.document_count
        else:
            documents.update(one.manifest.engine["documents"])
            compared += one.manifest.engine["compared"]
    return {"documents": dict(documents), "compared": compared, "differences": 0}


def _counts(inputs: Sequence[MergeInput]) -> dict[str, Any]:
    total: Counter[str] = Counter()
    rejected: Counter[str] = Counter()
    for one in inputs:
        found = (
            one.manifest.counts
            if one.manifest
            else {**_foreign_counts(one), "lines": 0, "content_bytes": one.bin_bytes, "rejected": {}}
        )
        rejected.update(found["rejected"])
        total.update({name: value for name, value in found.items() if name != "rejected"})
    return {**total, "rejected": dict(rejected)}
