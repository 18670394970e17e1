"""Text that a tokenizer cannot represent is counted, and said; the ids stay those of the library."""

from __future__ import annotations

import json
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.command_line import failure, installed, json_of
from tokshard.text.tokenizer.definition import load_tokenizer
from tokshard.text.tokenizer.encoders import reference_encoder
from tokshard.text.tokenizer.huggingface import byte_alphabet
from tokshard.text.tokenizer.pieces import DroppedCharacters

CANNOT = "warning: the tokenizer cannot represent all text of out: "
ADVICE = "use one with byte fallback or a byte-level vocabulary, or one trained on such text"
WORDS = ["[UNK]", "[EOD]", "one", "two"]


def definition(model, **parts):
    empty = dict.fromkeys(
        ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")
    )
    return {"version": "1.0", "added_tokens": [], **empty, "model": model, **parts}


def bpe(vocabulary, **settings):
    return {
        "type": "BPE",
        "vocab": {name: place for place, name in enumerate(vocabulary)},
        "merges": [],
        **settings,
    }


def word_level(words):
    ids = {word: place for place, word in enumerate(words)}
    return {"type": "WordLevel", "vocab": ids, "unk_token": "[UNK]"}


WORD_LEVEL = definition(word_level(WORDS), pre_tokenizer={"type": "Whitespace"})


def write(directory, parsed, texts):
    (directory / "tokenizer.json").write_text(json.dumps(parsed))
    (directory / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def tokenize(directory, *arguments):
    done = installed(
        "tokenize", "in.jsonl", "-o", "out", "--tokenizer", "tokenizer.json", *arguments, cwd=directory
    )
    assert done.returncode == 0, done
    return done


def recorded(directory):
    manifest = json.loads((directory / "out.tokshard/manifest.json").read_text())
    return manifest["counts"].get("unrepresented")


def test_characters_that_are_dropped(tmp_path):
    write(tmp_path, definition(bpe("helo wrd")), ["héllo wörld", "hello"])
    done = tokenize(tmp_path, "--no-append-eod")
    share = "2 of 16 checked (12.50%)"
    assert f"dropped characters: {share}\n" in done.stdout
    assert f"{CANNOT}dropped characters, {share}; {ADVICE}\n" in done.stderr
    assert recorded(tmp_path) == {"unit": "characters", "checked": 16, "count": 2}
    report = json_of(tokenize(tmp_path, "--no-append-eod", "--json"))
    assert report["outputs"][0]["counts"]["unrepresented"] == recorded(tmp_path)
    assert len(report["warnings"]) == 1
    assert f"dropped characters {share}" in " ".join(installed("inspect", "out", cwd=tmp_path).stdout.split())


def test_dropped_characters_of_units_beyond_a_limit_do_not_count(tmp_path):
    """Those of the unit in which the limit lies are those of the whole unit."""
    write(tmp_path, definition(bpe("helo wrd")), ["hello", *["wörld"] * 200, "hello"])
    sizes = [len(line) for line in (tmp_path / "in.jsonl").read_bytes().splitlines(keepends=True)]
    two = ("--unit-size", str(sizes[0] + sizes[1]))
    for limits, (checked, dropped) in [
        (("--limit", "1"), (1010, 200)),
        (("--limit", "202"), (1010, 200)),
        ((*two, "--limit", "1"), (10, 1)),
        ((*two, "--limit", "2"), (10, 1)),
        ((*two, "--limit", "3"), (20, 3)),
        ((*two, "--max-tokens", "12"), (10, 1)),
        ((*two, "--max-tokens", "13"), (20, 3)),
        ((*two, "--limit", "202"), (1010, 200)),
    ]:
        tokenize(tmp_path, "--no-append-eod", *limits, "--force")
        assert recorded(tmp_path) == {"unit": "characters", "checked": checked, "count": dropped}


def test_each_output_names_what_its_text_lost(tmp_path):
    """Of two fields, one a list of texts."""
    write(tmp_path, definition(bpe("helo wrd")), [])
    rows = [{"a": "ö" * number, "b": ["hö", "ello"] * number} for number in range(1, 5)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = tokenize(tmp_path, "--no-append-eod", "--field", "a", "--field", "b")
    assert "dropped characters: 10 of 10 checked (100.00%) in out_a_document\n" in done.stdout
    assert "dropped characters: 10 of 60 checked (16.67%) in out_b_document\n" in done.stdout


def test_unknown_tokens(tmp_path):
    write(tmp_path, WORD_LEVEL, ["one two three", "one [UNK]", "", "[EOD]"])
    done = tokenize(tmp_path, "--eod", "[EOD]")
    # Of "[UNK]" the brackets and the letters are a word each.
    share = "7 of 10 (70.00%)"
    assert f"unknown tokens: {share}\n" in done.stdout
    assert f"{CANNOT}unknown tokens, {share}; {ADVICE}\n" in done.stderr
    assert f"unknown tokens {share}" in " ".join(installed("inspect", "out", cwd=tmp_path).stdout.split())
    assert recorded(tmp_path) == {"unit": "tokens", "checked": 10, "count": 7}


def test_the_appended_token_is_not_text_even_if_it_is_the_unknown_token(tmp_path):
    write(tmp_path, WORD_LEVEL, ["one two three", "one", "three", "two"])
    tokenize(tmp_path, "--eod", "[UNK]")
    assert recorded(tmp_path) == {"unit": "tokens", "checked": 6, "count": 2}
    tokenize(tmp_path, "--eod", "[UNK]", "--limit", "2", "--force")
    assert recorded(tmp_path) == {"unit": "tokens", "checked": 4, "count": 1}


def test_a_small_share_is_counted_without_a_warning(tmp_path):
    write(tmp_path, WORD_LEVEL, ["one two " * 100 + "three"])
    done = tokenize(tmp_path, "--eod", "[EOD]")
    assert "unknown tokens: 1 of 201 (0.50%)\n" in done.stdout
    assert "warning" not in done.stderr


def test_a_vocabulary_with_everything_says_nothing(tmp_path):
    write(tmp_path, WORD_LEVEL, ["one two"])
    done = tokenize(tmp_path, "--eod", "[EOD]")
    assert "unknown tokens" not in done.stdout
    assert "warning" not in done.stderr
    assert recorded(tmp_path) == {"unit": "tokens", "checked": 2, "count": 0}


def test_nothing_is_counted_where_every_text_can_be_written(tmp_path):
    substitutes = [f"<0x{byte:02X}>" for byte in {*range(256)} - {0xC0, 0xC1, *range(0xF5, 0x100)}]
    write(tmp_path, definition(bpe(["a", *substitutes], byte_fallback=True)), ["aé"])
    tokenize(tmp_path, "--no-append-eod")
    assert recorded(tmp_path) is None


def test_a_merge_adds_what_its_inputs_counted(tmp_path):
    write(tmp_path, WORD_LEVEL, ["one three"])
    tokenize(tmp_path, "--eod", "[EOD]")
    (tmp_path / "empty.jsonl").touch()
    options = ("-o", "empty", "--tokenizer", "tokenizer.json", "--eod", "[EOD]")
    assert installed("tokenize", "empty.jsonl", *options, cwd=tmp_path).returncode == 0
    done = installed("merge", "out", "empty", "out", "-o", "both", "--json", cwd=tmp_path)
    assert done.returncode == 0, done
    manifest = json.loads((tmp_path / "both.tokshard/manifest.json").read_text())
    assert manifest["counts"]["unrepresented"] == {"unit": "tokens", "checked": 4, "count": 2}


def test_a_merge_with_a_dataset_that_counted_nothing_tells_nothing_of_all(tmp_path):
    write(tmp_path, WORD_LEVEL, ["one three"])
    tokenize(tmp_path, "--eod", "[EOD]")
    for kind in ("bin", "idx"):
        shutil.copy(tmp_path / f"out.{kind}", tmp_path / f"foreign.{kind}")
    done = installed("merge", "out", "foreign", "-o", "both", "--json", cwd=tmp_path)
    assert done.returncode == 0, done
    manifest = json.loads((tmp_path / "both.tokshard/manifest.json").read_text())
    assert "unrepresented" not in manifest["counts"]


def test_work_of_other_units_is_counted_once(tmp_path):
    """A run that stopped at a bad record, and the one that goes on from its units, count as one run does."""
    write(tmp_path, WORD_LEVEL, ["one three"] * 50)
    good = (tmp_path / "in.jsonl").read_bytes()
    (tmp_path / "in.jsonl").write_bytes(good + b"{\n")
    options = ("--eod", "[EOD]", "--unit-size", "300")
    arguments = ("tokenize", "in.jsonl", "-o", "out", "--tokenizer", "tokenizer.json", *options)
    assert installed(*arguments, cwd=tmp_path).returncode == 3
    done = installed(*arguments, "--on-error", "skip", cwd=tmp_path)
    assert done.returncode == 0, done
    assert "reused: " in done.stdout
    assert recorded(tmp_path) == {"unit": "tokens", "checked": 100, "count": 50}


EOS_TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "[EOD]", "type_id": 0}}],
    "pair": [],
    "special_tokens": {"[EOD]": {"id": "[EOD]", "ids": [1], "tokens": ["[EOD]"]}},
}
TWICE = (
    "warning: documents end with the EOD token [EOD] twice, because with --special-tokens the tokenizer adds "
    "it as well; pass --no-append-eod to write it once"
)
IN_TEXT = "warning: out: the text of the corpus itself contains the EOD token 1 time;"


@pytest.mark.parametrize("texts", [["one", "two two"], ["one", "two [EOD]", ""]], ids=["plain", "in-text"])
def test_an_eod_token_that_the_tokenizer_adds_is_not_blamed_on_the_corpus(tmp_path, texts):
    added = {"id": 1, "content": "[EOD]", "special": True, **dict.fromkeys(FLAGS, False)}
    write(tmp_path, {**WORD_LEVEL, "post_processor": EOS_TEMPLATE, "added_tokens": [added]}, texts)
    done = tokenize(tmp_path, "--eod", "[EOD]", "--special-tokens")
    assert TWICE in done.stderr
    assert (IN_TEXT in done.stderr) == (len(texts) > 2)
    assert done.stderr.count("warning: ") == len(texts) - 1
    # Special tokens in text are a finding.
    assert installed("verify", "out", "--level", "deep", cwd=tmp_path).returncode == len(texts) - 2
    planned = installed(*done.args[1:], "--dry-run", "--json", cwd=tmp_path)
    assert f"warning: {json_of(planned)['warnings'][0]}" == TWICE
    once = tokenize(tmp_path, "--eod", "[EOD]", "--special-tokens", "--no-append-eod", "--force")
    assert "warning" not in once.stderr


@pytest.mark.parametrize(
    "model",
    [
        bpe("ab", unk_token="[UNK]"),
        {**word_level(["a"]), "unk_token": "[UNK]"},
        {"type": "Unigram", "vocab": [["a", -1.0]], "unk_id": None},
    ],
    ids=lambda model: model["type"],
)
def test_a_model_without_its_unknown_token(tmp_path, model):
    write(tmp_path, definition(model), ["a"])
    tokenize(tmp_path, "--no-append-eod")
    write(tmp_path, definition(model), ["ac"])
    arguments = ("in.jsonl", "-o", "out", "--tokenizer", "tokenizer.json", "--no-append-eod", "--force")
    for workers in ("1", "2"):
        code, error, hint = failure(installed("tokenize", *arguments, "--workers", workers, cwd=tmp_path))
        assert code == 3
        assert error.startswith("tokenizers cannot encode a text with tokenizer.json: ")
        assert hint == "add its unknown token to the vocabulary, or fetch the file again if it is damaged"


FLAGS = ("single_word", "lstrip", "rstrip", "normalized")
TEXTS = st.text("abcéß <x>\u4e2d ", max_size=30)
NAMES = [*"abcß <Ã", "##a", "##b", "a</w>", "##c</w>", "abc", "<0xC3>", "<0xA9>"]
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
STRIP = {"type": "Strip", "strip_left": True, "strip_right": True}
ADDED = {"content": "<x>", "special": True, **dict.fromkeys(FLAGS, False)}


@pytest.mark.parametrize("eod", ["[EOD]", "[UNK]"])
def test_what_the_tokenizer_adds_is_no_text(tmp_path, eod):
    named = {"[EOD]": {"id": "[EOD]", "ids": [WORDS.index(eod)], "tokens": [eod]}}
    template = {**EOS_TEMPLATE, "special_tokens": named}
    write(tmp_path, {**WORD_LEVEL, "post_processor": template}, ["one three", "two", "three"])
    tokenize(tmp_path, "--eod", eod, "--special-tokens", "--no-append-eod")
    assert recorded(tmp_path) == {"unit": "tokens", "checked": 4, "count": 2}
    tokenize(tmp_path, "--eod", eod, "--special-tokens", "--limit", "2", "--force")
    assert recorded(tmp_path) == {"unit": "tokens", "checked": 3, "count": 1}


def test_a_token_of_the_model_that_is_also_added_is_text(tmp_path):
    """An offset after a dropped character is wrong, so it must not tell what was an added token."""
    added = {**ADDED, "id": 0, "content": "a", "single_word": True}
    write(tmp_path, definition(bpe("ab"), added_tokens=[added]), ["éba a"])
    tokenize(tmp_path, "--no-append-eod")
    assert recorded(tmp_path) == {"unit": "characters", "checked": 4, "count": 2}


@given(
    text=TEXTS,
    names=st.sets(st.sampled_from(NAMES), min_size=1),
    settings=st.fixed_dictionaries(
        {
            "continuing_subword_prefix": st.sampled_from([None, "##"]),
            "end_of_word_suffix": st.sampled_from([None, "</w>"]),
            "ignore_merges": st.booleans(),
            "byte_fallback": st.booleans(),
        }
    ),
    parts=st.fixed_dictionaries(
        {
            "pre_tokenizer": st.sampled_from([None, {"type": "Whitespace"}, BYTE_LEVEL]),
            "normalizer": st.sampled_from([None, {"type": "NFD"}, {"type": "Lowercase"}, STRIP]),
        }
    ),
)
def test_each_character_is_a_token_or_dropped(tmp_path_factory, text, names, settings, parts):
    """Without merges the library gives one token for each character that it keeps."""
    names = sorted(names)
    parsed = definition(bpe(names, **settings), added_tokens=[{**ADDED, "id": len(names)}], **parts)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_text(json.dumps(parsed))
    tokenizer = load_tokenizer(str(path), need_eod=False)
    assert tokenizer.drops_characters
    checked, dropped = DroppedCharacters(tokenizer).count(text)
    ids = reference_encoder(tokenizer, special_tokens=False).encode([text]).ids.tolist()
    kept = sum(_characters(names[index], settings) for index in ids if index < len(names))
    assert dropped == round(checked - kept)


def _characters(name, settings):
    if name.startswith("<0x"):
        return 1 / 2  # é is two bytes
    return 3 if name == "abc" and settings["ignore_merges"] else 1


@pytest.mark.parametrize(
    ("parsed", "expected"),
    [
        (definition(bpe("ab")), (None, True)),
        (definition(bpe("ab", unk_token="b")), (1, False)),
        (definition(bpe("ab", unk_token="c")), (None, False)),
        (definition({"type": "Unigram", "vocab": [["<unk>", 0.0], ["a", -1.0]], "unk_id": 0}), (0, False)),
        (definition({"type": "Unigram", "vocab": [["a", -1.0]], "unk_id": None}), (None, False)),
        (definition({"type": "WordPiece", "vocab": {"a": 0, "[UNK]": 1}}), (1, False)),
        (WORD_LEVEL, (0, False)),
        (definition(bpe("ab", unk_id=0)), (None, True)),
        ({**definition(bpe(byte_alphabet())), "pre_tokenizer": BYTE_LEVEL}, (None, False)),
        (
            {**definition(bpe(byte_alphabet(), end_of_word_suffix="</w>")), "pre_tokenizer": BYTE_LEVEL},
            (None, True),
        ),
        (
            {**WORD_LEVEL, "model": word_level([*byte_alphabet(), "[UNK]"]), "pre_tokenizer": BYTE_LEVEL},
            (256, False),
        ),
    ],
)
def test_what_a_definition_does_with_unknown_text(tmp_path, parsed, expected):
    (tmp_path / "tokenizer.json").write_text(json.dumps(parsed))
    tokenizer = load_tokenizer(str(tmp_path / "tokenizer.json"), need_eod=False)
    assert (tokenizer.unknown_id, tokenizer.drops_characters) == expected
