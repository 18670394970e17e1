"""Data of two tokenizers is refused, or allowed once, recorded, and repeated by everything that reads it."""

from __future__ import annotations

import json
import shutil
import warnings
from importlib.util import find_spec

import pytest

from support.mixture_data import run
from support.transformers_stand_in import small_directory
from support.two_tokenizers import tokenize, write_two_tokenizers
from tokshard.errors import TokenizerMismatchError
from tokshard.loader import BatchOptions, RankLoader
from tokshard.text.tokenizer.definition import tokenizer_identity

SIZES = ("--seq-length", 8, "--split", "1,0,0", "--num-samples", 64)
JOB = ("torchrun", "--nproc-per-node", 2, "pretrain_gpt.py", "--seq-length", 8, "--split", "1,0,0")
JOB += ("--micro-batch-size", 1, "--global-batch-size", 2, "--train-samples", 64, "--eval-interval", 5)
JOB += ("--eval-iters", 0, "--data-cache-path", "mix/cache", "--tokenizer-type", "HuggingFaceTokenizer")
BLEND = ("0.5", "data/web", "0.5", "data/code")
ALLOW = "--allow-tokenizer-mismatch"
REPEATED = "allowed by --allow-tokenizer-mismatch"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return write_two_tokenizers(tmp_path_factory.mktemp("two"))


@pytest.fixture
def here(made, tmp_path, monkeypatch):
    """A directory with the data and the tokenizers, in which each test writes its own plans."""
    for name in ("data", "a.json", "b.json", "c.json", "corpus.jsonl"):
        (tmp_path / name).symlink_to(made / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def plan(*sources, output="plan", options=()):
    return run("shard-plan", *sources, "--data-parallel", 2, "-o", output, *options)


def test_documents_of_two_tokenizers_are_refused_with_both_names(here):
    done = plan("data/web", "data/code", options=["--documents"])
    assert done.returncode == 6
    assert "data/web (huggingface " in done.stderr
    assert "data/code (huggingface " in done.stderr
    assert "were encoded with different tokenizers" in done.stderr
    assert ALLOW in done.stderr
    assert not (here / "plan/plan.json").exists()


def test_a_plan_of_one_tokenizer_records_it(here):
    assert plan("data/web", options=["--documents"]).stderr == ""
    recorded = json.loads((here / "plan/plan.json").read_text())
    identity = tokenizer_identity("a.json")
    assert recorded["tokenizer"]["identity"]["definition_sha256"] == identity.definition_sha256
    assert "tokenizer_mismatches" not in recorded
    loader = RankLoader.open("plan", 0)
    assert (loader.tokenizer.vocab_size, loader.tokenizer.eod_id) == (identity.vocab_size, identity.eod_id)
    shown = run("inspect", "plan")
    assert f"{identity.vocab_size:,} tokens" in shown.stdout


def test_an_allowed_mismatch_is_recorded_and_repeated(here):
    done = plan("data/web", "data/code", options=["--documents", ALLOW])
    assert (done.returncode, REPEATED in done.stderr) == (0, True)
    recorded = json.loads((here / "plan/plan.json").read_text())
    assert [found["kind"] for found in recorded["tokenizer_mismatches"]] == ["tokenizer"]
    assert "tokenizer" not in recorded
    assert REPEATED in run("inspect", "plan").stdout
    assert any(REPEATED in warning for warning in run("inspect", "plan", "--json").json["warnings"])
    with pytest.warns(UserWarning, match=REPEATED):
        assert RankLoader.open("plan", 0).tokenizer is None
    words = ("replan", "plan", "--consumed-samples", 40, "--data-parallel", 1, "-o", "plan2")
    continued = run(*words)
    assert (continued.returncode, REPEATED in continued.stderr) == (0, True)
    again = json.loads((here / "plan2/plan.json").read_text())
    assert again["tokenizer_mismatches"] == recorded["tokenizer_mismatches"]
    compared = run("diff", "plan", "plan2")
    assert (compared.returncode, REPEATED in compared.stderr) == (0, True)


def test_the_loader_compares_the_tokenizer_of_the_job(here):
    assert plan("data/web", options=["--documents"]).returncode == 0
    identity = tokenizer_identity("a.json")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for tokenizer in ("a.json", identity):
            RankLoader.open("plan", 0, tokenizer=tokenizer, vocab_size=identity.max_token_id + 1)
            RankLoader.open("plan", 0, options=BatchOptions(eod_id=identity.eod_id))
    with pytest.warns(UserWarning, match=f"eod_id is 1, but .* ends documents with {identity.eod_id}"):
        RankLoader.open("plan", 0, options=BatchOptions(eod_id=1))
    with pytest.raises(TokenizerMismatchError, match="is not the tokenizer of the data") as refused:
        RankLoader.open("plan", 0, tokenizer="b.json")
    assert refused.value.exit_code == 6
    with pytest.raises(TokenizerMismatchError, match=rf"must be larger than {identity.max_token_id}"):
        RankLoader.open("plan", 0, vocab_size=identity.max_token_id)


def test_the_loader_of_mixed_data_accepts_one_of_its_tokenizers(here):
    assert plan("data/web", "data/code", options=["--documents", ALLOW]).returncode == 0
    with pytest.warns(UserWarning, match=REPEATED):
        RankLoader.open("plan", 0, tokenizer="b.json")
    with pytest.raises(TokenizerMismatchError):
        RankLoader.open("plan", 0, tokenizer="c.json")


def test_data_without_a_manifest_is_unknown_and_never_equal(here, tmp_path):
    for suffix in (".bin", ".idx"):
        (tmp_path / f"foreign{suffix}").write_bytes((here / f"data/web{suffix}").read_bytes())
    done = plan("data/web", "foreign", options=["--documents"])
    assert done.returncode == 0
    assert "foreign is unknown and was not compared" in done.stderr
    with pytest.warns(UserWarning, match="is unknown and was not compared"):
        loader = RankLoader.open("plan", 0, tokenizer="a.json")
    assert loader.tokenizer is None


def test_documents_that_end_differently_are_a_warning(here, made):
    if not (made / "data/open.idx").exists():
        tokenize(made, "open", "a", "--no-append-eod")
    done = plan("data/web", "data/open", options=["--documents"])
    assert done.returncode == 0
    assert "documents end without EOD" in done.stderr
    assert "documents end without EOD" in run("inspect", "plan").stdout


def test_a_plan_of_an_earlier_version_opens(here):
    assert plan("data/web", options=["--documents"]).returncode == 0
    path = here / "plan/plan.json"
    value = json.loads(path.read_text())
    del value["tokenizer"]
    path.write_text(json.dumps(value))
    with pytest.warns(UserWarning, match="is unknown and was not compared"):
        loader = RankLoader.open("plan", 0, vocab_size=10)
    assert loader.tokenizer is None


def blend(tokenizer, *options, weights=BLEND):
    names = ("--megatron", "0.19", "--tokenizer-model", tokenizer, "--seed", 1234)
    return run("blend", *weights, *SIZES, *names, "-o", "mix", *options)


def doctor(tokenizer, *options, data=BLEND):
    done = run("doctor", "--json", *JOB, "--tokenizer-model", tokenizer, "--data-path", *data, *options)
    (job,) = done.json["jobs"]
    found = job["findings"] + [{**check, "code": check["check"]} for check in job["skipped"]]
    return done.returncode, {finding["code"]: finding for finding in found if finding["code"] != "epochs"}


def test_a_blend_with_consent_is_repeated_by_everything_that_reads_it(here):
    assert blend("c.json", ALLOW).returncode == 0
    done = plan("mix")  # the blend has the consent
    assert (done.returncode, REPEATED in done.stderr) == (0, True)
    recorded = json.loads((here / "plan/plan.json").read_text())["tokenizer_mismatches"]
    assert len(recorded) == 3  # the two datasets, and each of them with the job
    code, found = doctor("c.json")
    assert (code, found["tokenizer-allowed"]["severity"]) == (1, "warning")
    assert REPEATED in found["tokenizer-allowed"]["message"]
    assert "tokenizer-mismatch" not in found
    with pytest.warns(UserWarning, match=REPEATED):
        RankLoader.open("plan", 0, tokenizer="c.json")
    words = ("replan", "plan", "--consumed-samples", 8, "--blend", "mix", "-o", "plan2")
    assert run(*words).returncode == 0
    compared = run("diff", "mix", "mix")
    assert (compared.returncode, REPEATED in compared.stderr) == (0, True)


def test_a_blend_of_an_earlier_version_gives_no_consent(here):
    assert blend("c.json", ALLOW).returncode == 0
    path = here / "mix/blend.json"
    value = json.loads(path.read_text())
    del value["tokenizer_mismatches"]
    path.write_text(json.dumps(value))
    for sidecar in (here / "mix/cache").glob("*-tokshard.json"):
        value = json.loads(sidecar.read_text())
        value.pop("tokenizer_mismatches", None)
        sidecar.write_text(json.dumps(value))
    assert plan("mix").returncode == 6
    assert plan("mix", options=[ALLOW]).returncode == 0


def test_indexes_that_are_reused_record_the_consent(here):
    assert blend("c.json", ALLOW).returncode == 0
    for sidecar in (here / "mix/cache").glob("*-tokshard.json"):
        value = json.loads(sidecar.read_text())
        value.pop("tokenizer_mismatches")
        sidecar.write_text(json.dumps(value))
    assert "tokenizer-mismatch" in doctor("c.json")[1]
    arrays = sorted((here / "mix/cache").glob("*.npy"))
    before = [array.stat().st_mtime_ns for array in arrays]
    assert blend("c.json", ALLOW, "--force").returncode == 0
    assert [array.stat().st_mtime_ns for array in arrays] == before
    assert "tokenizer-mismatch" not in doctor("c.json")[1]
    assert "tokenizer-allowed" in doctor("c.json")[1]


def test_a_new_blend_with_another_tokenizer_than_the_plan_is_refused(here):
    web, code = ("1", "data/web"), ("1", "data/code")
    assert blend("a.json", weights=web).returncode == 0
    assert plan("mix").stderr == ""
    (here / "mix").rename(here / "first")
    assert blend("b.json", weights=code).returncode == 0
    (here / "mix").rename(here / "other")
    (here / "first").rename(here / "mix")
    words = ("replan", "plan", "--consumed-samples", 8, "--blend", "other", "-o", "plan2")
    done = run(*words)
    assert (done.returncode, "the data of plan " in done.stderr) == (6, True)
    assert not (here / "plan2/plan.json").exists()
    done = run(*words, ALLOW)
    assert (done.returncode, REPEATED in done.stderr) == (0, True)
    assert json.loads((here / "plan2/plan.json").read_text())["tokenizer_mismatches"]


def test_doctor_finds_data_that_does_not_fit(here):
    code, found = doctor("c.json")
    assert (code, found["tokenizer-mismatch"]["severity"]) == (1, "error")
    code, found = doctor("a.json", data=("data/web",))
    assert "tokenizer-mismatch" not in found
    code, found = doctor("b.json", data=("data/web",))
    assert "b.json (huggingface " in found["tokenizer-mismatch"]["message"]
    assert "is not the tokenizer of data/web" in found["tokenizer-mismatch"]["message"]


def test_doctor_says_what_it_could_not_compare(here, tmp_path):
    _, found = doctor("/models/llama", data=("data/web",))
    assert found["tokenizer"]["reason"] == "/models/llama cannot be read here"
    _, found = doctor("${MODEL[@]}", data=("data/web",))
    assert found["tokenizer"]["hint"] == "pass --set MODEL=VALUE"
    (here / "model").mkdir()
    for name, content in small_directory(do_lower_case=True).items():
        (here / "model" / name).write_text(json.dumps(content))
    _, found = doctor("model", data=("data/web",))
    if find_spec("transformers") is None:
        assert found["tokenizer"]["hint"].startswith("pip install transformers; ")
    for suffix in (".bin", ".idx"):
        (tmp_path / f"foreign{suffix}").write_bytes((here / f"data/web{suffix}").read_bytes())
    _, found = doctor("a.json", data=("foreign",))
    assert found["tokenizer-unchecked"]["severity"] == "warning"
    assert "foreign is unknown" in found["tokenizer-unchecked"]["message"]


def test_doctor_compares_the_vocabulary_of_a_null_tokenizer_and_of_the_model(here):
    largest = tokenizer_identity("a.json").max_token_id
    for size, fits in ((largest, True), (100, False)):
        job = [*JOB[:-2], "--tokenizer-type", "NullTokenizer", "--vocab-size", size]
        codes = [
            found["code"]
            for found in run("doctor", "--json", *job, "--data-path", "data/web").json["jobs"][0]["findings"]
        ]
        assert ("token-range" not in codes) == fits
    _, found = doctor("a.json", "--padded-vocab-size", largest, data=("data/web",))
    assert found["vocabulary-size"]["severity"] == "error"
    _, found = doctor("a.json", "--padded-vocab-size", 10)
    assert found["vocabulary-size"]["message"].startswith("the tokenizers of data/web, data/code have ids ")


def test_data_that_was_tokenized_again_with_another_tokenizer_is_named(here, made):
    tokenize(made, "again", "a")
    assert blend("a.json", weights=("1", "data/again")).returncode == 0
    tokenize(made, "again", "b", "--force")
    done = plan("mix")
    names = [f"huggingface {tokenizer_identity(f'{letter}.json').digest[:12]}" for letter in "ab"]
    assert done.returncode == 6
    assert f"its tokenizer was {names[0]} and is now {names[1]}" in done.stderr


@pytest.fixture
def three(here, made):
    """The same with ``data/math`` of ``c.json``, and the blend ``math`` of it."""
    if not (made / "data/math.idx").exists():
        tokenize(made, "math", "c")
    assert run("blend", "1", "data/math", *SIZES, "-o", "math").returncode == 0
    return here


def test_a_third_tokenizer_is_refused_beside_merged_data_of_two(three):
    assert run("merge", "data/web", "data/code", "-o", "both", ALLOW).returncode == 0
    again = run("merge", "both", "data/web", "-o", "more")
    assert (again.returncode, REPEATED in again.stderr) == (0, True)
    for command in (
        ("merge", "more", "data/math", "-o", "out"),
        ("merge", "more", "data/math", "-o", "out", "--dry-run"),
        ("blend", "0.5", "more", "0.5", "data/math", *SIZES, "-o", "out"),
        ("blend", "1", "more", *SIZES, "-o", "out", "--tokenizer", "c.json"),
        ("build-indices", "more", "data/math", *SIZES, "--cache-dir", "out"),
        ("shard-plan", "more", "data/math", "--documents", "--data-parallel", 2, "-o", "out"),
    ):
        done = run(*command)
        assert done.returncode == 6, command
        assert "more (huggingface " in done.stderr
    assert not list(three.glob("out*"))


def test_a_plan_of_two_tokenizers_does_not_continue_with_a_third(three):
    assert run("blend", *BLEND, *SIZES, "-o", "mix", ALLOW).returncode == 0
    assert plan("mix").returncode == 0
    words = ("replan", "plan", "--consumed-samples", 8, "-o", "plan2")
    done = run(*words, "--blend", "math")
    assert (done.returncode, "the data of plan " in done.stderr) == (6, True)
    done = run(*words, "--blend", "0.2 data/web 0.8 data/code")
    assert (done.returncode, REPEATED in done.stderr) == (0, True)


def test_a_plan_of_unknown_data_continues_with_a_comparison_of_the_known(three):
    for suffix in (".bin", ".idx"):
        (three / f"foreign{suffix}").write_bytes((three / f"data/web{suffix}").read_bytes())
    assert run("blend", "0.5", "data/web", "0.5", "foreign", *SIZES, "-o", "mix").returncode == 0
    assert plan("mix").returncode == 0
    words = ("replan", "plan", "--consumed-samples", 8, "--blend", "math", "-o", "plan2")
    done = run(*words)
    assert (done.returncode, "the data of plan " in done.stderr) == (6, True)


def test_a_plan_of_indexes_compares_what_they_record_when_the_manifest_is_gone(here):
    for name in ("web", "code"):
        for suffix in (".bin", ".idx"):
            (here / f"{name}{suffix}").write_bytes((here / f"data/{name}{suffix}").read_bytes())
        shutil.copytree(here / f"data/{name}.tokshard", here / f"{name}.tokshard")
        assert run("build-indices", name, *SIZES, "--cache-dir", f"cache-{name}").returncode == 0
    shutil.rmtree(here / "code.tokshard")
    done = plan("cache-web", "cache-code")
    assert (done.returncode, "were encoded with different tokenizers" in done.stderr) == (6, True)


def test_consent_for_a_job_is_none_for_its_data_beside_other_data(here):
    assert run("build-indices", "data/web", *SIZES, "--cache-dir", "cache-web").returncode == 0
    names = ("--tokenizer", "a.json", "--cache-dir", "cache-code", ALLOW)
    assert run("build-indices", "data/code", *SIZES, *names).returncode == 0
    done = plan("cache-web", "cache-code")
    assert (done.returncode, "data/code (huggingface " in done.stderr) == (6, True)


def test_a_merge_keeps_the_eod_token_of_those_inputs_that_have_one(here):
    words = ("tokenize", "corpus.jsonl", "--tokenizer", "a.json", "--workers", 1)
    assert run(*words, "-o", "open", "--no-append-eod").returncode == 0
    assert run(*words, "-o", "other", "--eod", 5).returncode == 0
    assert run("merge", "open", "other", "-o", "mixed").returncode == 0
    done = run("merge", "mixed", "data/web", "-o", "out")
    assert (done.returncode, "different EOD tokens" in done.stderr) == (6, True)
    assert json.loads((here / "mixed.tokshard/manifest.json").read_text())["options"]["eod_id"] == 5
    blended = run("blend", "0.3", "mixed", "0.7", "other", *SIZES, "-o", "mix")
    assert (blended.returncode, "documents end without EOD" in blended.stderr) == (0, True)


def copy_without_manifest(here, name, copy):
    for suffix in (".bin", ".idx"):
        (here / f"{copy}{suffix}").write_bytes((here / f"data/{name}{suffix}").read_bytes())


def test_data_whose_tokenizer_becomes_known_is_compared_with_the_job_of_the_blend(here):
    copy_without_manifest(here, "web", "late")
    assert blend("c.json", weights=("1", "late")).returncode == 0
    assert run("verify", "mix").returncode == 0
    assert run("verify", "late", "--adopt", "--tokenizer", "a.json").returncode == 0
    done = plan("mix")
    assert (done.returncode, "blend.json (huggingface " in done.stderr) == (6, True)
    assert "is not the tokenizer of " in done.stderr
    found = run("verify", "--json", "mix").json
    codes = [finding["code"] for product in found["products"] for finding in product["findings"]]
    assert codes == ["tokenizer-other"]
    assert plan("mix", options=[ALLOW]).returncode == 0
    assert blend("a.json", "--force", weights=("1", "late")).returncode == 0
    assert plan("mix", "--force").returncode == 0


def test_adopted_data_without_eod_is_a_warning_beside_data_with_it(here):
    words = ("tokenize", "corpus.jsonl", "--tokenizer", "a.json", "--workers", 1, "--no-append-eod")
    assert run(*words, "-o", "open").returncode == 0
    shutil.rmtree(here / "open.tokshard")
    copy_without_manifest(here, "web", "closed")
    for name, warned in (("open", True), ("closed", False)):
        assert run("verify", name, "--adopt", "--tokenizer", "a.json").returncode == 0
        done = run("blend", "0.5", "data/web", "0.5", name, *SIZES, "-o", f"mix-{name}")
        assert (done.returncode, "documents end without EOD" in done.stderr) == (0, warned)


def test_trace_repeats_the_consent(here):
    assert run("blend", *BLEND, *SIZES, "-o", "mix", ALLOW).returncode == 0
    assert plan("mix").returncode == 0
    assert run("merge", "data/web", "data/code", "-o", "both", ALLOW).returncode == 0
    for words in (
        ("plan", "--step", 1),
        ("mix", "--sample", 1),
        ("both", "--document", 1),
        ("plan", "data/web#1"),
    ):
        assert REPEATED in run("trace", *words).stdout, words
        assert REPEATED in run("trace", *words, "--json").json["warnings"][-1]
    assert "warnings" not in run("trace", "data/web", "--document", 1, "--json").json
