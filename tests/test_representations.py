"""``repr`` of public objects says in one line what they are, and errors carry their hints."""

import os
import subprocess
import sys

import pytest

import tokshard
from support.assignments import topology_of
from support.command_line import SAMPLE
from support.loader_plans import plan_for
from tokshard.errors import MissingFileError, UsageError
from tokshard.loader import RankLoader

MOST_CHARACTERS = 700


def test_a_loader_says_its_plan_its_rank_and_its_step(tmp_path, monkeypatch):
    path = plan_for(tmp_path, topology=topology_of(4))
    monkeypatch.chdir(tmp_path)
    path = os.path.relpath(path)
    loader = RankLoader.open(path, rank=1)
    next(loader)
    assert repr(loader) == f"RankLoader(plan={path!r}, rank=1 of 4, step={loader.step} of {loader.steps})"
    unnamed = RankLoader(loader.plan, 0)
    assert repr(unnamed).startswith(f"RankLoader(plan={loader.plan_id[:12]!r}, rank=0 of 4, ")
    assert repr(loader.plan).startswith(
        f"Plan({loader.plan_id[:12]}, 4 ranks, train: {loader.steps} steps of "
    )


def test_a_builder_says_what_it_has_written(tmp_path):
    with tokshard.IndexedDatasetBuilder(str(tmp_path / "web.bin"), dtype="uint16") as builder:
        builder.add_document([17, 4, 2], [3])
        text = repr(builder)
        builder.finalize(str(tmp_path / "web.idx"))
    path = repr(str(tmp_path / "web.bin"))
    assert text == f"IndexedDatasetBuilder({path}, open, dtype=uint16, documents=1, sequences=1)"
    assert repr(builder).startswith(f"IndexedDatasetBuilder({path}, closed, ")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Reports of all main commands."""
    folder = tmp_path_factory.mktemp("made")
    web = str(folder / "web")
    reports = [
        tokshard.tokenize(
            tokshard.TokenizeOptions(
                inputs=str(SAMPLE / "stories.jsonl"), output=web, tokenizer=str(SAMPLE / "tokenizer.json")
            )
        )
    ]
    indices = tokshard.BuildIndicesOptions(
        prefixes=(web,), seq_length=(64,), epochs=(1,), split="1", cache_dir=str(folder / "cache")
    )
    blending = tokshard.BlendOptions(
        sources=(web,),
        output=str(folder / "mix"),
        seq_length=64,
        num_samples=tokshard.Sizes(100, 0, 0),
        split="1",
    )
    reports += [
        tokshard.merge(tokshard.MergeOptions(inputs=[web, web], output=str(folder / "all"))),
        tokshard.build_indices(indices),
        tokshard.blend(blending),
        tokshard.shard_plan(
            tokshard.ShardPlanOptions(
                sources=(str(folder / "mix"),), output=str(folder / "plan"), data_parallel=2
            )
        ),
        tokshard.verify(web),
        tokshard.inspect(web),
        tokshard.inspect(str(folder / "cache")),
        tokshard.inspect(str(folder / "plan")),
        tokshard.read_plan(str(folder / "plan")),
    ]
    return reports


def test_reports_are_shown_in_a_line(made):
    for report in made:
        text = repr(report)
        assert text.startswith(f"{type(report).__name__}(")
        assert len(text) < MOST_CHARACTERS, text
        assert "\n" not in text


def test_a_blend_says_its_splits(made):
    document = next(report.blend for report in made if isinstance(report, tokshard.BlendReport))
    samples = f"{document.splits['train'].samples:,} samples"
    assert repr(document) == f"BlendDocument({document.id[:12]}, train: {samples} of 1 dataset)"


def test_an_error_carries_its_hint():
    with pytest.raises(UsageError) as caught:
        tokshard.TokenizeOptions(inputs=())
    assert caught.value.hint
    assert str(caught.value) == caught.value.message
    assert caught.value.__notes__ == [f"hint: {caught.value.hint}"]


def test_an_uncaught_error_shows_its_hint_once():
    code = (
        "import tokshard.errors as e; raise e.MissingFileError('file not found: x', path='x', hint='pass y')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith("tokshard.errors.MissingFileError: file not found: x\nhint: pass y\n")
    assert MissingFileError("file not found: x", path="x").__dict__.get("__notes__") is None
