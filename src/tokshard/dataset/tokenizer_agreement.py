"""Agreement of the tokenizers of datasets that are used together, and of a job that reads them.

Equal token ids of two tokenizers are different text, so data of different tokenizers must not be used
together unless the user allows it; then each product records the mismatch, and each report repeats it. What
cannot be compared (an unknown tokenizer, definitions of two libraries) is reported as not checked, never as
equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, takewhile
from typing import Any

from tokshard.core.formatting import counted, listed, percent
from tokshard.dataset.recorded_tokenizers import (
    SHOWN_NAMES,
    DatasetTokenizer,
    MismatchKind,
    MismatchSide,
    TokenizerMismatch,
    allowed_warnings,
)
from tokshard.dataset.tokenizer_identity import TokenizerIdentity, compare_definitions
from tokshard.errors import TokenizerMismatchError

ALLOW_HINT = (
    "tokenize the data again with one tokenizer and one --eod, or pass --allow-tokenizer-mismatch to use it "
    "anyway: equal ids will mean different text"
)
# Many sources must not make many large records.
_RECORDED_NAMES = 10
_RECORDED_MISMATCHES = 20
# A thousand tokenizers have half a million pairs.
_MOST_MISMATCHES = 1000


@dataclass(frozen=True, slots=True)
class JobTokenizer:
    """The tokenizer of the job that will read the datasets.

    Attributes:
        name: Its name in messages, such as the path that the job uses.
        identity: Its identity; None if it cannot be read here.
        null_vocab_size: The vocabulary size of a NullTokenizer, which has no definition: only ids can be
            compared with it.
        reason: The reason why its files, which exist on this machine, cannot be read, or None.
        hint: The instruction to install a missing package, or None.
    """

    name: str
    identity: TokenizerIdentity | None = None
    null_vocab_size: int | None = None
    reason: str | None = None
    hint: str | None = None

    @property
    def side(self) -> MismatchSide:
        """The job as a side of a mismatch."""
        return MismatchSide(self.identity, None, (self.name,), 0)


@dataclass(frozen=True, slots=True)
class TokenizerAgreement:
    """The result of :func:`agree`.

    Attributes:
        mismatches: Pairs of sides that do not fit together.
        recorded: Mismatches that were allowed when the datasets, or products of them, were made.
        unchecked_notes: Warnings about tokenizers that were not compared.
        policy_notes: Warnings about documents that end or begin differently.
        unchecked: The datasets whose tokenizer is unknown, or could not be compared with another one.
    """

    mismatches: tuple[TokenizerMismatch, ...] = ()
    recorded: tuple[TokenizerMismatch, ...] = ()
    unchecked_notes: tuple[str, ...] = ()
    policy_notes: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """All warnings except mismatches."""
        return (*self.unchecked_notes, *self.policy_notes)

    @property
    def warnings(self) -> tuple[str, ...]:
        """All messages for a user who has allowed the mismatches."""
        return (*allowed_warnings(self.to_record), *self.notes)

    @property
    def to_record(self) -> tuple[TokenizerMismatch, ...]:
        """The mismatches that a product records, its inputs' included; the first ones if there are many."""
        return tuple(dict.fromkeys((*self.mismatches, *self.recorded)))[:_RECORDED_MISMATCHES]

    def adding(self, mismatches: Iterable[TokenizerMismatch]) -> TokenizerAgreement:
        """Return the agreement with further mismatches."""
        return replace(self, mismatches=tuple(dict.fromkeys((*self.mismatches, *mismatches))))

    def accepting(
        self, recorded: Iterable[TokenizerMismatch], *, of_indexes: Iterable[TokenizerMismatch] = ()
    ) -> TokenizerAgreement:
        """Return the agreement in which mismatches that a product records are no longer refused.

        Args:
            recorded: Mismatches that were allowed; one between the same tokenizers is the same, whatever the
                datasets are. One between datasets covers a job of either, but not the other way around.
            of_indexes: Those that indexes record, which may be used without the other dataset: only those
                with the job, and those that are found here, count.
        """
        here = {_pair(found) for found in self.mismatches}
        earlier = (
            *recorded,
            *(found for found in of_indexes if not found.first.count or _pair(found) in here),
        )
        allowed = {_pair(found) for found in earlier}
        of_datasets = {_pair(found) for found in earlier if found.first.count}
        new = tuple(
            found
            for found in self.mismatches
            if _pair(found) not in (of_datasets if found.first.count else allowed)
        )
        return replace(self, mismatches=new, recorded=tuple(dict.fromkeys((*earlier, *self.recorded))))

    def concerning(self, name: str, tokenizer: DatasetTokenizer) -> tuple[TokenizerMismatch, ...]:
        """Return the mismatches of one of the datasets, those inside it included."""
        own = {(part.identity, part.eod_id) for part in tokenizer.parts}
        return tuple(
            found
            for found in self.to_record
            if found in (tokenizer.mismatches or ())
            or any(
                # Large groups do not list all of their names.
                (side.identity, side.eod_id) in own if found.kind != "vocabulary" else name in side.names
                for side in (found.first, found.second)
                if side.count
            )
        )

    def require(self, *, allowed: bool) -> None:
        """Refuse a mismatch unless it is allowed.

        Raises:
            TokenizerMismatchError: The datasets must not be used together.
        """
        if self.mismatches and not allowed:
            more = len(self.mismatches) - 1
            also = f" ({counted(more, 'more mismatch', 'more mismatches')})" if more else ""
            raise TokenizerMismatchError(self.mismatches[0].message + also, hint=ALLOW_HINT)


def agree(
    datasets: Sequence[tuple[str, DatasetTokenizer]],
    job: JobTokenizer | None = None,
    *,
    shares: Sequence[float] | None = None,
) -> TokenizerAgreement:
    """Compare the tokenizers of datasets that are used together, each pair of them, and with the job's.

    Args:
        datasets: Names and tokenizers; a name may occur more than once.
        job: The tokenizer of the job, if one was named.
        shares: The share of the samples of each dataset, for the warnings.

    Example:
        >>> one = TokenizerIdentity("bytes", None, 257, 256, 256, "<|endoftext|>", "0" * 64)
        >>> found = agree([("web", DatasetTokenizer(one)), ("code", DatasetTokenizer())])
        >>> found.mismatches, found.notes
        ((), ('the tokenizer of code is unknown and was not compared',))
    """
    pairs = _Pairs(datasets, job)
    unchecked, reasons = pairs.unchecked, pairs.reasons
    unknown = list(
        dict.fromkeys(name for each in pairs.groups if each.identity is None for name in each.names)
    )
    unchecked |= dict.fromkeys(unknown)
    if unknown and (job is not None or len({name for name, _ in datasets}) > 1):
        which, was = (
            ("tokenizers", "are unknown and were") if unknown[1:] else ("tokenizer", "is unknown and was")
        )
        reasons.append(f"the {which} of {listed(unknown, SHOWN_NAMES)} {was} not compared")
    if job is not None and job.null_vocab_size is not None:
        unchecked |= dict.fromkeys(name for name, _ in datasets)
    elif job is not None and job.identity is None and any(group.identity for group in pairs.groups):
        because = f": {job.reason}" if job.reason else ""
        reasons.append(
            f"the job's tokenizer {job.name} cannot be read here and was not compared (pass --tokenizer COPY)"
            f"{because}"
        )
    return TokenizerAgreement(
        tuple(pairs.mismatches),
        tuple(pairs.inside),
        tuple(reasons[:_RECORDED_MISMATCHES]),
        (
            *_policy(
                datasets,
                shares,
                lambda tokenizer: None if tokenizer.append_eod is None else not tokenizer.append_eod,
                "whose documents end without EOD, unlike those of the others",
            ),
            *_policy(
                datasets,
                shares,
                lambda tokenizer: tokenizer.adds_special_tokens,
                "that were encoded with --special-tokens, unlike the others",
            ),
            *_policy(
                datasets,
                shares,
                lambda tokenizer: tokenizer.splits_special_tokens,
                "that were encoded with --special-tokens-in-text split, unlike the others",
            ),
        ),
        tuple(unchecked),
    )


class _Pairs:
    # The comparison of all pairs of different tokenizers.

    def __init__(self, datasets: Sequence[tuple[str, DatasetTokenizer]], job: JobTokenizer | None) -> None:
        self.groups = _group(datasets)
        self.inside = dict.fromkeys(
            found for _, tokenizer in datasets for found in tokenizer.mismatches or ()
        )
        self._allowed_inside = {_pair(found) for found in self.inside}
        self.mismatches: list[TokenizerMismatch] = []
        self.unchecked: dict[str, None] = {}
        self.reasons: list[str] = []
        if job is not None and job.identity is not None:
            for group in self.groups:
                self._compare_job(job, group)
        for first, second in takewhile(
            lambda _: len(self.mismatches) < _MOST_MISMATCHES, combinations(self.groups, 2)
        ):
            self._compare(first, second)

    def _compare_job(self, job: JobTokenizer, group: _Group) -> None:
        # Without EOD: the job's tokenizer is read without the --eod of the data.
        compared = compare_definitions(job.identity, group.identity)
        if compared.verdict == "different":
            self._find("tokenizer", job.side, group.side, compared.details, is_plain=group.is_plain)
        elif compared.verdict == "not-checked" and group.identity is not None:
            self.unchecked |= dict.fromkeys(group.names)
            self.reasons.append(
                f"{job.side.label} and {group.side.label} were not compared: {compared.details[0]}"
            )

    def _compare(self, first: _Group, second: _Group) -> None:
        compared = compare_definitions(first.identity, second.identity)
        names = dict.fromkeys((*first.names, *second.names))
        if len(names) == 1 and not (first.is_plain or second.is_plain):
            # Inside one merged dataset: its manifest records what was allowed.
            if compared.verdict == "not-checked":
                self.unchecked |= names
            return
        is_plain = first.is_plain and second.is_plain
        if compared.verdict == "different":
            self._find("tokenizer", first.side, second.side, compared.details, is_plain=is_plain)
        elif first.eod_id != second.eod_id and None not in (first.eod_id, second.eod_id):
            details = (f"ids {first.eod_id} and {second.eod_id}",)
            self._find("eod", first.side, second.side, details, is_plain=is_plain)
        elif compared.verdict == "not-checked" and None not in (first.identity, second.identity):
            self.unchecked |= names
            self.reasons.append(
                f"the tokenizers of {first.side.label} and {second.side.label} were not compared: "
                f"{compared.details[0]}"
            )

    def _find(
        self,
        kind: MismatchKind,
        first: MismatchSide,
        second: MismatchSide,
        details: Iterable[str],
        *,
        is_plain: bool,
    ) -> None:
        found = TokenizerMismatch(kind, first, second, ", ".join(details))
        # What was allowed inside a merged dataset is so for it, and not between other datasets.
        if is_plain or _pair(found) not in self._allowed_inside:
            self.mismatches.append(found)


def common_tokenizer(tokenizers: Sequence[DatasetTokenizer]) -> DatasetTokenizer | None:
    """Return the tokenizer that all datasets have; None if one is unknown, or not known to be the same.

    Example:
        >>> one = TokenizerIdentity("bytes", None, 257, 256, 256, "<|endoftext|>", "0" * 64)
        >>> common_tokenizer([DatasetTokenizer(one, True), DatasetTokenizer(one, False)]).append_eod
        >>> common_tokenizer([DatasetTokenizer(one), DatasetTokenizer()])
    """
    if not tokenizers:
        return None
    first = tokenizers[0]
    if any(compare_definitions(first.identity, other.identity).verdict != "same" for other in tokenizers):
        return None
    policies = {(each.append_eod, each.special_tokens, each.eod_id) for each in tokenizers}
    append_eod, special_tokens, eod_id = (
        values.pop() if len(values := set(found)) == 1 else None for found in zip(*policies, strict=True)
    )
    return DatasetTokenizer(shared_identity(tokenizers), append_eod, special_tokens, eod_id)


def shared_identity(tokenizers: Sequence[DatasetTokenizer]) -> TokenizerIdentity | None:
    """Return the identity of the only tokenizer of datasets; special tokens are split only if all do so."""
    first = tokenizers[0].identity
    if first is None or all(tokenizer.splits_special_tokens for tokenizer in tokenizers):
        return first
    return replace(first, special_tokens_in_text=None)


def _pair(mismatch: TokenizerMismatch) -> tuple[Any, ...]:
    sides = frozenset(
        (
            "" if side.identity is None else side.identity.digest,
            side.eod_id if mismatch.kind == "eod" else None,
        )
        for side in (mismatch.first, mismatch.second)
    )
    # Ids beyond a vocabulary are found in one dataset, whose tokenizer may be unknown.
    return mismatch.kind, sides, mismatch.first.names if mismatch.kind == "vocabulary" else ()


@dataclass(frozen=True, slots=True)
class _Group:
    # Datasets, or parts of merged ones, of one tokenizer and EOD token.
    identity: TokenizerIdentity | None
    eod_id: int | None
    names: tuple[str, ...]
    is_plain: bool  # True if a dataset has no other tokenizer

    @property
    def side(self) -> MismatchSide:
        return MismatchSide(self.identity, self.eod_id, self.names[:_RECORDED_NAMES], len(self.names))


def _group(datasets: Sequence[tuple[str, DatasetTokenizer]]) -> list[_Group]:
    names: dict[tuple[TokenizerIdentity | None, int | None], dict[str, None]] = {}
    plain: set[tuple[TokenizerIdentity | None, int | None]] = set()
    for name, tokenizer in datasets:
        keys = dict.fromkeys((part.identity, part.eod_id) for part in tokenizer.parts)
        for key in keys:
            names.setdefault(key, {})[name] = None
        if len(keys) == 1:
            plain |= keys.keys()
    return [_Group(*key, tuple(found), key in plain) for key, found in names.items()]


def _policy(
    datasets: Sequence[tuple[str, DatasetTokenizer]],
    shares: Sequence[float] | None,
    has_it: Callable[[DatasetTokenizer], bool | None],
    which: str,
) -> list[str]:
    # One warning if some datasets are known to be encoded so, and others not to be.
    values = [{has_it(part) for part in tokenizer.parts} for _, tokenizer in datasets]
    if not {True, False} <= set().union(*values):
        return []
    chosen = [number for number, value in enumerate(values) if True in value]
    names = listed(list(dict.fromkeys(datasets[number][0] for number in chosen)), SHOWN_NAMES)
    if shares is None:
        return [f"there are datasets {which}: {names}"]
    share = percent(sum(shares[number] for number in chosen))
    return [f"{share} of the samples come from datasets {which}: {names}"]
