"""Documents are traced by their own ids: like a search of all records, through blends and plans."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.command_line import json_of, tokshard
from support.tokenize_runs import run_tokenize, write_jsonl
from tokshard import (
    BatchSizes,
    BlendOptions,
    MergeOptions,
    ShardPlanOptions,
    Sizes,
    TraceOptions,
    VerifyOptions,
    blend,
    merge,
    shard_plan,
    trace,
    verify,
)
from tokshard.errors import InputError, UsageError

SHARED = "shared"
"""An id of documents of every dataset, twice in one."""


def records(name, count):
    found = [{"text": f"{name} {n} " * (n % 9), "id": n if n % 3 else f"{name}-{n}"} for n in range(count)]
    found[4]["id"] = found[count // 2]["id"] = SHARED
    return found


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Three datasets with ids, one of them merged and one with blank lines, in a blend and a plan."""
    directory = tmp_path_factory.mktemp("ids")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        for name, count in (("a", 60), ("b", 50), ("c", 40), ("d", 30)):
            lines = [json.dumps(record).encode() for record in records(name, count)]
            if name == "c":
                lines.insert(10, b"")
            write_jsonl(Path(f"{name}.jsonl"), lines)
            run_tokenize(f"{name}.jsonl", name, id_field="id", unit_bytes=700)
        merge(MergeOptions(("a", "b"), "ab"))
        blend_of("mix", "0.6", "ab", "0.4", "c")
        batch = BatchSizes(global_batch_size=4)
        shard_plan(ShardPlanOptions(sources=("mix",), output="plan", data_parallel=2, batch_sizes=batch))
    return directory


def blend_of(output, *sources):
    sizes = Sizes(120, 4, 0)
    blend(BlendOptions(sources, output, sequence_length=64, split="90,10,0", num_samples=sizes))


@pytest.fixture(autouse=True)
def place(world, monkeypatch):
    monkeypatch.chdir(world)


def places():
    """Return for each id the datasets, documents, files and lines that a search of all records finds."""
    found = {}
    for dataset, names in (("ab", "ab"), ("c", "c")):
        document = 0
        for name in names:
            for line, text in enumerate(Path(f"{name}.jsonl").read_text().splitlines(), 1):
                if text:
                    own = str(json.loads(text)["id"])
                    found.setdefault(own, []).append((dataset, document, f"{name}.jsonl", line))
                    document += 1
    return found


def found_of(item):
    return sorted(
        (Path(each.dataset).name, each.document, each.origin.path, each.origin.line)
        for each in item.documents
    )


@pytest.mark.parametrize("through", ["plan", "blend"])
def test_ids_are_traced_like_a_search_of_all_records(through):
    wanted = places()
    ids = ("nowhere", *wanted)
    path = {"plan": "plan", "blend": "mix"}[through]
    report = trace(TraceOptions(**{through: path}, ids=ids, consumed_samples=40))
    assert [item.item for item in report.items] == list(ids)
    assert (report.items[0].status, report.is_complete) == ("not-found", False)
    assert report.items[0].detail == "no document has this id in 2 datasets"
    for item in report.items[1:]:
        assert found_of(item) == sorted(wanted[item.item])
        assert {document.id for document in item.documents} == {item.item}
    assert len(wanted[SHARED]) == 6
    # The reads are those of the same records, named by file and line.
    lines = tuple(f"{path}:{line}" for own in wanted for _, _, path, line in wanted[own])
    by_line = trace(TraceOptions(**{through: path}, items=lines, consumed_samples=40))
    reads = {}
    for item in by_line.items:
        for document in item.documents:
            reads[document.dataset, document.document] = document.reads
            assert document.origin is None
    assert any(reads.values())
    for item in report.items[1:]:
        for document in item.documents:
            assert document.reads == reads[document.dataset, document.document]


def test_samples_and_documents_show_the_ids_of_their_records():
    wanted = {(path, line): own for own, found in places().items() for _, _, path, line in found}
    report = trace(TraceOptions(plan="plan", step=3))
    pieces = [piece for sample in report.samples for piece in sample.pieces]
    assert len(pieces) > 4
    for piece in pieces:
        assert piece.id == wanted[piece.origin.path, piece.origin.line]
    document = trace(TraceOptions(dataset="ab", document=61))
    assert document.id == wanted["b.jsonl", 2] == "1"
    shown = tokshard("trace", "--plan", "plan", "--step", "3").stdout
    assert all(piece.id in shown for piece in pieces)


def test_a_list_of_ids_gives_items_with_the_id(tmp_path):
    ids = tmp_path / "ids.txt"
    ids.write_bytes(b"shared\r\n\n c-0 \nc-0\n-17\n")
    done = tokshard("trace", "--dataset", "c", "--id-list", str(ids), "--json")
    assert done.returncode == 1
    documents = [
        (item["item"], item["status"], [(found["document"], found["id"]) for found in item["documents"]])
        for item in json.loads(done.stdout)["items"]
    ]
    assert documents == [
        ("shared", "found", [(4, "shared"), (20, "shared")]),
        (" c-0 ", "not-found", []),
        ("c-0", "found", [(0, "c-0")]),
        ("-17", "not-found", []),
    ]


def test_the_id_and_the_record_are_shown():
    done = tokshard("trace", "--dataset", "c", "--id", "c-12", "--source", "c.jsonl:1")
    assert done.stdout.splitlines() == [
        "c.jsonl:1: found",
        "  document 0 of c, 0 tokens, id c-0",
        "",
        "c-12: found",
        f"  document 12 of c, {len('c 12 ') * 3 + 1} tokens, id c-12, from c.jsonl:14",
        "",
    ]
    found = json_of(tokshard("trace", "--dataset", "c", "--id", "c-12", "--json"))
    assert found["items"][0]["documents"][0]["origin"]["line"] == 14
    assert "id           c-12" in tokshard("inspect", "c", "--document", "12").stdout
    assert "ids          recorded from the field id" in tokshard("inspect", "c").stdout


def test_datasets_without_recorded_ids_are_named():
    run_tokenize("d.jsonl", "plain")
    with pytest.raises(InputError, match="--id requires recorded ids, but plain has none") as caught:
        trace(TraceOptions(dataset="plain", ids=("d-3",)))
    assert "--id-field" in caught.value.hint
    blend_of("half", "0.5", "c", "0.5", "plain")
    report = trace(TraceOptions(blend="half", ids=("c-3", "d-3")))
    assert [item.status for item in report.items] == ["read", "not-found"]
    detail = f"no document has this id in 1 dataset; no recorded ids: {Path('plain').resolve()}"
    assert report.items[1].detail == detail


def test_options_of_ids():
    with pytest.raises(UsageError, match="--document and --id exclude each other"):
        TraceOptions(dataset="c", document=1, ids=("a",))
    with pytest.raises(UsageError, match="--id requires --plan or --blend or --index or --dataset, got none"):
        TraceOptions(ids=("a",))
    with pytest.raises(InputError, match="the list /dev/null is empty"):
        trace(TraceOptions(dataset="c", id_list="/dev/null"))


def test_a_shuffled_merge_finds_the_documents_of_the_records():
    merge(MergeOptions(("a", "b"), "shuffled", shuffle=5))
    wanted = {
        own: sorted(place[2:] for place in found if place[0] == "ab") for own, found in places().items()
    }
    report = trace(TraceOptions(dataset="shuffled", ids=tuple(own for own in wanted if wanted[own])))
    for item in report.items:
        assert sorted(place[2:] for place in found_of(item)) == wanted[item.item]
        for document in item.documents:
            contents = trace(TraceOptions(dataset="shuffled", document=document.document))
            lines = Path(document.origin.path).read_text().splitlines()
            assert contents.text.startswith(json.loads(lines[document.origin.line - 1])["text"])
            assert contents.id == item.item
    assert verify(VerifyOptions("shuffled", level="deep")).is_sound
