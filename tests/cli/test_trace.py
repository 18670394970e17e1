"""``tokshard trace`` from tokenized text to a plan and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.command_line import SAMPLE
from support.mixture_data import run
from tokshard.loader import RankLoader

NAMES = ("--megatron", "0.19", "--tokenizer-model", "/models/llama")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Two datasets, their blend and a plan of eight ranks, of which four read different samples."""
    directory = tmp_path_factory.mktemp("world")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        for name in ("stories", "manuals"):
            text = (SAMPLE / f"{name}.jsonl").read_bytes().splitlines(keepends=True)
            Path(f"{name}.jsonl").write_bytes(b"".join(text[:120]))
            assert run("tokenize", f"{name}.jsonl", "-o", f"out/{name}", "-q").returncode == 0
        weights = ("0.6", "out/stories", "0.4", "out/manuals")
        sizes = ("--seq-length", "128", "--split", "90,10,0", "--num-samples", "900,40", *NAMES)
        assert run("blend", *weights, *sizes, "-o", "mix", "-q").returncode == 0
        ranks = ("--world-size", "8", "--tensor-parallel", "2", "--global-batch-size", "16")
        done = run("shard-plan", "mix", *ranks, "--micro-batch-size", "2", "-o", "plan")
        assert done.returncode == 0, done.stderr
    return directory


@pytest.fixture(autouse=True)
def workshop(world, monkeypatch):
    monkeypatch.chdir(world)


def trace(*arguments, code=0):
    done = run("trace", *arguments)
    assert done.returncode == code, done.stderr
    return done


def test_a_step_of_a_rank_is_what_the_loader_reads_and_its_text_is_in_the_lines_named():
    found = trace("plan", "--step", "11", "--rank", "5", "--json").json
    assert (found["schema"], found["step"], found["consumed_samples"]) == (
        "tokshard.trace-samples/2",
        11,
        176,
    )
    loader = RankLoader.open("plan", 4)
    batches = [loader.batch(11, number) for number in loader.micro_batches(11)]
    rows = [row.tolist() for batch in batches for row in batch["tokens"]]
    assert len(found["samples"]) == len(rows) == 4
    for sample, row in zip(found["samples"], rows, strict=True):
        assert sample["data_parallel_rank"] == 2
        text = "".join(piece["text"] for piece in sample["pieces"])
        read = b"".join(b"<|endoftext|>" if token == 256 else bytes([token]) for token in row)
        # Pieces may begin or end within a character, which is a replacement character in their texts.
        assert text.replace("\ufffd", "")[:40] in read.decode("utf-8", "replace").replace("\ufffd", "")
        for piece in sample["pieces"]:
            origin = piece["origin"]
            record = json.loads(Path(origin["path"]).read_bytes().splitlines()[origin["line"] - 1])
            tokens = [*record["text"].encode(), 256][piece["first_token"] : piece["stop_token"]]
            place = piece["position"]
            assert row[place : place + len(tokens)] == tokens[: len(row) - place]


def test_a_line_is_traced_to_the_steps_that_are_traced_back_to_it():
    arguments = ("stories.jsonl:17", "--consumed-samples", "500")
    found = trace("plan", *arguments, "--json").json
    assert found["schema"] == "tokshard.trace-reads/2"
    ((item,), plan_id) = found["items"], json.loads(Path("plan/plan.json").read_bytes())["plan_id"]
    assert (item["status"], found["plan_id"]) == ("read", plan_id)
    reads = item["documents"][0]["reads"]
    assert {read["stream"] for read in reads} == {"train"}
    for read in reads:
        assert read["seen"] == (16 * (read["step"] + 1) <= 500)
        rank = next(
            of["ranks"][0] for of in found["ranks"] if of["data_parallel_rank"] == read["data_parallel_rank"]
        )
        back = trace("plan", "--step", read["step"], "--rank", rank, "--json").json["samples"]
        piece = next(
            piece
            for sample in back
            if (sample["row"], sample["sample"]) == (read["row"], read["sample"])
            for piece in sample["pieces"]
            if piece["sequence"] == read["sequence"]
        )
        assert (piece["origin"]["path"], piece["origin"]["line"]) == ("stories.jsonl", 17)
        assert (piece["first_token"], piece["stop_token"]) == (read["first_token"], read["stop_token"])


def test_list_gives_the_status_and_reads_of_each_item():
    Path("list.txt").write_text("stories.jsonl:3\nmanuals.jsonl:999\nout/manuals#4\nnone:1\n")
    items = trace("plan", "@list.txt", "--json", code=1).json["items"]
    assert [item["status"] for item in items] == ["read", "not-found", "read", "not-found"]
    assert [any(document["reads"] for document in item["documents"]) for item in items] == [
        True,
        False,
        True,
        False,
    ]


def test_samples_of_blends_and_indexes_and_documents_are_shown():
    shown = trace("mix", "--sample", "7").stdout
    assert "sample 7 of train is sample" in shown
    assert ".jsonl:" in shown
    description = next(Path("mix/cache").glob("*GPTDataset-valid-description.txt"))
    found = trace(description, "--sample", "0", "--split", "valid", "--json").json
    assert (found["kind"], found["stream"], found["samples"][0]["sample"]) == ("index", "valid", 0)
    shown = trace("out/stories", "--document", "4").stdout
    assert "stories.jsonl:5" in shown
    text = json.loads(Path("stories.jsonl").read_bytes().splitlines()[4])["text"]
    assert text.split("\n")[0][:20] in shown
    found = trace("out/stories.idx", "--document", "4", "--json").json
    assert (found["schema"], found["text"]) == ("tokshard.trace-document/2", f"{text}<|endoftext|>")


def test_reads_are_shown_with_the_ranks_of_the_job():
    shown = trace("plan", "stories.jsonl:17", "--consumed-samples", "500").stdout
    assert shown.startswith("stories.jsonl:17: read,")
    assert "document 16 of" in shown
    assert "data-parallel rank" in shown
    assert ": ranks " in shown
    alone = trace("out/stories", "stories.jsonl:17").stdout
    assert alone.startswith("stories.jsonl:17: found")


def test_a_plan_of_another_mixture_is_traced_from_its_stop_on_and_says_so():
    weights = ("0.2", "out/stories", "0.8", "out/manuals")
    sizes = ("--seq-length", "128", "--split", "90,10,0", "--num-samples", "900,40", *NAMES)
    assert run("blend", *weights, *sizes, "-o", "mix2", "-q").returncode == 0
    for name, blend in (("plan2", ("--blend", "mix2")), ("plan3", ())):
        done = run("replan", "plan", "--consumed-samples", "160", *blend, "-o", name)
        assert done.returncode == 0, done.stderr
    item = ("manuals.jsonl:5", "stories.jsonl:7", "--split", "train", "--json")
    before, mixed, same = (trace(name, *item).json for name in ("plan", "plan2", "plan3"))
    assert [before["warnings"], same["warnings"]] == [[], []]
    assert "trace that plan separately" in mixed["warnings"][0]

    def places(found):
        """Return what a report says of parts of documents and steps, counted from the start."""
        reads = [read for item in found["items"] for part in item["documents"] for read in part["reads"]]
        start = {found["plan_id"]: 0 if found is before else 10}
        return sorted(
            (start.get(read["plan_id"], 0) + read["step"], read["dataset_sample"], read["first_token"])
            for read in reads
        )

    assert places(same) == places(before)
    assert min(places(mixed))[0] >= 10
    for item in mixed["items"]:
        for read in item["documents"][0]["reads"]:
            back = trace("plan2", "--step", read["step"], "--json").json["samples"]
            assert (read["sample"], read["dataset_sample"], read["data_parallel_rank"], read["row"]) in {
                (got["sample"], got["dataset_sample"], got["data_parallel_rank"], got["row"]) for got in back
            }


def test_a_plan_is_traced_whose_data_has_moved(tmp_path):
    for name in ("out", "mix"):
        (tmp_path / name).symlink_to(Path(name).resolve())
    value = Path("plan/plan.json").read_text().replace(str(Path.cwd()), "/gone")
    (tmp_path / "plan.json").write_text(value)
    question = (tmp_path / "plan.json", "--step", "0", "--json")
    refused = trace(*question, code=3)
    assert "/gone" in refused.stderr
    moved = trace(*question, "--moved", f"/gone={tmp_path}").json
    here = trace("plan", "--step", "0", "--json").json
    places = [sample["pieces"][0]["origin"] for sample in moved["samples"]]
    assert places == [sample["pieces"][0]["origin"] for sample in here["samples"]]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((), 2, "PATH is required"),
        (("plan",), 2, "ITEM or one of --step, --sample and --document is required"),
        (("plan", "--step", "1", "--sample", "2"), 2, "--step cannot be used with --sample"),
        (("mix", "--step", "1"), 2, "--step requires a plan, got mix hint: pass --sample N or --document N"),
        (("plan", "--document", "1"), 2, "--document requires a single dataset, got plan, which has 2"),
        (("plan", "--sample", "1", "--rank", "0"), 2, "--rank requires --step hint: pass --step N"),
        (("plan", "--sample", "1", "--consumed-samples", "1"), 2, "requires ITEM hint: pass ITEM, or leave"),
        (("plan", "a:1", "--tokenizer", "x"), 2, "with ITEM: reads are shown without text"),
        (("plan", "a"), 2, "'a' is not a line, byte or document hint: write FILE:LINE"),
        (("plan", "a:0"), 2, "'a:0' is invalid: lines are numbered from 1"),
        (("plan", "--step", "999"), 2, "got 999"),
        (("plan", "--step", "1", "--rank", "8"), 2, "rank must be from 0 to 7, got 8"),
        (("plan/rank-00003.json", "--step", "1", "--rank", "4"), 2, "rank must be 3"),
        (("plan", "--step", "1", "--split", "test"), 2, "no split 'test' hint: available: train"),
        (("mix", "--sample", "99999"), 2, "got 99999"),
        (("out/stories", "--document", "120"), 2, "document must be from 0 to 119 for out/stories, got 120"),
        (("mix", "--sample", "1", "--moved", "/a=/b"), 2, "--moved cannot be used with a blend"),
        (("plan", "--sample", "1", "--path-as", "a=b"), 2, "--path-as cannot be used with a shard plan"),
        (("plan", "--sample", "1", "--moved", "/a="), 2, "must be OLD=NEW"),
        (("plan", "@absent.txt"), 3, "cannot read the list absent.txt: No such file or directory"),
        (("plan", "@empty.txt"), 3, "the list empty.txt is empty hint: write FILE:LINE"),
        (("plan", "@bad.txt"), 2, "bad.txt:2: 'nonsense' is not a line, byte or document"),
        (
            ("nowhere", "--step", "1"),
            3,
            "no dataset or file found: nowhere hint: pass the path prefix of a dataset",
        ),
        (("stories.jsonl:17", "plan"), 2, "'plan' is not a line, byte or document"),
        (("stories.jsonl:17", "--step", "1"), 3, "no dataset or file found: stories.jsonl:17"),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments, code, words):
    Path("empty.txt").write_text("# nothing\n")
    Path("bad.txt").write_text("stories.jsonl:1\nnonsense\n")
    done = trace(*arguments, code=code)
    assert words in done.stderr.replace("\n", " ")


def test_a_sample_of_a_plan_comes_with_its_reads():
    found = trace("plan", "--sample", "7", "--json").json
    (read,) = found["reads"]
    ranks = next(
        each["ranks"] for each in found["ranks"] if each["data_parallel_rank"] == read["data_parallel_rank"]
    )
    for rank in ranks:
        samples = trace("plan", "--step", read["step"], "--rank", rank, "--json").json["samples"]
        assert (7, read["row"], read["micro_batch"]) in {
            (sample["sample"], sample["row"], sample["micro_batch"]) for sample in samples
        }
    shown = trace("plan", "--sample", "7").stdout
    assert "\nread 1 time\nepoch  step  dp rank  micro-batch  row\n" in shown
    assert "\ndata-parallel rank 3: ranks 6, 7\n" in shown


def test_a_rank_manifest_is_traced_as_the_plan_with_its_rank():
    ranks = (("plan/rank-00005.json",), ("plan", "--rank", "5"))
    of_file, of_plan = (trace(*words, "--step", "3", "--json").json for words in ranks)
    assert of_file["samples"] == of_plan["samples"]
    assert (of_file["rank"], len(of_file["samples"])) == (5, 4)


def test_a_dataset_is_traced_through_the_index_in_its_cache():
    sizes = ("--seq-length", "64", "--split", "90,10,0", "--epochs", "1")
    assert run("build-indices", "out/stories", *sizes, "-q").returncode == 0
    shown = trace("out/stories", "--sample", "0", "--json").json
    assert (shown["kind"], shown["stream"]) == ("index", "train")
    cache = next(Path("out").rglob("*description.txt")).parent
    assert trace(cache, "--sample", "0", "--json").json["samples"] == shown["samples"]


def test_what_a_file_is_called_does_not_reach_the_terminal_as_it_is():
    name = "evil\x1b[31m\u202e.jsonl"
    Path(name).write_text('{"text": "a\\u001b[0m"}\n')
    assert run("tokenize", name, "-o", "out/evil", "-q").returncode == 0
    for arguments in (("--document", "0"), (f"{name}:1",)):
        shown = trace("out/evil", *arguments).stdout
        assert "\x1b" not in shown
        assert "\u202e" not in shown
