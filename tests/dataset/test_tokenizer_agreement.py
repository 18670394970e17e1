"""The agreement of tokenizers equals a comparison of each pair, and unknown is never equal."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokshard.dataset.recorded_tokenizers import DatasetTokenizer
from tokshard.dataset.tokenizer_agreement import JobTokenizer, agree, common_tokenizer
from tokshard.dataset.tokenizer_identity import TokenizerIdentity, compare
from tokshard.errors import TokenizerMismatchError


def identity(definition="a", *, kind="huggingface", size=100, eod=0, **more):
    digest = {"definition_sha256": definition * 64} if definition else {"sha256": "f" * 64}
    return TokenizerIdentity(
        kind, None, vocab_size=size, max_token_id=size - 1, eod_id=eod, eod_token=None, **digest, **more
    )


identities = st.none() | st.builds(
    identity,
    st.sampled_from(["a", "b", ""]),
    kind=st.sampled_from(["huggingface", "tiktoken"]),
    size=st.sampled_from([100, 200]),
    eod=st.sampled_from([None, 0, 1]),
)


@st.composite
def tokenizers(draw):
    found = draw(identities)
    append = draw(st.sampled_from([None, True, False]))
    eod = draw(st.sampled_from([None, 0, 1])) if found is None else found.eod_id
    special = draw(st.sampled_from([None, True, False]))
    return DatasetTokenizer(found, append, special, None if append is False else eod)


def refuses(one: DatasetTokenizer, other: DatasetTokenizer) -> bool:
    """The slow twin: whether two datasets must not be used together."""
    known = one.identity is not None and other.identity is not None
    if known:
        pair = [
            TokenizerIdentity(
                found.kind,
                found.name,
                sha256=found.sha256,
                vocab_size=found.vocab_size,
                max_token_id=found.max_token_id,
                eod_id=None,
                eod_token=None,
                definition_sha256=found.definition_sha256,
            )
            for found in (one.identity, other.identity)
        ]
        if compare(*pair).verdict == "different":
            return True
    return one.eod_id is not None and other.eod_id is not None and one.eod_id != other.eod_id


@given(st.lists(tokenizers(), max_size=7))
def test_agreement_equals_the_comparison_of_each_pair(drawn):
    named = [(f"d{number}", tokenizer) for number, tokenizer in enumerate(drawn)]
    found = agree(named)
    pairs = {
        frozenset(pair)
        for mismatch in found.mismatches
        for pair in product(mismatch.first.names, mismatch.second.names)
    }
    assert pairs == {
        frozenset((one, other))
        for (one, first), (other, second) in combinations(named, 2)
        if refuses(first, second)
    }
    for name, tokenizer in named:
        if tokenizer.identity is None:
            assert name in found.unchecked
    # Two datasets that are neither refused nor listed as unchecked are known to be the same.
    for (one, first), (other, second) in combinations(named, 2):
        if frozenset((one, other)) not in pairs and not {one, other} & set(found.unchecked):
            assert first.identity.definition_sha256 == second.identity.definition_sha256
            assert first.identity.kind == second.identity.kind


def test_both_tokenizers_and_all_datasets_are_named():
    found = agree(
        [(f"web{number}", DatasetTokenizer(identity("a"))) for number in range(5)]
        + [("code", DatasetTokenizer(identity("b", size=200)))]
    )
    with pytest.raises(TokenizerMismatchError) as refused:
        found.require(allowed=False)
    assert refused.value.message == (
        "web0, web1, web2 and 2 more (huggingface aaaaaaaaaaaa, 100 tokens) and code (huggingface "
        "bbbbbbbbbbbb, 200 tokens) were encoded with different tokenizers: definitions aaaaaaaaaaaa and "
        "bbbbbbbbbbbb, vocabulary sizes 100 and 200, largest ids 99 and 199"
    )
    assert refused.value.exit_code == 6
    found.require(allowed=True)
    assert found.warnings == (f"allowed by --allow-tokenizer-mismatch: {refused.value.message}",)


def test_the_tokenizer_of_the_job_is_compared_without_its_eod():
    web = [("web", DatasetTokenizer(identity("a", eod=7), True, False, 7))]
    assert agree(web, JobTokenizer("/models/a", identity("a", eod=0))) == agree(web)
    other = agree(web, JobTokenizer("/models/b", identity("b")))
    assert other.mismatches[0].message == (
        "the job's tokenizer /models/b (huggingface bbbbbbbbbbbb, 100 tokens) is not the tokenizer of web "
        "(huggingface aaaaaaaaaaaa, 100 tokens): definitions bbbbbbbbbbbb and aaaaaaaaaaaa, EOD ids 0 and 7"
    ).replace(", EOD ids 0 and 7", "")
    assert agree(web, JobTokenizer("/models/c", None)).notes == (
        "the job's tokenizer /models/c cannot be read here and was not compared (pass --tokenizer COPY)",
    )


def test_definitions_of_two_libraries_are_not_checked():
    found = agree(
        [("web", DatasetTokenizer(identity("a"))), ("code", DatasetTokenizer(identity("b", kind="tiktoken")))]
    )
    assert (found.mismatches, found.unchecked) == ((), ("web", "code"))
    reason = "definitions of huggingface and tiktoken tokenizers cannot be compared"
    assert f"were not compared: {reason}" in found.notes[0]


def test_one_unknown_dataset_alone_is_no_warning():
    assert agree([("web", DatasetTokenizer())]).notes == ()
    assert agree([("web", DatasetTokenizer())] * 2).notes == ()


def test_documents_without_eod_among_others_are_a_warning_with_their_share():
    one = identity("a")
    with_eod, without = DatasetTokenizer(one, True, False, 0), DatasetTokenizer(one, False, False)
    named = [("web", with_eod), ("code", without), ("math", without), ("adopted", DatasetTokenizer())]
    found = agree(named, shares=[0.5, 0.25, 0.062, 0.188])
    assert found.mismatches == ()
    assert found.notes[1] == (
        "31.20% of the samples come from datasets whose documents end without EOD, "
        "unlike those of the others: code, math"
    )
    assert agree(named[1:3]).notes == ()


def test_special_tokens_in_some_datasets_are_a_warning():
    adding, idle = identity("a", prefix_ids=(1,), suffix_ids=()), identity("a", prefix_ids=(), suffix_ids=())
    for one, warned in ((adding, True), (idle, False)):
        named = [
            ("web", DatasetTokenizer(one, True, True, 0)),
            ("code", DatasetTokenizer(one, True, False, 0)),
        ]
        assert bool(agree(named).notes) == warned


def test_a_recorded_mismatch_is_accepted_again_and_no_other_one():
    one, other, third = (DatasetTokenizer(identity(letter)) for letter in "abc")
    recorded = agree([("web", one), ("code", other)]).to_record
    again = agree([("code2", other), ("web2", one)]).accepting(recorded)
    again.require(allowed=False)
    assert (again.mismatches, again.to_record) == ((), recorded)
    with pytest.raises(TokenizerMismatchError, match="math"):
        agree([("web", one), ("code", other), ("math", third)]).accepting(recorded).require(allowed=False)
    eods = [("web", DatasetTokenizer(one.identity, True, False, eod)) for eod in (0, 1)]
    with pytest.raises(TokenizerMismatchError, match="different EOD tokens"):
        agree(eods).accepting(recorded).require(allowed=False)


@given(st.lists(tokenizers(), max_size=5))
def test_a_common_tokenizer_is_that_of_every_dataset(drawn):
    common = common_tokenizer(drawn)
    if common is None:
        return
    for tokenizer in drawn:
        assert compare(tokenizer.identity, replace(common.identity, eod_id=None)).verdict == "same"
        for name in ("append_eod", "special_tokens", "eod_id"):
            assert getattr(common, name) in (None, getattr(tokenizer, name))
    assert agree([(str(number), tokenizer) for number, tokenizer in enumerate(drawn)]).unchecked == ()


def merged(*parts, mismatches=None):
    """The tokenizer of a merged dataset of several tokenizers, as its manifest records it."""
    return DatasetTokenizer(mismatches=mismatches, merged=parts)


def test_consent_for_a_merged_dataset_covers_no_third_tokenizer_and_no_other_dataset():
    one, other, third = (DatasetTokenizer(identity(letter)) for letter in "abc")
    allowed = agree([("web", one), ("code", other)]).to_record
    # Manifests of earlier versions record the mismatch, and not the merged tokenizers.
    for both in (merged(one, other, mismatches=allowed), DatasetTokenizer(mismatches=allowed)):
        agreement = agree([("both", both), ("web", one)])
        assert (agreement.mismatches, agreement.recorded) == ((), allowed)
        with pytest.raises(TokenizerMismatchError, match=r"both .* and math .* different tokenizers"):
            agree([("both", both), ("math", third)]).require(allowed=False)
        with pytest.raises(TokenizerMismatchError, match=r"web .* code .* different tokenizers"):
            agree([("both", both), ("web", one), ("code", other)]).require(allowed=False)
        assert agree([("both", both)], JobTokenizer("a", one.identity)).mismatches == ()
        with pytest.raises(TokenizerMismatchError, match=r"tokenizer c .* is not the tokenizer of both"):
            agree([("both", both)], JobTokenizer("c", third.identity)).require(allowed=False)


def test_known_tokenizers_inside_a_merged_dataset_are_compared():
    one, other = (DatasetTokenizer(identity(letter)) for letter in "ab")
    partly = merged(one, DatasetTokenizer())
    found = agree([("partly", partly), ("code", other)])
    assert [mismatch.kind for mismatch in found.mismatches] == ["tokenizer"]
    assert found.unchecked == ("partly",)
    eod = agree([("mixed", merged(replace(one, eod_id=5), one)), ("web", replace(one, eod_id=0))])
    assert [mismatch.kind for mismatch in eod.mismatches] == ["eod"]


def test_documents_without_eod_inside_a_merged_dataset_are_a_warning():
    parts = (DatasetTokenizer(identity(), append) for append in (True, False))
    mixed = replace(merged(*parts), identity=identity())
    (note,) = agree([("mixed", mixed), ("web", DatasetTokenizer(identity(), True))], shares=(0.3, 0.7)).notes
    assert note.startswith("30.00% of the samples")
    assert note.endswith("mixed")


def test_consent_for_a_job_covers_no_datasets():
    one, other = (DatasetTokenizer(identity(letter)) for letter in "ab")
    of_job = agree([("code", other)], JobTokenizer("a", one.identity)).to_record
    of_data = agree([("web", one), ("code", other)]).to_record
    both = agree([("web", one), ("code", other)], JobTokenizer("a", one.identity))
    assert both.accepting(of_data).mismatches == ()
    for accepted in (both.accepting(of_job), both.accepting((), of_indexes=of_job)):
        with pytest.raises(TokenizerMismatchError, match=r"web .* and code "):
            accepted.require(allowed=False)
