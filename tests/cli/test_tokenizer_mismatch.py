"""Tokenizers that do not fit together: refused by every command that uses datasets together, or recorded."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.index_caches import write_dataset
from support.mixture_data import run
from support.plain_datasets import Plain
from support.tokenizer_definitions import BYTE_LEVEL, added, characters, probe, sequence, split
from support.transformers_stand_in import python_with_transformers
from tokshard import TokenizeOptions, tokenize
from tokshard.text.tokenizer.tiktoken_files import CL100K_PATTERN

LLAMA = sequence(split(CL100K_PATTERN), BYTE_LEVEL)
EOD = "<|endoftext|>"
ALLOW = "--allow-tokenizer-mismatch"
SHAPE = ("--seq-length", 16, "--num-samples", "60,0", "--split", "1,0,0")
BLEND = ("blend", 0.6, "web", 0.4, "code", *SHAPE, "-o", "mix")


def save(name: str, definition: dict, *tokens: str) -> None:
    first = max(definition["model"]["vocab"].values()) + 1
    definition["added_tokens"] += [added(first + number, token) for number, token in enumerate(tokens)]
    Path(name).mkdir()
    Path(name, "tokenizer.json").write_text(json.dumps(definition))


def encode(output: str, tokenizer: str | None, **options) -> None:
    tokenize(
        TokenizeOptions(
            inputs=["text.jsonl"],
            output=output,
            tokenizer=tokenizer,
            workers=1,
            encoder="reference",
            **options,
        )
    )


@pytest.fixture
def workshop(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps({"text": f"document {number} has words, and 123{number}\n"}) for number in range(60)]
    Path("text.jsonl").write_text("\n".join(lines))
    save("gpt2", probe(), EOD, "<|other|>")
    save("llama", probe(LLAMA), "<|begin_of_text|>", EOD)
    save("third", characters(), EOD)
    encode("web", "gpt2")
    return tmp_path


def job(path: str) -> tuple[str, ...]:
    return ("--megatron", "0.19", "--tokenizer-model", path)


def mismatches(path: str) -> list[tuple]:
    recorded = json.loads(Path(path).read_text()).get("tokenizer_mismatches", [])
    return [(found["kind"], found["first"]["names"], found["second"]["names"]) for found in recorded]


def test_a_blend_of_two_tokenizers_for_a_job_of_a_third_is_refused_or_recorded(workshop):
    encode("code", "llama")
    for command in (BLEND, (*BLEND, "--dry-run")):
        refused = run(*command, *job("third"))
        assert refused.returncode == 6
        assert "error: the job's tokenizer third (huggingface " in refused.stderr
        assert ") is not the tokenizer of web (huggingface " in refused.stderr
        assert "(2 more mismatches)" in refused.stderr
        assert ALLOW in refused.stderr
    assert not Path("mix").exists()

    made = run(*BLEND, *job("third"), ALLOW)
    assert made.returncode == 0
    assert made.stderr.count("warning: allowed by --allow-tokenizer-mismatch: ") == 3
    assert "were encoded with different tokenizers: definitions " in made.stderr
    expected = [
        ("tokenizer", ["third"], ["web"]),
        ("tokenizer", ["third"], ["code"]),
        ("tokenizer", ["web"], ["code"]),
    ]
    assert mismatches("mix/blend.json") == expected
    document = json.loads(Path("mix/blend.json").read_text())
    assert [tokenizer["append_eod"] for tokenizer in document["tokenizers"]] == [True, True]
    assert document["job_tokenizer"]["vocab_size"] == len(characters()["model"]["vocab"]) + 1
    # Every later report repeats it.
    assert run(*BLEND, *job("third")).returncode == 6
    again = run(*BLEND, *job("third"), ALLOW, "--json").json
    assert set(again["actions"].values()) == {"found"}
    assert sum("different tokenizers" in warning for warning in again["warnings"]) == 1
    for product in ("mix", "mix/cache"):
        shown = run("inspect", product).stdout
        assert shown.count("allowed by --allow-tokenizer-mismatch: ") == 3
        assert "web (huggingface " in shown
    assert len(run("inspect", "mix", "--json").json["tokenizer_mismatches"]) == 3


def test_after_the_refusal_the_right_data_just_works(workshop):
    encode("code", "llama")
    assert run(*BLEND, *job("gpt2")).returncode == 6
    encode("code", "gpt2", force=True)
    made = run(*BLEND, *job("gpt2"))
    assert (made.returncode, made.stderr) == (0, "")
    assert mismatches("mix/blend.json") == []
    assert len(json.loads(Path("mix/blend.json").read_text())["tokenizers"]) == 1


def test_a_tokenizer_that_was_saved_again_is_the_same(workshop):
    definition = json.loads(Path("gpt2/tokenizer.json").read_text())
    Path("gpt2/tokenizer.json").write_text(json.dumps(definition, indent=2))
    encode("code", "gpt2")
    assert run(*BLEND, *job("gpt2")).stderr == ""


def test_the_tokenizer_of_the_job_may_be_elsewhere(workshop):
    encode("code", "gpt2")
    unread = run(*BLEND, *job("/models/none"))
    assert unread.returncode == 0
    assert unread.stderr == (
        "warning: the job's tokenizer /models/none cannot be read here and was not compared "
        "(pass --tokenizer COPY)\n"
    )
    command = ("blend", 0.6, "here/web", 0.4, "here/code", *SHAPE, "--dry-run")
    Path("here").symlink_to(".")
    moved = ("--path-as", "here=/data/v1", *job("/data/v1/third"))
    assert run(*command, *moved).returncode == 6
    assert run(*command, *job("/models/none"), "--tokenizer", "third").returncode == 6
    assert run(*command, *job("/models/none"), "--tokenizer", "gpt2").stderr == ""
    wrong = run(*command, *job("/models/none"), "--tokenizer", "nowhere")
    assert (wrong.returncode, "nowhere" in wrong.stderr) == (3, True)


@pytest.mark.skipif(find_spec("transformers") is not None, reason="transformers is installed")
def test_a_directory_that_requires_transformers_is_not_compared_without_it(workshop, tmp_path):
    Path("gpt2/tokenizer_config.json").write_text('{"do_lower_case": true}')
    python = python_with_transformers(tmp_path / "one")
    for output in ("web", "code"):
        encode(output, "gpt2", transformers=python, eod=EOD, force=True)
    unread = run(*BLEND, *job("gpt2"))
    assert unread.returncode == 0
    assert "the job's tokenizer gpt2 cannot be read here and was not compared" in unread.stderr
    assert "(do_lower_case True) requires transformers, which is not installed" in unread.stderr
    command = "pretrain_gpt.py --tokenizer-type HuggingFaceTokenizer --tokenizer-model gpt2 --data-path web"
    checked = run(
        "doctor",
        "--",
        *command.split(),
        "--seq-length",
        16,
        "--train-samples",
        60,
        "--micro-batch-size",
        1,
        "--global-batch-size",
        1,
    )
    assert "(do_lower_case True) requires transformers, which is not installed" in checked.stdout
    change = "tokenizer.backend_tokenizer.add_special_tokens(['<|more|>'])"
    encode(
        "code", "gpt2", transformers=python_with_transformers(tmp_path / "two", change), eod=EOD, force=True
    )
    refused = run(*BLEND, *job("gpt2"))
    assert (refused.returncode, "different tokenizers: definitions" in refused.stderr) == (6, True)


def test_build_indices_compares_its_datasets_and_the_job(workshop):
    encode("code", "llama")
    command = ("build-indices", "web", "code", *SHAPE, "--cache-dir", "cache")
    refused = run(*command)
    assert (refused.returncode, "were encoded with different tokenizers" in refused.stderr) == (6, True)
    assert not Path("cache").exists()
    assert run("build-indices", "web", *SHAPE, "--cache-dir", "cache", *job("third")).returncode == 6
    made = run(*command, ALLOW, "--json").json
    assert [found["kind"] for found in made["tokenizer_mismatches"]] == ["tokenizer"]
    for sidecar in Path("cache").glob("*-tokshard.json"):
        assert mismatches(str(sidecar)) == [("tokenizer", ["web"], ["code"])]
    # The index of one of them alone needs no consent, and repeats what was allowed.
    alone = run("build-indices", "web", *SHAPE, "--cache-dir", "cache")
    assert alone.returncode == 0
    assert "reused" in alone.stdout
    assert "warning: allowed by --allow-tokenizer-mismatch: web (huggingface " in alone.stderr


def write_foreign(prefix: str, vocabulary: int, *, planted: int | None = None) -> None:
    documents = [[[(number + token) % vocabulary for token in range(40)]] for number in range(50)]
    if planted is not None:
        documents[31][0][7] = planted
    Plain("int32", documents).write(prefix)


def test_ids_of_foreign_data_beyond_the_vocabulary_are_found(workshop):
    write_foreign("code", 5000)
    fine = run(*BLEND, "--dry-run", *job("gpt2"))
    assert fine.returncode == 0
    assert fine.stderr == "warning: the tokenizer of code is unknown and was not compared\n"
    size = len(probe()["model"]["vocab"]) + 2
    write_foreign("code", 5000, planted=-1)
    for consent in ((), (ALLOW,)):  # no tokenizer has it
        refused = run(*BLEND, *consent)
        assert refused.returncode == 3
        assert (
            "error: the token ids of code must not be negative, got -1 (token 7 of sequence 31)"
            in refused.stderr
        )
    for planted in (size, 2**31 - 1):
        write_foreign("code", 5000, planted=planted)
        for naming in ((), job("gpt2")):
            refused = run(*BLEND, *naming)
            assert refused.returncode == 6
            assert (
                f"error: code contains token id {planted} (token 7 of sequence 31), beyond the {size:,} ids "
                f"of {'the job' if naming else 'web (hugg'}"
            ) in refused.stderr
    assert run(*BLEND, ALLOW).returncode == 0
    assert mismatches("mix/blend.json") == [("vocabulary", ["code"], ["web"])]
    write_foreign("code", 5000, planted=size - 1)
    assert run(*BLEND, "--dry-run").returncode == 0


def test_a_null_tokenizer_has_a_vocabulary(workshop):
    write_dataset("data/plain", [40] * 20, first_token=0)
    command = ("build-indices", "data/plain", *SHAPE, "--cache-dir", "cache", "--megatron", "0.19")
    null = ("--tokenizer-type", "NullTokenizer", "--vocab-size")
    assert run(*command, *null, 799).returncode == 0
    refused = run(*command, *null, 798)
    assert refused.returncode == 6
    assert (
        "data/plain contains token id 799 (token 39 of sequence 19), beyond the 799 ids of" in refused.stderr
    )


def test_another_eod_is_refused(workshop):
    encode("code", "gpt2", eod="<|other|>")
    refused = run(*BLEND)
    assert refused.returncode == 6
    first = len(probe()["model"]["vocab"])
    assert f"end documents with different EOD tokens: ids {first} and {first + 1}" in refused.stderr
    assert run(*BLEND, ALLOW).returncode == 0
    assert mismatches("mix/blend.json") == [("eod", ["web"], ["code"])]


def test_documents_without_eod_among_others_are_a_warning_with_their_share(workshop):
    encode("code", "gpt2", append_eod=False)
    made = run(*BLEND)
    assert made.returncode == 0
    assert (
        "warning: 40.00% of the samples come from datasets whose documents end without EOD, unlike those of "
        "the others: code\n"
    ) in made.stderr
    merged = run("merge", "web", "code", "-o", "both")
    assert "warning: there are datasets whose documents end without EOD" in merged.stderr


def test_a_blend_of_merged_data_repeats_what_was_allowed_then(workshop):
    encode("code", "llama")
    assert run("merge", "web", "code", "-o", "both").returncode == 6
    assert run("merge", "web", "code", "-o", "both", ALLOW).returncode == 0
    assert "allowed by --allow-tokenizer-mismatch: web (hugg" in run("inspect", "both").stdout
    made = run("blend", "both", *SHAPE, "-o", "mix")
    assert made.returncode == 0
    assert "warning: allowed by --allow-tokenizer-mismatch: web (huggingface " in made.stderr
    assert mismatches("mix/blend.json") == [("tokenizer", ["web"], ["code"])]
