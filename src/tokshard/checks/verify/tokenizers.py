"""The tokenizers of a product's datasets: as it records them, as manifests do, and the one that is passed."""

from __future__ import annotations

from collections.abc import Mapping

from tokshard.checks.verify.context import VerifyContext
from tokshard.checks.verify.report import ProductFindings
from tokshard.dataset.manifest import read_dataset_tokenizer
from tokshard.dataset.recorded_tokenizers import DatasetTokenizer, TokenizerMismatch, allowed_warnings
from tokshard.dataset.tokenizer_agreement import JobTokenizer, agree
from tokshard.dataset.tokenizer_identity import compare_definitions
from tokshard.errors import IntegrityError, StorageError
from tokshard.samples.blend.document import BlendDocument
from tokshard.storage import fs
from tokshard.storage.paths import idx_path


def examine_tokenizers(
    recorded: Mapping[str, DatasetTokenizer | None],
    mismatches: tuple[TokenizerMismatch, ...] | None,
    findings: ProductFindings,
    context: VerifyContext,
    blend: BlendDocument | None = None,
) -> None:
    """Compare the tokenizers of a product's datasets with each other, with its records and with the job's.

    A dataset that is missing or whose manifest is damaged is skipped: other checks find it.

    Args:
        recorded: The tokenizer that the product records for each dataset, by path prefix; None for none.
        mismatches: The mismatches that the product records as allowed.
        findings: Receives the findings.
        context: With the job's tokenizer, if it was passed.
        blend: The product, if it is a blend: with the tokenizer of its job.
    """
    now: list[tuple[str, DatasetTokenizer]] = []
    for prefix, before in recorded.items():
        try:
            if not fs.lexists(idx_path(prefix)):
                continue
            found = read_dataset_tokenizer(prefix)
        except (IntegrityError, StorageError):
            continue
        now.append((prefix, found))
        compared = compare_definitions(before.identity if before is not None else None, found.identity)
        if compared.verdict == "different":
            text = f"{prefix} was encoded with another tokenizer than recorded: {', '.join(compared.details)}"
            findings.find("tokenizer-changed", text)
        elif compared.verdict == "not-checked" and before is not None and before.identity is not None:
            text = f"{prefix}: the recorded tokenizer was not compared: {compared.details[0]}"
            findings.find("tokenizer-unchecked", text)
    job = None
    if context.tokenizer is not None:
        job = JobTokenizer(context.tokenizer.argument or "bytes", context.tokenizer.identity)
    of_job = blend.mismatches_of_job(dict(now), findings.path) if blend is not None and job is None else ()
    agreement = agree(now, job).adding(of_job).accepting(mismatches or ())
    for mismatch in agreement.mismatches:
        is_jobs = not mismatch.first.count
        findings.find("tokenizer-other" if is_jobs else "tokenizer-mismatch", mismatch.message)
    find_allowed(agreement.recorded, findings)
    for note in agreement.unchecked_notes:
        findings.find("tokenizer-unchecked", note)


def find_allowed(mismatches: tuple[TokenizerMismatch, ...] | None, findings: ProductFindings) -> None:
    """Repeat the mismatches that a product records as allowed."""
    for message in allowed_warnings(mismatches):
        findings.find("tokenizer-mismatch-allowed", message)
