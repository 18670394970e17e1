"""The options of preprocess_data.py in each version of Megatron."""

import json

import pytest

from support.command_line import failure, installed, tokshard
from tokshard.cli.megatron_options import translate
from tokshard.core.megatron_rules import MEGATRON_VERSIONS
from tokshard.errors import UsageError

HUGGING_FACE = ("--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", "m")
NULL = ("--tokenizer-type", "NullTokenizer", "--vocab-size", "50257")
SENTENCEPIECE = ("SentencePieceTokenizer", "GPTSentencePieceTokenizer", "Llama2Tokenizer")
INCLUDE, EXCLUDE = "--tokenizer-hf-include-special-tokens", "--tokenizer-hf-no-include-special-tokens"
LEGACY = "--legacy-tokenizer"
EARLY, LATE = MEGATRON_VERSIONS[:2], MEGATRON_VERSIONS[2:]


def translated(version, *words):
    """Return the words that take the place of Megatron's."""
    given = ["tokenize", "--preset", "megatron", "--megatron", version]
    result = translate([*given, *words])
    assert result[:1] == ["tokenize"]
    assert result[-4:] == given[1:]
    # A job file has these words: the defaults come before them, and the last of two options counts.
    without_eod, default, *rest = translate(result)[1:]
    assert without_eod == result[1] == "--no-append-eod"
    assert default.endswith("-special-tokens")
    assert rest == result[1:]
    return result[2:-4]


SPECIAL_TOKENS = [
    *((version, (), version in LATE) for version in MEGATRON_VERSIONS),
    *((version, (INCLUDE,), True) for version in MEGATRON_VERSIONS[1:]),
    *((version, (EXCLUDE,), False) for version in MEGATRON_VERSIONS),
    *(
        (version, (INCLUDE, EXCLUDE), False) for version in LATE
    ),  # the later option says no, the first nothing
    *((version, (LEGACY,), True) for version in EARLY),
]


@pytest.mark.parametrize(("version", "options", "included"), SPECIAL_TOKENS)
def test_special_tokens_of_a_hugging_face_tokenizer(version, options, included):
    expected = ["--tokenizer", "m", "--special-tokens" if included else "--no-special-tokens"]
    assert translated(version, *HUGGING_FACE, *options) == expected


def test_the_newest_version_is_the_default_and_patch_releases_are_known():
    newest = translate(["tokenize", "--preset=megatron", *HUGGING_FACE])
    assert newest[2:-1] == translated(MEGATRON_VERSIONS[-1], *HUGGING_FACE)
    for name in ("0.16.1", "v0.16.0", "core_v0.16.1"):
        assert translated(name, *HUGGING_FACE) == translated("0.16", *HUGGING_FACE)
    with pytest.raises(UsageError, match=r"the Megatron version must be one of 0\.15, .*, got '0\.14'"):
        translated("0.14")


@pytest.mark.parametrize("version", MEGATRON_VERSIONS)
@pytest.mark.parametrize("name", SENTENCEPIECE)
def test_sentencepiece_types_are_the_model_alone(version, name):
    words = translated(version, "--tokenizer-type", name, "--tokenizer-model", "x.model", "--vocab-size", "9")
    assert words == ["--tokenizer", "x.model", "--no-files-beside", "--no-special-tokens"]


@pytest.mark.parametrize("version", EARLY)
def test_the_legacy_llama_tokenizer_adds_bos(version):
    given = ("--tokenizer-type", "Llama2Tokenizer", "--tokenizer-model", "x.model", LEGACY)
    assert translated(version, *given) == ["--tokenizer", "x.model", "--no-files-beside", "--special-tokens"]


@pytest.mark.parametrize("version", MEGATRON_VERSIONS)
def test_settings_of_a_tiktokenizer(version):
    given = ("--tokenizer-type", "TikTokenizer", "--tokenizer-model", "x.json")
    assert translated(version, *given) == ["--tokenizer", "x.json", "--no-special-tokens"]
    settings = ("--tiktoken-pattern", "v1", "--tiktoken-num-special-tokens", "20", "--vocab-size", "2000")
    words = translated(version, *given, *settings)
    assert words == ["--tokenizer", "x.json", *settings, "--no-special-tokens"]


@pytest.mark.parametrize(
    ("version", "option", "used"),
    [
        ("0.15", "--tiktoken-special-tokens", True),
        ("0.16", "--tiktoken-special-tokens", False),
        ("0.16", "--tokenizer-special-tokens", True),
        ("0.19", "--tokenizer-special-tokens", True),
    ],
)
def test_names_of_special_tokens_of_a_tiktokenizer(version, option, used):
    given = ("--tokenizer-type", "TikTokenizer", "--tokenizer-model", "x.json", option, "<unk>", "<s>")
    names = ["--tiktoken-special-tokens", "<unk>", "--tiktoken-special-tokens", "<s>"] if used else []
    assert translated(version, *given) == ["--tokenizer", "x.json", *names, "--no-special-tokens"]


@pytest.mark.parametrize("version", MEGATRON_VERSIONS)
def test_the_files_of_a_gpt2_tokenizer(version):
    files = ("--vocab-file", "v.json", "--merge-file", "m.txt")
    words = translated(version, "--tokenizer-type", "GPT2BPETokenizer", *files)
    assert words == [*files, "--no-special-tokens"]


def test_without_a_type_the_file_decides():
    def default(version, *options):
        (found,) = {"--special-tokens", "--no-special-tokens"}.intersection(
            translate(["tokenize", "--preset=megatron", "--megatron", version, *options])
        )
        return found

    for options in (["--tokenizer-model", "x.json"], ["--tokenizer", "x.json"], ["--tokenizer", "llama/"]):
        assert default("0.19", *options) == "--special-tokens"
        assert default("0.16", *options) == "--no-special-tokens"
    for options in ([], ["--tokenizer-model", "x.model"], ["--tokenizer", "gpt2.tiktoken"]):
        assert default("0.19", *options) == "--no-special-tokens"
    own = ("--vocab-file", "v", "--merge-file", "m")  # tokenize has them itself
    assert translate(["tokenize", "--preset=megatron", *own])[-4:] == list(own)


@pytest.mark.parametrize("version", MEGATRON_VERSIONS)
def test_the_vocabulary_of_a_null_tokenizer(version):
    if version in MEGATRON_VERSIONS[:3]:  # an EOD token is added
        assert translated(version, *NULL) == ["--tokenizer", "null:50258", "--no-special-tokens"]
        return
    expected = ["--tokenizer", "null:50257", "--eod", "50256", "--no-special-tokens"]
    assert translated(version, *NULL) == expected
    assert translated(version, *NULL, "--null-tokenizer-pad-id", "-1") == expected
    assert "7" in translated(version, *NULL, "--null-tokenizer-eod-id", "7")


WITHOUT_EFFECT = (
    ["--trust-remote-code"],
    ["--log-interval", "10"],
    ["--keep-sequential-samples"],
    ["--keep-newlines", "--lang", "english"],
    ["--partitions", "1"],
    ["--padded-vocab-size", "50304", "--vocab-size", "50257", "--vocab-extra-ids", "100"],
    ["--no-pad-vocab-size"],
    ["--chat-template", "{{ x }}"],
    ["--tokenizer-hf-use-fast"],
    ["--tokenizer-hf-no-use-fast"],
    ["--workers-to-check", "1", "2", "--max-documents", "3"],
)


@pytest.mark.parametrize("option", WITHOUT_EFFECT)
def test_options_without_effect_on_the_output_are_ignored(option):
    assert translated("0.19", *HUGGING_FACE, *option) == translated("0.19", *HUGGING_FACE)


REFUSED = {
    "--legacy-tokenizer": ("0.19", *HUGGING_FACE, LEGACY),
    INCLUDE: ("0.15", *HUGGING_FACE, INCLUDE),
    "--null-tokenizer-eod-id": ("0.17", *NULL, "--null-tokenizer-eod-id", "1"),
    "--tiktoken-special-tokens": ("0.18", *HUGGING_FACE, "--tiktoken-special-tokens", "a"),
    "--tokenizer-special-tokens": ("0.19", *HUGGING_FACE, "--tokenizer-special-tokens", "<x>"),
    "--legacy-tokenizer with TikTokenizer": ("0.16", "--tokenizer-type", "TikTokenizer", LEGACY),
    "--legacy-tokenizer with SentencePieceTokenizer": (
        "0.16",
        "--tokenizer-type",
        "SentencePieceTokenizer",
        LEGACY,
    ),
    "--legacy-tokenizer with GPT2BPETokenizer": ("0.16", "--tokenizer-type", "GPT2BPETokenizer", LEGACY),
    "GPT2BPETokenizer requires --vocab-file and --merge-file": (
        "0.19",
        "--tokenizer-type",
        "GPT2BPETokenizer",
        "--vocab-file",
        "v.json",
    ),
    "--tokenizer-metadata": ("0.19", *HUGGING_FACE, "--tokenizer-metadata", "x.json"),
    "--use-gigatoken": ("main-20260822", *HUGGING_FACE, "--use-gigatoken"),
    "--vocab-file": ("0.19", *HUGGING_FACE, "--vocab-file", "x.json"),
    "--merge-file": ("0.19", *HUGGING_FACE, "--merge-file", "x.txt"),
    "--find-optimal-num-workers": ("0.19", *HUGGING_FACE, "--find-optimal-num-workers"),
    "--split-sentences": ("0.19", "--split-sentences"),
    "--partitions 4": ("0.19", "--partitions", "4"),
    "--no-tokenizer-sentencepiece-ignore-extra-whitespaces": (
        "0.19",
        "--tokenizer-type",
        "Llama2Tokenizer",
        "--no-tokenizer-sentencepiece-ignore-extra-whitespaces",
    ),
    "--tokenizer-type BertWordPieceLowerCase": ("0.19", "--tokenizer-type", "BertWordPieceLowerCase"),
    "--tokenizer-type BertWordPieceCase": ("0.19", "--tokenizer-type", "BertWordPieceCase"),
    "--tokenizer-type MultimodalTokenizer": ("0.19", "--tokenizer-type", "MultimodalTokenizer"),
    "--tokenizer-type NullMultimodalTokenizer": ("0.19", "--tokenizer-type", "NullMultimodalTokenizer"),
    "--tokenizer-type SFTTokenizer": ("0.19", "--tokenizer-type", "SFTTokenizer"),
    "got 'Other'": ("0.19", "--tokenizer-type", "Other"),
    "--vocab-size": ("0.19", "--tokenizer-type", "NullTokenizer"),
    "got 'x'": ("0.19", "--tokenizer-type", "NullTokenizer", "--vocab-size", "x"),
    "--trust-remote-code takes no value": ("0.19", "--trust-remote-code=1"),
}


@pytest.mark.parametrize("text", REFUSED)
def test_refused_options_are_named_with_an_alternative(text):
    with pytest.raises(UsageError) as caught:
        translated(*REFUSED[text])
    assert text in caught.value.message
    assert caught.value.hint or "must be an integer" in caught.value.message


def test_the_rules_are_shown(tmp_path):
    (tmp_path / "ids.jsonl").write_text('{"text": "1 2"}\n')
    words = ["--input", "ids.jsonl", "--output-prefix", "out", *NULL, "--workers", "1"]
    plan = tokshard(
        "tokenize", "--preset", "megatron", "--megatron", "0.17", *words, "--dry-run", cwd=tmp_path
    )
    assert "\npreset: the rules of Megatron 0.17\n" in plan.stdout
    done = tokshard("tokenize", "--preset", "megatron", *words, cwd=tmp_path)
    assert f"\npreset: the rules of Megatron {MEGATRON_VERSIONS[-1]}\n" in done.stdout


def test_a_version_needs_the_preset(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    done = tokshard("tokenize", "a.jsonl", "--megatron", "0.19", cwd=tmp_path)
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        2,
        "error: --megatron requires --preset megatron",
    )


LLAMA = {
    "type": "Sequence",
    "normalizers": [
        {"type": "Prepend", "prepend": "\u2581"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
    ],
}


def write_tokenizer(directory, normalizer, **flags):
    added = {"id": 4, "content": "<s>", "single_word": False, "special": True, **flags}
    ids = {"<unk>": 0, "a": 1, "b": 2, "\u2581": 3}
    model = {"type": "BPE", "vocab": ids, "merges": [], "unk_token": "<unk>"}
    parts = {"added_tokens": [added], "normalizer": normalizer, "model": model, "pre_tokenizer": None}
    (directory / "tokenizer.json").write_text(json.dumps({"version": "1.0", **parts}))
    (directory / "in.jsonl").write_text('{"text": "a <s> b"}\n')


def run_preset(directory, version, *words):
    preset = ("--preset", "megatron", "--megatron", version, "--input", "in.jsonl", "--output-prefix", "out")
    return installed("tokenize", *preset, *HUGGING_FACE[:-1], "tokenizer.json", *words, cwd=directory)


FLAGS = dict.fromkeys(("lstrip", "rstrip", "normalized"), False)
RENAMED_ERROR = (
    "Megatron without special tokens gives other ids for '<s>' of tokenizer.json: with lstrip, rstrip or "
    "normalized, it looks up the text that was matched, which is not in the vocabulary"
)
RENAMED_HINT = (
    "pass --tokenizer-hf-include-special-tokens (0.16), or leave out "
    "--tokenizer-hf-no-include-special-tokens (from 0.17), here and in the training job; or run tokshard "
    "tokenize with --tokenizer instead of --preset megatron: it gives the same ids if no text contains these "
    "tokens"
)
RENAMED = [
    (LLAMA, {"normalized": True}),
    ({"type": "Lowercase"}, {"lstrip": True}),
    (None, {"rstrip": True}),
]


@pytest.mark.parametrize(("normalizer", "flags"), RENAMED)
def test_added_tokens_that_megatron_does_not_find_are_refused(tmp_path, normalizer, flags):
    write_tokenizer(tmp_path, normalizer, **{**FLAGS, **flags})
    assert failure(run_preset(tmp_path, "0.16")) == (3, RENAMED_ERROR, RENAMED_HINT)
    assert not [*tmp_path.glob("out*")]
    assert run_preset(tmp_path, "0.16", INCLUDE).returncode == 0
    assert run_preset(tmp_path, "0.17").returncode == 0
    # What the hint names.
    own = installed(
        "tokenize", "in.jsonl", "-o", "own", "--tokenizer", "tokenizer.json", "--no-append-eod", cwd=tmp_path
    )
    assert own.returncode == 0, own


@pytest.mark.parametrize(
    ("normalizer", "normalized"), [(LLAMA, False), ({"type": "Lowercase"}, True), (None, True)]
)
def test_added_tokens_that_megatron_finds_are_not(tmp_path, normalizer, normalized):
    write_tokenizer(tmp_path, normalizer, **{**FLAGS, "normalized": normalized})
    assert run_preset(tmp_path, "0.16").returncode == 0


def test_a_normalizer_that_the_library_refuses_is_an_error_of_the_file(tmp_path):
    write_tokenizer(tmp_path, {"type": "Unknown"}, **FLAGS)
    code, error, hint = failure(run_preset(tmp_path, "0.16"))
    assert code == 3
    assert error.startswith("tokenizers cannot load tokenizer.json: ")
    assert hint.startswith("fetch the file again if it is damaged")
