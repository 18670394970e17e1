"""Files of earlier versions: a dataset opens as one without a manifest, other products are built again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from support.command_line import SAMPLE, failure, installed, json_of
from support.file_changes import age, edit_json
from support.mixture_data import run
from tokshard.errors import OlderVersionError, UsageError
from tokshard.loader import RankLoader

TOKENIZER = str(SAMPLE / "tokenizer.json")
TOKENIZE = f"tokenize stories.jsonl -o data/stories --tokenizer {TOKENIZER} --on-error skip"
ARRAY = f"tokenize stories.jsonl -o data/work --tokenizer {TOKENIZER} --on-error skip --unit-size 64KB"
NAMES = "--seq-length 128 --split 1,0,0 --num-samples 300 --megatron 0.19 --tokenizer-model /models/llama"
INDICES = f"build-indices data/stories {NAMES} --cache-dir cache"
BLEND = f"blend 0.6 data/stories 0.4 data/manuals {NAMES} -o mix"
PLAN = "shard-plan mix --data-parallel 2 --micro-batch-size 2 --global-batch-size 4 -o plan"
EXPORT = "export data/stories --to olmo -o olmo"
JOB = (
    "torchrun --nproc-per-node 2 pretrain_gpt.py --seq-length 128 --split 1,0,0 --train-samples 300 "
    "--micro-batch-size 1 --global-batch-size 2 --eval-iters 0 --eval-interval 9 --data-path data/stories "
    "--data-cache-path cache --tokenizer-type HuggingFaceTokenizer --tokenizer-model /models/llama"
)
WRITTEN_EARLIER = "was written by an earlier version of tokshard (tokshard."


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """Two datasets, an index, a blend, its plan and an export, as this version writes them."""
    directory = tmp_path_factory.mktemp("sound")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        for name, lines in (("stories", 200), ("manuals", 120)):
            text = (SAMPLE / f"{name}.jsonl").read_bytes().splitlines(keepends=True)
            Path(f"{name}.jsonl").write_bytes(b"".join([*text[:lines], b'{"text": 3}\n']))
        for words in (TOKENIZE, TOKENIZE.replace("stories", "manuals"), INDICES, BLEND, PLAN, EXPORT):
            done = run(*words.split(), "-q")
            assert done.returncode == 0, done.stderr
    return directory


@pytest.fixture
def place(sound, tmp_path, monkeypatch):
    shutil.copytree(sound, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tree(directory):
    """Return the contents of the files of a directory, our own JSON files excluded."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in Path(directory).rglob("*")
        if path.is_file() and path.suffix not in {".json", ".lock"}
    }


def notes(done):
    return [line for line in done.stderr.splitlines() if line.startswith("note: ")]


def manifest_note(name):
    path = f"data/{name}.tokshard/manifest.json"
    schema = json.loads(Path(path).read_bytes())["schema"]
    return (
        f"note: {path} was written by an earlier version of tokshard ({schema}): it is not read; replace it "
        f"with tokshard verify --adopt --tokenizer TOKENIZER data/{name}"
    )


@pytest.mark.parametrize(
    ("command", "code", "datasets"),
    [
        ("inspect data/stories", 0, ["stories"]),
        ("inspect data/stories --document 3 --json", 0, ["stories"]),
        ("merge data/stories data/manuals -o new", 0, ["stories", "manuals"]),
        ("merge data/stories data/manuals --shuffle 1 -o new", 0, ["stories", "manuals"]),
        ("export data/stories --to olmo -o new", 0, ["stories"]),
        ("trace data/stories --document 3", 0, ["stories"]),
        ("trace data/stories stories.jsonl:3", 1, ["stories"]),
        (INDICES.replace("cache ", "new "), 0, ["stories"]),
        (BLEND.replace("-o mix", "-o new"), 0, ["stories", "manuals"]),
        ("shard-plan data/stories --documents --data-parallel 2 -o new", 0, ["stories"]),
        (f"doctor --megatron 0.19 {JOB}", 0, ["stories"]),
        (TOKENIZE, 4, ["stories"]),
        (f"{TOKENIZE} --dry-run", 0, ["stories"]),
    ],
)
def test_a_dataset_opens_as_one_without_a_manifest_with_one_note(place, command, code, datasets):
    before = tree("data")
    age(*(f"data/{name}.tokshard/manifest.json" for name in ("stories", "manuals")))
    done = installed(*command.split())
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    assert notes(done) == [manifest_note(name) for name in sorted(datasets)]
    assert tree("data") == before


def test_a_dataset_of_an_earlier_version_has_the_same_tokens(place):
    expected = [run("inspect", "data/stories", "--document", n, "--json").json for n in (0, 3, 199)]
    run("merge", "data/stories", "data/manuals", "-o", "before")
    age("data/stories.tokshard", "data/manuals.tokshard")
    for n, document in zip((0, 3, 199), expected, strict=True):
        done = installed("inspect", "data/stories", "--document", n, "--json", "--tokenizer", TOKENIZER)
        assert json_of(done) == document
    assert installed("merge", "data/stories", "data/manuals", "-o", "after").returncode == 0
    for suffix in (".bin", ".idx"):
        assert Path(f"after{suffix}").read_bytes() == Path(f"before{suffix}").read_bytes()
    done = installed(*EXPORT.replace("-o olmo", "-o exported").split())
    assert done.returncode == 0
    assert tree("exported") == tree("olmo")
    assert notes(installed("merge", "data/stories", "data/manuals", "-o", "quiet", "--quiet")) == []


def test_tokenize_keeps_a_dataset_of_an_earlier_version_until_it_is_forced(place):
    before = tree("data")
    age("data/stories.tokshard")
    code, error, hint = failure(installed(*TOKENIZE.split()))
    assert code == 4
    assert error == "data/stories.bin exists already and was made by an earlier version of tokshard"
    assert hint == (
        "pass --force to replace it, or choose another --output, or keep it: tokshard verify --adopt "
        "--tokenizer TOKENIZER data/stories"
    )
    assert tree("data") == before
    assert json_of(installed(*TOKENIZE.split(), "--dry-run", "--json"))["state"] == "exists"
    done = installed(*TOKENIZE.split(), "--force")
    assert (done.returncode, notes(done)) == (0, [])
    assert tree("data") == before
    assert json_of(installed("verify", "data/stories", "--json"))["products"][0]["findings"] == []


def test_adoption_replaces_the_manifest_and_all_files_beside_it(place):
    age("data/stories.tokshard")
    beside = Path("data/stories.tokshard")
    assert {path.name for path in beside.iterdir()} == {
        "manifest.json",
        "provenance.bin",
        "rejected.jsonl",
        "units.jsonl",
    }
    done = installed("verify", "data/stories")
    assert (done.returncode, notes(done)) == (0, [])
    assert f"note: manifest-older: data/stories.tokshard/manifest.json {WRITTEN_EARLIER}" in done.stdout
    assert "hint: run tokshard verify --adopt --tokenizer TOKENIZER data/stories to write" in done.stdout
    done = installed("verify", "--adopt", "--tokenizer", TOKENIZER, "data/stories")
    assert (done.returncode, notes(done)) == (0, []), done.stdout
    assert (
        "note: adopted: data/stories.tokshard/manifest.json was written; removed the earlier provenance.bin "
        "and rejected.jsonl"
    ) in done.stdout
    assert {path.name for path in beside.iterdir()} == {"manifest.json", "units.jsonl"}
    report = json_of(installed("verify", "--level", "deep", "data/stories", "--json"))
    assert {finding["code"] for finding in report["products"][0]["findings"]} <= {"special-in-text"}
    manifest = json.loads((beside / "manifest.json").read_bytes())
    assert (manifest["counts"]["documents"], manifest["options"]["eod_id"]) == (200, 0)
    assert manifest["tokenizer"] is not None


def actions_of(report):
    """Return the actions in a report of indexes or of a blend."""
    return set(report["actions"].values() if "blend" in report else (e["action"] for e in report["indices"]))


@pytest.mark.parametrize("command", [INDICES, BLEND])
def test_indexes_are_built_again_with_the_reason(place, command):
    directory = "cache" if command is INDICES else "mix"
    before = tree(directory)
    identity = None if command is INDICES else json.loads(Path("mix/blend.json").read_bytes())["id"]
    age(directory)
    done = installed(*command.split(), "--json")
    assert done.returncode == 0, done.stderr
    report = json_of(done)
    assert actions_of(report) == {"rebuilt"}
    assert tree(directory) == before
    if command is INDICES:
        assert [(entry["condition"], entry["reason"]) for entry in report["indices"]] == [
            ("differs", "was built by an earlier version of tokshard")
        ]
        assert notes(done) == []
    else:
        assert report["blend"]["id"] == identity
        (note,) = notes(done)
        assert note.startswith(f"note: mix/blend.json {WRITTEN_EARLIER}blend/")
        assert note.endswith("): it is replaced")
    again = installed(*command.split(), "--json")
    assert actions_of(json_of(again)) == {"found"}
    assert notes(again) == []


def test_an_index_of_an_earlier_version_for_other_data_is_not_replaced(place):
    other = INDICES.replace("data/stories", "data/manuals")
    for suffix in (".bin", ".idx"):
        shutil.copyfile(f"data/manuals{suffix}", f"data/stories{suffix}")
    shutil.rmtree("data/stories.tokshard")
    age("cache")
    code, error, hint = failure(installed(*INDICES.split()))
    assert (code, "does not fit the current dataset" in error) == (4, True)
    assert hint.startswith("pass --rebuild to replace it")
    assert installed(*other.split()).returncode == 0


def test_a_packed_index_of_an_earlier_version_is_built_again(place):
    packed = f"{INDICES} --pack best-fit".replace("cache ", "packed ")
    assert run(*packed.split(), "-q").returncode == 0
    before = tree("packed")
    age("packed")
    assert {entry["action"] for entry in json_of(installed(*packed.split(), "--json"))["indices"]} == {
        "rebuilt"
    }
    assert tree("packed") == before
    age("packed")
    code, error, _ = failure(installed(*packed.replace(" --pack best-fit", "").split()))
    assert (code, "does not fit the current dataset" in error) == (4, True)


def test_a_plan_is_replaced_with_the_manifests_of_its_ranks(place):
    identity = json.loads(Path("plan/plan.json").read_bytes())["plan_id"]
    age("plan")
    done = installed(*PLAN.split())
    assert done.returncode == 0, done.stderr
    (note,) = notes(done)
    assert note.startswith(f"note: plan/plan.json {WRITTEN_EARLIER}plan/")
    assert json.loads(Path("plan/plan.json").read_bytes())["plan_id"] == identity
    assert installed("verify", "plan").returncode == 0
    age("plan")
    fewer = PLAN.replace("--data-parallel 2", "--data-parallel 1")
    assert installed(*fewer.split()).returncode == 0
    assert sorted(path.name for path in Path("plan").glob("*.json")) == ["plan.json", "rank-00000.json"]
    assert installed("verify", "plan").returncode == 0


AGAIN = {
    "mix": ("mix/blend.json", "build it again with the same tokshard blend command"),
    "plan": ("plan/plan.json", "build it again with the same tokshard shard-plan command"),
    "rank": ("plan/rank-00000.json", "build it again with the same tokshard shard-plan command"),
    "cache": (".json", "build it again with the same tokshard build-indices or tokshard blend command"),
    "olmo": ("olmo/.tokshard/export.json", "remove the directory and export again"),
}


@pytest.mark.parametrize(
    ("product", "command"),
    [
        ("mix", PLAN),
        ("mix", "inspect mix"),
        ("mix", "diff mix mix"),
        ("mix", "trace mix --sample 0"),
        ("mix", "export mix --samples --to olmo -o new"),
        ("plan", "inspect plan"),
        ("plan", "inspect plan/rank-00001.json"),
        ("plan", "diff plan plan"),
        ("plan", "trace plan --step 0"),
        ("plan", "export plan --samples --to olmo -o new"),
        ("plan", "replan plan --consumed-samples 8 --data-parallel 1 -o new"),
        ("plan", "replan plan --consumed-samples 8 --data-parallel 1 -o new --dry-run"),
        ("rank", "inspect plan/rank-00000.json"),
        ("cache", "shard-plan cache --data-parallel 1 -o new"),
        ("cache", "export cache --samples --to olmo -o new"),
        ("olmo", EXPORT),
        ("olmo", f"{EXPORT} --dry-run"),
    ],
)
def test_readers_name_the_file_and_the_command_that_builds_it_again(place, product, command):
    age("plan/rank-00000.json" if product == "rank" else product)
    code, error, hint = failure(installed(*command.split()))
    path, again = AGAIN[product]
    assert (code, hint) == (6, again)
    assert f"{path} {WRITTEN_EARLIER}" in error
    assert not Path("new").exists()


@pytest.mark.parametrize("product", ["mix/blend.json", "plan/plan.json", "plan", "cache", "olmo"])
def test_verify_tells_old_from_damaged(place, product):
    age(product)
    done = installed("verify", "--json", "plan" if product.startswith("plan") else product.split("/")[0])
    assert done.returncode == 1, done.stderr
    findings = [finding for found in json_of(done)["products"] for finding in found["findings"]]
    assert {finding["code"] for finding in findings} == {"older-version"}
    assert all(" again" in finding["hint"] for finding in findings)


def test_inspect_and_doctor_name_an_index_of_an_earlier_version(place):
    doctor = ("doctor", "--megatron", "0.19", *JOB.split())
    assert "earlier version" not in run(*doctor).stdout
    age("cache")
    done = installed(*doctor)
    assert (done.returncode, done.stderr) == (0, "")
    assert (
        "note: cache-unverified: the job will read 1 index, whose content is not recorded: train of "
        "data/stories was built by an earlier version of tokshard\n"
    ) in done.stdout
    done = installed("inspect", "cache")
    assert (done.returncode, done.stderr) == (0, "")
    assert "was written by an earlier version of tokshard" in done.stdout


def test_the_loader_refuses_a_plan_and_a_state_of_an_earlier_version(place):
    loader = RankLoader.open("plan", rank=0)
    state = loader.state_dict()
    name, _, version = state["schema"].rpartition("/")
    with pytest.raises(UsageError, match="the loader's state was written by an earlier version") as caught:
        loader.load_state_dict({**state, "schema": f"{name}/{int(version) - 1}"})
    assert "call seek()" in caught.value.hint
    age("plan")
    with pytest.raises(
        OlderVersionError, match=r"plan/plan\.json was written by an earlier version"
    ) as caught:
        RankLoader.open("plan", rank=0)
    assert caught.value.hint == AGAIN["plan"][1]


def test_an_export_replaces_unfinished_work_of_an_earlier_version(place):
    before = tree("olmo")
    shutil.rmtree("olmo")
    work = Path("olmo/.tokshard/work")
    work.mkdir(parents=True)
    (work / "plan.json").write_text("{}")
    assert installed(*EXPORT.split()).returncode == 0
    assert tree("olmo") == before
    assert installed("verify", "olmo").returncode == 0


@pytest.mark.parametrize("more", ["", "--force", "--dry-run", "--array-task 1/2", "--finish"])
@pytest.mark.parametrize("name", ["run.json", "plan.json"])
def test_unfinished_work_of_an_earlier_version_is_not_removed(place, name, more):
    assert run(*ARRAY.split(), "--array-task", "1/2", "-q").returncode == 0
    work = Path("data/work.tokshard/work")
    age(work / "run.json")
    (work / "run.json").rename(work / name)
    before = tree(work)
    code, error, hint = failure(installed(*ARRAY.split(), *more.split()))
    assert (code, hint) == (4, "finish it with that version, or start again with --no-resume")
    assert error == f"cannot resume the work in {work}: it is of an earlier version of tokshard"
    assert tree(work) == before


def test_unfinished_work_of_an_earlier_version_is_started_over(place):
    assert run(*ARRAY.split(), "--array-task", "1/2", "-q").returncode == 0
    age("data/work.tokshard/work/run.json")
    assert installed(*ARRAY.split(), "--no-resume").returncode == 0
    assert Path("data/work.bin").read_bytes() == Path("data/stories.bin").read_bytes()
    assert installed("verify", "data/work").returncode == 0


@pytest.mark.parametrize(
    ("path", "command"),
    [("data/stories.tokshard/manifest.json", "inspect data/stories"), ("mix/blend.json", BLEND)],
)
def test_newer_is_not_older(place, path, command):
    name, _, version = json.loads(Path(path).read_bytes())["schema"].rpartition("/")
    edit_json(path, lambda value: value.update(schema=f"{name}/{int(version) + 1}"))
    done = installed(*command.split())
    if command == BLEND:
        assert failure(done)[0] == 4
    else:
        code, error, hint = failure(done)
        assert (code, hint.startswith("upgrade tokshard"), path in error) == (6, True, True)
