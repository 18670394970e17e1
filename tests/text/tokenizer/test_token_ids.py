"""The null tokenizer: text that consists of token ids."""

import json

import numpy as np
import pytest

from support.tokenize_runs import run_tokenize
from tokshard import IndexedDataset
from tokshard.errors import TokenizerError
from tokshard.text.tokenizer import token_ids
from tokshard.text.tokenizer.definition import load_tokenizer, reopen_tokenizer, tokenizer_without_file
from tokshard.text.tokenizer.encoders import decode, reference_encoder
from tokshard.text.tokenizer.token_ids import check_token_ids, parse_token_ids


def test_its_vocabulary_is_a_number():
    tokenizer = load_tokenizer("null:50257")
    assert (tokenizer.identity.kind, tokenizer.identity.vocab_size, tokenizer.identity.max_token_id) == (
        "null",
        50257,
        50256,
    )
    assert (tokenizer.identity.eod_id, tokenizer.identity.eod_token) == (50256, "50256")
    assert load_tokenizer("null:10", eod="3").identity.eod_id == 3
    assert load_tokenizer("null:10").identity.digest != load_tokenizer("null:11").identity.digest


def test_a_worker_opens_it_by_its_identity():
    tokenizer = load_tokenizer("null:50257", eod="0")
    again = reopen_tokenizer(None, tokenizer.identity, tokenizer.sha256)
    assert (again.identity.kind, again.definition) == (tokenizer.identity.kind, tokenizer.definition)
    known = tokenizer_without_file(tokenizer.identity)
    assert known is not None
    assert known.identity.vocab_size == 50257
    built_in = load_tokenizer(None)
    assert tokenizer_without_file(built_in.identity).identity == built_in.identity


@pytest.mark.parametrize(
    "size", ["", "0", "-1", "x", "1e3", "4294967296", "9" * 5000, "\N{ARABIC-INDIC DIGIT TWO}"]
)
def test_other_sizes_are_refused(size):
    with pytest.raises(TokenizerError, match="vocabulary size of a null tokenizer must be"):
        load_tokenizer(f"null:{size}")


@pytest.mark.parametrize("eod", ["10", "-1", "x"])
def test_the_eod_token_is_in_the_vocabulary(eod):
    with pytest.raises(TokenizerError, match="must be an id below 10"):
        load_tokenizer("null:10", eod=eod)


@pytest.mark.parametrize("text", ["0", "9 8 7", "1_0 +5", " 5\n".strip(" "), "\N{ARABIC-INDIC DIGIT TWO}"])
def test_ids_are_read_as_python_reads_integers(text):
    assert parse_token_ids(text, 100) == [int(word) for word in text.split(" ")]
    tokenizer = load_tokenizer("null:100")
    encoded = reference_encoder(tokenizer, special_tokens=True).encode([text, "1 2"])
    assert encoded.ids.tolist() == [*parse_token_ids(text, 100), 1, 2]
    assert encoded.ids.dtype == np.uint32
    assert decode(tokenizer, encoded.ids) == " ".join(map(str, encoded.ids))


@pytest.mark.parametrize("text", ["", "a", "1  2", "1 2 ", "1,2", "1.0", "100", "-1"])
def test_other_texts_are_refused(text):
    with pytest.raises(ValueError, match="token id"):
        parse_token_ids(text, 100)


def test_a_record_without_ids_is_a_bad_record(tmp_path):
    lines = ['{"text": "1 2"}', '{"text": "one"}', '{"text": ["3", "4 99"]}', '{"text": ["5", "6 100"]}']
    (tmp_path / "ids.jsonl").write_text("\n".join(lines) + "\n")
    prefix = str(tmp_path / "out")
    run_tokenize(str(tmp_path / "ids.jsonl"), prefix, tokenizer="null:100", on_error="skip", workers=1)
    dataset = IndexedDataset(prefix)
    assert [dataset[k].tolist() for k in range(len(dataset))] == [[1, 2, 99], [3], [4, 99, 99]]
    rejected = (tmp_path / "out.tokshard" / "rejected.jsonl").read_text().splitlines()
    assert [json.loads(line)["reason"] for line in rejected] == ["token-ids", "token-ids"]


def test_a_row_without_ids_is_a_bad_record(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pa.table({"text": ["1 2", "x", "3"]}), tmp_path / "ids.parquet")
    prefix = str(tmp_path / "out")
    run_tokenize(str(tmp_path / "ids.parquet"), prefix, tokenizer="null:100", on_error="skip", workers=1)
    dataset = IndexedDataset(prefix)
    assert [dataset[k].tolist() for k in range(len(dataset))] == [[1, 2, 99], [3, 99]]


@pytest.mark.parametrize("wrong", ["x", "-1", "50", "5  6", " 5", "5 "])
@pytest.mark.parametrize("begin", [0, 3000, 5990])
def test_a_long_text_is_checked_in_parts(wrong, begin, monkeypatch):
    monkeypatch.setattr(token_ids, "_CHECKED_CHARACTERS", 10)
    words = ["7"] * 6000
    check_token_ids(" ".join(words), 50)
    words[begin] = wrong
    text = " ".join(words)
    with pytest.raises(ValueError, match="token id") as expected:
        parse_token_ids(text, 50)
    with pytest.raises(ValueError, match="token id") as found:
        check_token_ids(text, 50)
    assert str(found.value) == str(expected.value)
