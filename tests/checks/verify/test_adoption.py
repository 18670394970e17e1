"""Files of other programs get a manifest that all of our programs understand."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from support import bad_datasets
from support.file_changes import flip
from support.plain_datasets import Plain
from support.tokenize_runs import run_tokenize
from tokshard import MergeOptions, merge
from tokshard.checks.commands.verify import verify
from tokshard.checks.verify import adoption
from tokshard.checks.verify.options import VerifyOptions
from tokshard.dataset.fingerprint import dataset_fingerprint
from tokshard.dataset.manifest import check_sizes, read_manifest
from tokshard.dataset.parameters import AdoptionParameters
from tokshard.errors import LockedError, OutputExistsError, UsageError
from tokshard.storage.files import temporary_path
from tokshard.storage.lock import WriterLock


def codes(report):
    return {finding.code for finding in report.findings}


@pytest.fixture
def adopted(tmp_path):
    prefix = bad_datasets.foreign(tmp_path)
    assert codes(verify(VerifyOptions(path=prefix, adopt=True))) == {"adopted"}
    return prefix


def test_what_was_adopted_is_sound_and_says_what_is_not_known(adopted):
    assert codes(verify(VerifyOptions(path=adopted, level="deep"))) == {"vocabulary-unknown"}
    manifest = read_manifest(adopted)
    check_sizes(adopted, manifest)
    assert manifest.tokenizer is None
    assert manifest.counts.encoders == {"unknown": manifest.counts.documents}
    assert manifest.inputs[0].counts == manifest.counts
    assert manifest.options == AdoptionParameters(multimodal=False, eod_id=None)
    assert sorted(os.listdir(f"{adopted}.tokshard")) == ["manifest.json", "units.jsonl"]


def test_adopting_again_changes_nothing(adopted):
    before = Path(f"{adopted}.tokshard/manifest.json").read_bytes()
    assert codes(verify(VerifyOptions(path=adopted, adopt=True))) == set()
    assert Path(f"{adopted}.tokshard/manifest.json").read_bytes() == before


def test_what_a_killed_adoption_left_is_removed(tmp_path):
    prefix = bad_datasets.foreign(tmp_path)
    os.mkdir(f"{prefix}.tokshard")
    for name in ("manifest.json", "units.jsonl"):
        Path(temporary_path(f"{prefix}.tokshard/{name}")).touch()
    verify(VerifyOptions(path=prefix, adopt=True))
    assert sorted(os.listdir(f"{prefix}.tokshard")) == ["manifest.json", "units.jsonl"]
    manifest = f"{prefix}.tokshard/manifest.json"
    os.link(manifest, temporary_path(manifest))  # killed between the new name and the end of the old one
    verify(VerifyOptions(path=prefix, adopt=True))
    assert sorted(os.listdir(f"{prefix}.tokshard")) == ["manifest.json", "units.jsonl"]


def test_pieces_end_between_documents(tmp_path, monkeypatch):
    prefix = bad_datasets.foreign(tmp_path)
    monkeypatch.setattr(adoption, "PIECE_BYTES", 100)
    verify(VerifyOptions(path=prefix, adopt=True))
    lines = [json.loads(line) for line in Path(f"{prefix}.tokshard/units.jsonl").read_text().splitlines()]
    assert len(lines) > 5
    assert codes(verify(VerifyOptions(path=prefix, level="deep"))) == {"vocabulary-unknown"}
    flip(f"{prefix}.bin", -1)
    (finding,) = verify(prefix).findings
    assert finding.code == "bin-digest"
    assert finding.offset > 500


@pytest.mark.parametrize(
    "plain",
    [
        Plain("int32", []),
        Plain("int32", [[]]),
        Plain("uint16", [[[]], []]),
        Plain("int64", [[[1, 2], []], [], [[3]]]),
        Plain("int32", [[[1]], [[2, 3]]], [0, 1]),
        Plain("uint8", [[[1, 2, 3]]] * 10),
    ],
    ids=["nothing", "no-sequence", "no-token", "several", "multimodal", "small"],
)
def test_all_kinds_are_adopted(tmp_path, plain):
    prefix = str(tmp_path / "x")
    plain.write(prefix)
    assert codes(verify(VerifyOptions(path=prefix, adopt=True))) == {"adopted"}
    assert verify(VerifyOptions(path=prefix, level="deep")).sound
    assert read_manifest(prefix).dataset.multimodal == (plain.modes is not None)


def test_datasets_of_impossible_ids_are_not_adopted(tmp_path):
    prefix = str(tmp_path / "x")
    for plain, code in (
        (Plain("float64", [[[1.5]]]), "token-dtype"),
        (Plain("int32", [[[-1]]]), "token-range"),
    ):
        plain.write(prefix)
        assert codes(verify(VerifyOptions(path=prefix, adopt=True))) == {code, "unverified"}
        assert read_manifest(prefix) is None


def test_an_adopted_dataset_merges_with_others(adopted, tmp_path):
    os.makedirs(tmp_path / "other")
    other = bad_datasets.sound(tmp_path / "other")
    merge(MergeOptions(inputs=[adopted, other], output=str(tmp_path / "merged")))
    report = verify(VerifyOptions(path=tmp_path / "merged", level="deep"))
    assert codes(report) <= {"vocabulary-unknown"}
    counts = read_manifest(str(tmp_path / "merged")).counts
    assert counts.documents == sum(read_manifest(prefix).counts.documents for prefix in (adopted, other))


def test_an_adopted_dataset_is_replaced_only_when_forced(adopted, tmp_path):
    with pytest.raises(OutputExistsError):
        run_tokenize([str(tmp_path / "b.jsonl")], adopted, on_error="skip", workers=1)
    run_tokenize([str(tmp_path / "b.jsonl")], adopted, on_error="skip", workers=1, force=True)
    assert verify(VerifyOptions(path=adopted, level="deep")).findings == ()


def test_indexes_of_a_dataset_stay_fresh_when_it_is_adopted(tmp_path):
    prefix = bad_datasets.foreign(tmp_path)
    before = dataset_fingerprint(prefix)
    verify(VerifyOptions(path=prefix, adopt=True))
    after = dataset_fingerprint(prefix)
    assert before.filled_from(after) == after != before


def test_with_a_tokenizer_its_identity_and_eod_are_recorded(tmp_path):
    prefix = bad_datasets.sound(tmp_path, tokenizer=bad_datasets.TOKENIZER)
    identity = read_manifest(prefix).tokenizer
    shutil.rmtree(f"{prefix}.tokshard")
    assert codes(verify(VerifyOptions(path=prefix, adopt=True, tokenizer=bad_datasets.TOKENIZER))) == {
        "adopted"
    }
    manifest = read_manifest(prefix)
    assert manifest.tokenizer == identity
    assert manifest.options.eod_id == identity.eod_id
    assert verify(VerifyOptions(path=prefix, level="deep")).findings == ()


def test_tokens_outside_the_vocabulary_are_not_adopted(tmp_path):
    prefix = bad_datasets.foreign(tmp_path)
    bad_datasets.replace_tokens(prefix, lambda tokens: tokens.__setitem__(3, 65535))
    report = verify(VerifyOptions(path=prefix, adopt=True, tokenizer=bad_datasets.TOKENIZER))
    assert codes(report) == {"unverified", "token-range"}
    assert read_manifest(prefix) is None


def test_what_is_not_sound_is_not_adopted(tmp_path):
    prefix = bad_datasets.several_at_once(tmp_path)
    verify(VerifyOptions(path=prefix, adopt=True))
    assert read_manifest(prefix) is None
    assert not os.path.exists(f"{prefix}.tokshard")


def test_a_damaged_manifest_is_not_replaced(tmp_path):
    prefix = bad_datasets.manifest_damaged(tmp_path)
    before = Path(f"{prefix}.tokshard/manifest.json").read_bytes()
    assert "adopted" not in codes(verify(VerifyOptions(path=prefix, adopt=True)))
    assert Path(f"{prefix}.tokshard/manifest.json").read_bytes() == before


def test_a_dataset_that_another_process_writes_is_not_adopted(tmp_path):
    prefix = bad_datasets.foreign(tmp_path)
    os.mkdir(f"{prefix}.tokshard")
    with WriterLock(f"{prefix}.tokshard/lock"), pytest.raises(LockedError):
        verify(VerifyOptions(path=prefix, adopt=True))
    assert read_manifest(prefix) is None


def test_only_datasets_can_be_adopted(tmp_path):
    from support import bad_products

    with pytest.raises(UsageError, match="--adopt requires a dataset"):
        verify(VerifyOptions(path=bad_products.sound_cache(tmp_path), adopt=True))
