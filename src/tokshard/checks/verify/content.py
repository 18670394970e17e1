"""Checks of the content of a dataset: token ids, document ends, text, positions in inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from tokshard.checks.verify.context import VerifyContext
from tokshard.checks.verify.index import IndexFacts
from tokshard.checks.verify.inputs import Units, examine_inputs
from tokshard.checks.verify.pieces import examine_order
from tokshard.checks.verify.report import (
    ProductFindings,
    SpecialTokenAudit,
    SpecialTokenCount,
    TokenRole,
)
from tokshard.checks.verify.tokens import TokenRules, TokenTally, scan_tokens
from tokshard.dataset.manifest import (
    PROVENANCE_NAME,
    REJECTED_NAME,
    UNKNOWN_ENCODER,
    Manifest,
    file_of,
)
from tokshard.dataset.parameters import AdoptionParameters
from tokshard.dataset.provenance import ORIGIN
from tokshard.dataset.reader import IndexedDataset
from tokshard.dataset.records import RejectionRecord, read_records
from tokshard.dataset.source import InputFile
from tokshard.dataset.tokenizer_identity import TokenizerIdentity, compare_definitions
from tokshard.errors import IntegrityError, TokshardError, raise_exhaustion
from tokshard.storage import fs
from tokshard.storage.paths import bin_path
from tokshard.text.tokenizer.definition import Tokenizer
from tokshard.text.tokenizer.encoders import SpecialTokens, special_tokens_of
from tokshard.text.tokenizer.recorded import recorded_tokenizer

SAMPLE_DOCUMENTS = 100
SAMPLE_TOKENS = 4096
_SHOWN_TOKENS = 5


@dataclass(frozen=True, slots=True)
class Expectations:
    """Expectations about the tokens of a dataset, from its manifest and its tokenizer.

    Attributes:
        rules: The rules of the scan.
        eod_in_text: The number of EOD tokens other than those at the ends of documents; None if unknown.
        places_are_known: Whether special tokens at other places than the rules state come from the text.
        names: The texts of special tokens, by id.
        unknown_id: The token for unknown characters.
    """

    rules: TokenRules
    eod_in_text: int | None = None
    places_are_known: bool = False
    names: Mapping[int, str] = field(default_factory=dict)
    unknown_id: int | None = None

    def named(self, identifier: int) -> str:
        """Return a token for messages.

        Example:
            >>> Expectations(TokenRules(), names={1: "<s>"}).named(1)
            "'<s>' (1)"
        """
        return f"{self.names[identifier]!r} ({identifier})" if identifier in self.names else str(identifier)


def examine_tokens(
    dataset: IndexedDataset, expected: Expectations, findings: ProductFindings, context: VerifyContext
) -> TokenTally:
    """Read all tokens, check them, and put the counts of special tokens into the report.

    Raises:
        IntegrityError, StorageError: The ``.bin`` cannot be read to its end.
    """
    rules = expected.rules
    tally = scan_tokens(dataset, rules, context)
    findings.counts["tokens_checked"] = dataset.index.token_count
    if tally.ids:
        findings.special_tokens = _audit(tally, expected)
    path = bin_path(dataset.path_prefix)
    if tally.first_outside is not None:
        token, identifier = tally.first_outside
        offset = token * dataset.dtype.itemsize
        text = (
            f"{path} at byte {offset}: token {identifier} must "
            f"{'not be negative' if identifier < 0 else f'be below {rules.limit}'} "
            f"(of all tokens, {tally.outside:,} are not)"
        )
        findings.find("token-range", text, path=path, offset=offset)
    if rules.eod_id is not None and rules.ends_with_eod and tally.without_eod.count:
        text = (
            f"{dataset.path_prefix}: document {tally.without_eod.first} does not end with EOD "
            f"({rules.eod_id}) "
            f"(of {tally.documents:,} documents with tokens, {tally.without_eod.count:,} do not)"
        )
        if not tally.ids[rules.eod_id].occurrences:
            text += "; no document contains it"
        findings.find("eod-missing", text, path=path)
    _examine_eod_count(dataset.path_prefix, tally, expected, findings)
    if rules.has_template:
        for place, ids, missing in (
            ("begin", rules.prefix, tally.without_prefix),
            ("end", rules.suffix, tally.without_suffix),
        ):
            if ids and missing.count:
                never = [expected.named(one) for one in ids if not tally.ids[one].occurrences]
                text = (
                    f"{dataset.path_prefix}: document {missing.first} has a text that does not {place} with "
                    f"{', '.join(map(expected.named, ids))} (of {tally.sequences:,} texts with tokens, "
                    f"{missing.count:,} do not)"
                )
                if never:
                    text += f"; no document contains {', '.join(never)}"
                findings.find("special-missing", text, path=path)
    if expected.places_are_known:
        _examine_text(dataset.path_prefix, tally, expected, findings)
    return tally


def _examine_eod_count(
    prefix: str, tally: TokenTally, expected: Expectations, findings: ProductFindings
) -> None:
    eod = expected.rules.eod_id
    if eod is None or expected.eod_in_text is None:
        return
    counts = tally.ids[eod]
    found = counts.occurrences - (counts.ends if expected.rules.ends_with_eod else 0)
    if found != expected.eod_in_text:
        text = (
            f"{prefix}: the text of documents must contain EOD ({eod}) "
            f"{expected.eod_in_text} times by the manifest, got {found}"
        )
        findings.find("eod-count", text, path=bin_path(prefix))


def _examine_text(prefix: str, tally: TokenTally, expected: Expectations, findings: ProductFindings) -> None:
    # The text for unknown characters is no literal; without --append-eod, EOD in text is as intended.
    allowed = {expected.unknown_id}
    if not expected.rules.ends_with_eod:
        allowed.add(expected.rules.eod_id)
    found = [
        f"{expected.named(identifier)} {counts.elsewhere:,} {'time' if counts.elsewhere == 1 else 'times'}, "
        f"first in document {counts.first_elsewhere}"
        for identifier, counts in tally.ids.items()
        if counts.elsewhere and identifier not in allowed
    ]
    if found:
        rest = len(found) - _SHOWN_TOKENS
        more = f"; and {rest} more tokens" if rest > 0 else ""
        text = f"{prefix}: special tokens occur within text: {'; '.join(found[:_SHOWN_TOKENS])}{more}"
        findings.find("special-in-text", text, path=bin_path(prefix))


def _audit(tally: TokenTally, expected: Expectations) -> SpecialTokenAudit:
    rules = expected.rules
    found = []
    for identifier, counts in tally.ids.items():
        members: dict[TokenRole, tuple[int | None, ...]] = {
            "eod": (rules.eod_id,),
            "prefix": rules.prefix,
            "suffix": rules.suffix,
            "unknown": (expected.unknown_id,),
        }
        roles = tuple(role for role, ids in members.items() if identifier in ids)
        if roles or counts.occurrences:
            found.append(
                SpecialTokenCount(
                    id=identifier,
                    token=expected.names.get(identifier),
                    roles=roles,
                    occurrences=counts.occurrences,
                    starts=counts.starts,
                    ends=counts.ends,
                    elsewhere=counts.elsewhere,
                    first_elsewhere=counts.first_elsewhere,
                )
            )
    return SpecialTokenAudit(tally.documents, tuple(found))


def examine_meaning(
    prefix: str,
    facts: IndexFacts,
    manifest: Manifest | None,
    units: Units | None,
    findings: ProductFindings,
    context: VerifyContext,
) -> None:
    """Check every token, decode a sample of the documents, and compare with the available inputs.

    Raises:
        StorageError, IntegrityError: A file cannot be read to its end.
    """
    dataset = IndexedDataset(prefix, multimodal=facts.multimodal, mmap=False)
    tokenizer = _tokenizer(prefix, manifest, findings, context)
    expected = expectations(manifest, tokenizer, context.tokenizer)
    if expected.rules.limit is None:
        findings.find(
            "vocabulary-unknown", f"{prefix}: the tokenizer is unknown, so token ids cannot be checked"
        )
    if facts.header.dtype.kind in "iu":
        examine_tokens(dataset, expected, findings, context)
        if tokenizer is not None and not findings.has("token-range"):
            _decode_sample(dataset, tokenizer, findings)
    if manifest is not None and units is not None:
        _examine_provenance(prefix, manifest, units, findings, context)
        examine_order(prefix, manifest, findings, context)
        _examine_rejected(prefix, manifest, findings)
        # The input of an adopted dataset is its own .bin, whose digests were compared.
        if not isinstance(manifest.options, AdoptionParameters):
            examine_inputs(manifest, findings)


def _tokenizer(
    prefix: str, manifest: Manifest | None, findings: ProductFindings, context: VerifyContext
) -> Tokenizer | None:
    # The dataset's tokenizer, as far as its definition is at hand.
    if context.tokenizer is None:
        return recorded_tokenizer(manifest)
    identity = manifest.tokenizer if manifest is not None else None
    given = context.tokenizer.like(identity)
    comparison = compare_definitions(identity, given.identity)
    if comparison.verdict == "different":
        details = ", ".join(comparison.details)
        text = f"{prefix} was encoded with another tokenizer than {given.argument}: {details}"
        findings.find("tokenizer-other", text)
        return recorded_tokenizer(manifest)
    return given


def expectations(
    manifest: Manifest | None, tokenizer: Tokenizer | None, given: Tokenizer | None
) -> Expectations:
    """Return what is expected of a dataset's tokens.

    Args:
        manifest: Its manifest, if it has one.
        tokenizer: Its tokenizer, if the definition is at hand.
        given: The tokenizer that the user passed: ids must be in its vocabulary, too.
    """
    recorded = manifest.tokenizer if manifest is not None else None
    described = recorded or (tokenizer.identity if tokenizer is not None else None)
    identities = (described, given.identity if given is not None else None)
    limits = [one.max_token_id + 1 for one in identities if one is not None]
    if described is None and manifest is not None and manifest.id_limit is not None:
        limits.append(manifest.id_limit)
    template = _template(described, tokenizer)
    special = special_tokens_of(tokenizer) if tokenizer is not None else SpecialTokens({}, None)
    names = dict(special.names)
    if described is not None and described.eod_id is not None and described.eod_token is not None:
        names[described.eod_id] = described.eod_token
    rules = TokenRules(
        limit=min(limits, default=None),
        eod_id=_fitting(described.eod_id if described is not None else None),
        prefix=template[0] if template is not None else (),
        suffix=template[1] if template is not None else (),
        special=tuple(special.names),
    )
    expected = Expectations(rules, names=names, unknown_id=special.unknown_id)
    if manifest is None:
        return expected
    eod, appended = _fitting(manifest.options.eod_id), manifest.options.append_eod
    known = appended is not None and UNKNOWN_ENCODER not in manifest.counts.encoders
    # Unknown of rows of token ids, which may contain any special tokens.
    has_template = manifest.dataset_tokenizer.special_tokens
    return replace(
        expected,
        rules=replace(
            rules,
            eod_id=eod if eod is not None else rules.eod_id,
            ends_with_eod=(bool(appended) and eod is not None) if known else None,
            has_template=has_template,
        ),
        eod_in_text=manifest.counts.eod_in_text if known and eod is not None else None,
        places_are_known=known
        and recorded is not None
        and has_template is not None
        and (template is not None or not has_template),
    )


def _template(
    identity: TokenizerIdentity | None, tokenizer: Tokenizer | None
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    # The ids that --special-tokens adds before and after a text; None if unknown.
    for one in (identity, tokenizer.identity if tokenizer is not None else None):
        if one is not None and one.prefix_ids is not None and one.suffix_ids is not None:
            return one.prefix_ids, one.suffix_ids
        if one is not None and one.kind != "huggingface":
            return (), ()
    return None


def _fitting(identifier: int | None) -> int | None:
    return identifier if identifier is not None and identifier < 2**31 else None


def _decode_sample(dataset: IndexedDataset, tokenizer: Tokenizer, findings: ProductFindings) -> None:
    from tokshard.text.tokenizer.encoders import decode, unknown_ids

    count = dataset.document_count
    sample = sorted({place * count // SAMPLE_DOCUMENTS for place in range(SAMPLE_DOCUMENTS)} if count else ())
    findings.counts["documents_decoded"] = len(sample)
    for document in sample:
        first = int(dataset.document_indices[document])
        last = int(dataset.document_indices[document + 1])
        try:
            for sequence in range(first, last)[:1]:
                length = min(int(dataset.sequence_lengths[sequence]), SAMPLE_TOKENS)
                ids = dataset.get(sequence, 0, length).tolist()
                decode(tokenizer, ids)
                if unknown := unknown_ids(tokenizer, ids):
                    text = (
                        f"document {document} of {dataset.path_prefix} has the token id {unknown[0]}, "
                        f"which is in a gap of the vocabulary"
                    )
                    findings.find("undecodable", text)
        except TokshardError as error:
            raise_exhaustion(error)
            text = f"document {document} of {dataset.path_prefix} cannot be decoded: {error.message}"
            findings.find("undecodable", text, hint=error.hint)


def _examine_provenance(
    prefix: str, manifest: Manifest, units: Units, findings: ProductFindings, context: VerifyContext
) -> None:
    path = file_of(prefix, PROVENANCE_NAME)
    if manifest.files.provenance is None or not fs.isfile(path):
        return
    file = InputFile(path)
    edges = [0, *np.cumsum(units.documents).tolist()]
    if file.size_bytes != ORIGIN.itemsize * edges[-1]:
        return

    def ascends(unit: int) -> bool:
        content = bytearray(ORIGIN.itemsize * (edges[unit + 1] - edges[unit]))
        file.read_into(memoryview(content), ORIGIN.itemsize * edges[unit])
        context.runner.count_bytes(len(content))
        origins = np.frombuffer(content, ORIGIN)
        return all((np.diff(origins[name], prepend=-1) > 0).all() for name in ("offset", "line"))

    listed = list(range(len(edges) - 1))
    for unit, good in zip(listed, context.runner.run(ascends, listed, file.size_bytes), strict=True):
        if not good:
            text = f"{path}: the positions of documents {edges[unit]} to {edges[unit + 1] - 1} must ascend"
            findings.find("provenance-order", text, path=path, offset=ORIGIN.itemsize * edges[unit])


def _examine_rejected(prefix: str, manifest: Manifest, findings: ProductFindings) -> None:
    path = file_of(prefix, REJECTED_NAME)
    if manifest.files.rejected is None or not fs.isfile(path):
        return
    found: Counter[str] = Counter()
    try:
        for record in read_records(RejectionRecord, path):
            found[record.reason] += 1
    except IntegrityError as error:
        findings.find("rejected-count", error.message, path=path)
        return
    if dict(found) != manifest.counts.rejected:
        text = f"{path} must list {manifest.counts.rejected} by the manifest, got {dict(found)}"
        findings.find("rejected-count", text, path=path)
