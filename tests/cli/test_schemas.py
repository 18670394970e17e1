"""Each document that a command prints or writes has a published schema, and is what that says."""

from __future__ import annotations

import ast
import copy
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

import tokshard
from support.command_line import SAMPLE
from support.mixture_data import run
from support.schemas import defects_of, published, script
from tokshard.loader import RankLoader

SOURCE = Path(tokshard.__file__).parent
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/json.md"
IN_WORK_DIRECTORIES = {f"tokshard.{name}/2" for name in script.INTERNAL}
HASHED = {"tokshard.reweighted/2"}
OWN = IN_WORK_DIRECTORIES | HASHED
"""Schemas of what nobody else reads: it is for the run that goes on, or for a digest."""

OPTIONAL = {
    *("path", "line", "offset", "reason", "field", "differences", "missing", "tasks", "seal"),
    *("tokenizer_path", "tokenizer", "tokenizers", "job_tokenizer", "tokenizer_mismatches"),
}
"""What not every document of its schema has: details of errors, and what old versions did not write."""

OF_RUNS = {
    "tokshard.blend-report/2": {"path", "blend"},
    "tokshard.export-report/2": {"manifest", "state", "shards", "size_bytes"},
    "tokshard.shard-plan/2": {"files", "size_bytes"},
    "tokshard.convert/2": {"files", "state"},
    "tokshard.merge/2": {"free_bytes", "inputs", "shuffle_sizes", "state"},
    "tokshard.tokenize/2": {
        *("counts", "encoded_bytes", "encoded_tokens", "encoder_reason", "inputs", "local_dir", "messages"),
        *("state", "units_reused", "workers"),
    },
}
"""What only the report of a run, or only that of a dry run has, by schema."""

TOKENIZER = SAMPLE / "tokenizer.json"
BAD = SAMPLE / "hostile.jsonl"
NAMES = "--megatron 0.19 --tokenizer-model /models/llama"
SAMPLES = "--seq-length 64 --split 9,1 --num-samples 300,10"
CONTIGUOUS = (
    "--data-parallel 2 --tensor-parallel 2 --mode contiguous --shuffle datasets --bucket-buffer 64 --tail pad"
)
MIX = f"0.7 web 0.3 code {SAMPLES}"
JOB = (
    "torchrun --nproc-per-node 8 pretrain_gpt.py --seq-length 64 --split 9,1 --micro-batch-size 1 "
    "--global-batch-size 8 --train-iters 10 --eval-interval 5 --eval-iters 1 --data-cache-path mix/cache "
    "--tokenizer-type HuggingFaceTokenizer --tokenizer-model /models/llama"
)

# In this order, in one directory: the command, its exit code, the schema of what it prints.
RUNS = [
    (f"tokenize {SAMPLE}/stories.jsonl - -o x --tokenizer {TOKENIZER} --dry-run", 0, "tokenize"),
    (
        f"tokenize {SAMPLE}/stories.jsonl {BAD} -o web --tokenizer {TOKENIZER} --on-error skip",
        0,
        "tokenize",
    ),
    (f"tokenize {SAMPLE}/manuals.jsonl.gz -o code --tokenizer {TOKENIZER}", 0, "tokenize"),
    (f"tokenize {SAMPLE}/manuals.jsonl.gz -o code --tokenizer {TOKENIZER}", 0, "tokenize"),
    (f"tokenize {SAMPLE}/stories.jsonl -o bytes --array-task 1/2 --unit-size 300kB", 0, "tokenize-array"),
    (f"tokenize {SAMPLE}/stories.jsonl -o bytes --finish --unit-size 300kB", 1, "error"),
    (f"tokenize {SAMPLE}/stories.jsonl -o bytes --array-task 0/2 --unit-size 300kB", 0, "tokenize-array"),
    (f"tokenize {SAMPLE}/stories.jsonl -o bytes --finish --unit-size 300kB", 0, "tokenize"),
    (f"tokenize {BAD} -o no", 3, "error"),
    ("tokenize sources.toml", 3, "tokenize-sources"),
    (f"tokenize {SAMPLE}/stories.jsonl -o code --field id", 4, "error"),
    ("merge web code -o all --dry-run", 0, "merge"),
    ("merge web code -o all", 0, "merge"),
    ("merge web bytes -o mixed --allow-tokenizer-mismatch", 0, "merge"),
    ("merge web nothing -o no", 3, "error"),
    (
        f"convert web.bin --from olmo --source-dtype uint16 --tokenizer {TOKENIZER} -o back --dry-run",
        0,
        "convert",
    ),
    (
        f"convert web.bin --from olmo --source-dtype uint16 --tokenizer {TOKENIZER} -o back",
        0,
        "convert",
    ),
    (f"build-indices web code {SAMPLES}", 0, "build-indices"),
    ("build-indices web --seq-length 64 --epochs 2 --split 1 --cache-dir cache", 0, "build-indices"),
    (f"build-indices code {SAMPLES} --cache-dir packed --pack best-fit", 0, "build-indices"),
    ("build-indices web --seq-length 64", 2, "error"),
    (f"blend {MIX} --dry-run", 0, "blend-report"),
    ("blend web code --seq-length 64 --split 9,1 --dry-run", 0, "blend-report"),
    (f"blend {MIX} -o mix {NAMES}", 0, "blend-report"),
    ("blend web code --seq-length 64 --split 1 -o whole", 0, "blend-report"),
    ("blend --train web --valid code --seq-length 64 --num-samples 9,9 -o own", 0, "blend-report"),
    (f"blend {MIX} --seed 7 -o mix {NAMES}", 4, "error"),
    (f"doctor --megatron 0.19 {JOB} --data-path 0.7 web 0.3 code", 1, "doctor"),
    (f"doctor {JOB} --data-path nothing", 1, "doctor"),
    ("doctor nothing", 3, "error"),
    ("inspect web", 0, "inspect-dataset"),
    ("inspect mixed", 0, "inspect-dataset"),
    (f"inspect web --document 3 --tokenizer {TOKENIZER}", 0, "inspect-document"),
    ("inspect web --document 3", 0, "inspect-document"),
    (f"inspect {TOKENIZER}", 0, "inspect-tokenizer"),
    ("inspect nothing", 3, "error"),
    ("inspect mix/cache", 0, "inspect-cache"),
    ("inspect mix/cache/*-GPTDataset-train-description.txt", 0, "inspect-index"),
    ("inspect mix/cache/*-BlendedDataset-train-description.txt", 0, "inspect-index"),
    ("inspect packed/*-GPTDataset-train-description.txt", 0, "inspect-index"),
    ("inspect mix", 0, "blend"),
    ("shard-plan mix --data-parallel 2 -o none --dry-run", 0, "shard-plan"),
    ("shard-plan mix --data-parallel 2 --micro-batch-size 2 -o plan", 0, "shard-plan"),
    (f"shard-plan web code --documents {CONTIGUOUS} -o documents", 0, "shard-plan"),
    ("shard-plan web --documents --data-parallel 3 --mode cyclic --epochs 2 -o cyclic", 0, "shard-plan"),
    ("shard-plan mix --data-parallel 3 -o plan", 4, "error"),
    ("replan plan --consumed-samples 40 --data-parallel 1 -o plan2", 0, "shard-plan"),
    ("replan plan --consumed-samples 40 --blend '0.5 web 0.5 code' -o plan3", 0, "shard-plan"),
    ("diff plan plan", 0, "diff"),
    ("diff plan plan2", 0, "diff"),
    ("diff plan plan3", 1, "diff"),
    ("diff mix own", 1, "diff"),
    ("diff mix/cache cache", 1, "diff"),
    ("diff plan mix", 2, "error"),
    ("export web --to nanogpt -o exported --dry-run", 0, "export-report"),
    ("export web --to nanogpt -o exported", 0, "export-report"),
    ("export plan --samples --to datatrove -o samples", 0, "export-report"),
    ("verify exported", 0, "verify"),
    ("inspect plan", 0, "inspect-plan"),
    ("inspect documents", 0, "inspect-plan"),
    ("inspect plan --rank 1 --step 3", 0, "inspect-rank"),
    ("inspect documents --rank 2", 0, "inspect-rank"),
    ("inspect plan --sample 7", 0, "inspect-plan-sample"),
    ("inspect documents --dataset-sample 0:3", 0, "inspect-plan-sample"),
    (f"verify plan --level deep --recursive --tokenizer {TOKENIZER}", 0, "verify"),
    ("verify web --subset 50%", 0, "verify"),
    ("verify nothing", 3, "error"),
    (f"trace plan --step 3 --rank 1 --tokenizer {TOKENIZER}", 0, "trace-samples"),
    ("trace mix --sample 7", 0, "trace-samples"),
    ("trace web --document 7", 0, "trace-document"),
    (f"trace plan {SAMPLE}/stories.jsonl:7 --consumed-samples 40", 0, "trace-reads"),
    (f"trace mix {BAD}:33 web#3", 1, "trace-reads"),
]


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    return tmp_path_factory.mktemp("documents")


@pytest.fixture(scope="module")
def printed(workshop):
    """What each of the runs has printed."""
    documents = []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(workshop)
        (workshop / "sources.toml").write_text(
            f'[[source]]\ninput = "{SAMPLE}/stories.jsonl"\noutput = "stories"\n'
            f'[[source]]\ninput = "{BAD}"\noutput = "no"\n'
        )
        for command, code, schema in RUNS:
            name, *words = shlex.split(command)
            words = [str(next(workshop.glob(word))) if "*" in word else word for word in words]
            done = run(name, "--json", *words)
            assert done.returncode == code, (command, done.stdout, done.stderr)
            assert done.json["schema"] == f"tokshard.{schema}/2", command
            documents.append(done.json)
    return documents


@pytest.fixture(scope="module")
def written(workshop, printed):
    """What the runs have written, and the state of a loader."""
    paths = [path for path in workshop.rglob("*.json") if "work" not in path.parts]
    documents = [json.loads(path.read_text()) for path in sorted(paths)]
    loader = RankLoader.open(workshop / "plan", rank=1)
    next(iter(loader))
    return [*documents, json.loads(json.dumps(loader.state_dict()))]


def constants():
    """Return each text in the source that looks like the name of a schema, and the name it is given."""
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        names = {
            id(node.value): ast.unparse(node.targets[0])
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign)
        } | {
            id(node.value): ast.unparse(node.target)
            for node in ast.walk(tree)
            if isinstance(node, ast.AnnAssign)
        }
        for node in ast.walk(tree):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and re.fullmatch(r"tokshard\.[a-z-]+/\d+", text):
                yield text, names.get(id(node), "")


def test_every_schema_of_the_source_is_published():
    found: dict[str, set[str]] = {}
    for text, name in constants():
        found.setdefault(text, set()).add(name)
    assert len(found) > 20
    schemas = {text for text, names in found.items() if not any(name.endswith("ALGORITHM") for name in names)}
    assert all(any(name.endswith("SCHEMA") for name in found[text]) for text in schemas)
    assert schemas > OWN
    assert schemas - OWN == published().keys()


@pytest.mark.parametrize("name", published())
def test_a_schema_is_one_of_closed_objects_and_contains_its_parts(name):
    value = published()[name]
    Draft202012Validator.check_schema(value)
    assert value["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert value["title"] == name
    for part in parts_of(value):
        if "properties" in part:
            assert part["additionalProperties"] is False, part
            assert part["properties"]
            assert part["description"]
        if isinstance(part.get("$ref"), str):
            assert part["$ref"].removeprefix("#/$defs/") in value["$defs"]


def test_the_script_writes_every_schema(tmp_path):
    subprocess.run([sys.executable, ROOT / "scripts/schemas", tmp_path / "schemas"], check=True, timeout=60)
    written = {path.name: json.loads(path.read_text()) for path in (tmp_path / "schemas").iterdir()}
    assert written == {script.file_name(name): schema for name, schema in published().items()}


def parts_of(value):
    if isinstance(value, dict):
        yield value
        for part in value.values():
            yield from parts_of(part)
    elif isinstance(value, list):
        for part in value:
            yield from parts_of(part)


def test_the_page_lists_every_schema():
    text = PAGE.read_text()
    listed = re.findall(r"^\| `(tokshard\.[a-z-]+/\d+)` \|", text, re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(listed) == published().keys()


def test_what_is_printed_and_written_is_what_its_schema_says(printed, written):
    for document in printed + written:
        assert defects_of(document) == [], document["schema"]


def test_every_published_schema_is_seen_in_these_runs(printed, written):
    seen = {document["schema"] for document in printed + written}
    assert seen == published().keys()


def test_a_field_that_is_missing_unknown_or_of_another_kind_is_seen(printed, written):
    for document in {document["schema"]: document for document in printed + written}.values():
        for name in document.keys() - OPTIONAL - OF_RUNS.get(document["schema"], set()) - {"schema"}:
            without = {key: value for key, value in document.items() if key != name}
            assert defects_of(without), (document["schema"], name)
            assert defects_of({**document, name: object}), (document["schema"], name)
        assert defects_of({**document, "surprise": 1})


def test_an_unknown_field_deep_inside_is_seen(printed):
    certificate = next(document for document in printed if "blend" in document)
    changed = copy.deepcopy(certificate)
    changed["blend"]["certificates"]["train"]["sources"][0]["surprise"] = 1
    assert defects_of(changed)
    changed = copy.deepcopy(certificate)
    changed["actions"] = dict.fromkeys(changed["actions"], "other")
    assert defects_of(changed)
