"""Another sequence length in the middle of a run: every token is read as an input as often as before."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from support.blends import TOKENIZER, write_dataset
from support.length_changes import Tokens, blended
from support.replanned_plans import flat, plan_of, reads_of
from support.sample_sources import document_source, index_source
from support.views import view_of
from tokshard.blending.job import build_blend
from tokshard.blending.options import BuilderConfig
from tokshard.blending.recipe import BlendRecipe, Mixture, Source
from tokshard.core.codec import decode, encode
from tokshard.dataset.view import data_prefix
from tokshard.errors import UsageError
from tokshard.gpt_index.sizes import Sizes
from tokshard.loader import RankLoader
from tokshard.sharding.discovery import RequestedSamples, open_sources
from tokshard.sharding.history import StoppedPlan
from tokshard.sharding.plan import Plan, read_plan
from tokshard.sharding.planning import plan_shards
from tokshard.sharding.publication import write_plan
from tokshard.sharding.replan.job import continue_plan, dry_run_replan
from tokshard.sharding.replan.options import ReplanOptions
from tokshard.sharding.replan.proof import verify_replan
from tokshard.sharding.replan.sequence_length import check_source
from tokshard.sharding.requests import PlanRequest, ReplanRequest, StreamRequest
from tokshard.sharding.schedule import BatchSchedule
from tokshard.sharding.sources import FileFingerprint
from tokshard.sharding.topology import Topology

MODES = ["single", "sequential", "contiguous", "chunked", "cyclic"]


def everything(source, epochs=1):
    tokens = Tokens(source)
    once = tokens.of(range(source.total)) + tokens.of_rest()
    return Counter({token: times * epochs for token, times in once.items()})


def by_dataset(tokens, count):
    return [sum(times for token, times in tokens.items() if token // 10_000 == n) for n in range(count)]


def number_of(reference):
    return int(Path(data_prefix(reference.prefix)).name[1:])


@settings(max_examples=12, deadline=None, phases=[Phase.generate])
@given(data=st.data())
def test_each_token_is_read_as_often_as_the_first_plan_was_going_to(tmp_path_factory, data):
    draw = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731 - as short as a name
    directory = tmp_path_factory.mktemp("chain")
    count, packed = draw(1, 3), data.draw(st.booleans())
    lengths = [[draw(0, 9) for _ in range(draw(3, 9))] + [20] for _ in range(count)]
    weighted = data.draw(st.booleans())
    shape = {"weights": [1 + n for n in range(count)], "samples": draw(8, 30)} if weighted else {}
    source = blended(directory, lengths, packed=packed, sequence_length=draw(2, 5), **shape)
    mode = data.draw(st.sampled_from(MODES))
    shuffle = "none" if mode == "cyclic" else data.draw(st.sampled_from(["none", "samples"]))
    ranks = draw(1, 2)
    epochs = 1 if packed else draw(1, 2)
    plan = plan_of(source, ranks, batch=ranks, mode=mode, shuffle=shuffle, epochs=epochs)
    left = everything(source, epochs)
    for number in range(draw(1, 3)):
        write_plan(plan, directory / f"plan{number}")
        plan = read_plan(directory / f"plan{number}")
        tokens, source = Tokens(plan.streams["train"].source), plan.streams["train"].source
        assignment = plan.streams["train"].assignment
        # Of an epoch that is over, the tail is no part of what is left.
        step = draw(0, assignment.steps if epochs == 1 or number else assignment.steps // 2 - 1)
        read = tokens.of(flat(reads_of(plan, steps=step)))
        assert not read - left, "a token is read more often than it is there"
        left -= read
        ranks, length = draw(1, 2), draw(1, 9)
        if epochs == 2 and not number and length == source.sequence_length:
            length += 1
        changes = {"topology": Topology(ranks), "schedule": BatchSchedule.constant(ranks)}
        if length != source.sequence_length:
            changes["sequence_length"] = length
        request = ReplanRequest(consumed_samples=assignment.consumed_after(step), **changes)
        try:
            after = continue_plan(plan, request, directory / f"plan{number + 1}")
        except UsageError:
            return
        assert verify_replan(after, parent=plan, deep=True) == []
        if "sequence_length" in changes:
            left = check_change(after, left, source, length)
        plan = after
    tokens = Tokens(plan.streams["train"].source)
    assert not tokens.of(flat(reads_of(plan))) - left


def check_change(after, left, source, length):
    """Check a change of the sequence length against the tokens that are left; return those planned."""
    stream, change = after.streams["train"], after.history[-1].streams["train"].length_change
    assert stream.source.sequence_length == length
    planned = everything(stream.source)
    remainders = [0] * 3
    for reference, count in zip(source.datasets, change.tokens, strict=True):
        assert count.adds_up
        remainders[number_of(reference)] += count.remainder
    samples = Tokens(stream.source).of(range(stream.source.total))
    assert not samples - left, "a token is planned that was read"
    assert by_dataset(left - samples, 3) == remainders
    assert by_dataset(samples, 3) == [
        sum(c.planned for r, c in zip(source.datasets, change.tokens, strict=True) if number_of(r) == n)
        for n in range(3)
    ]
    for reference, count in zip(source.datasets, change.tokens, strict=True):
        padded = reference.index.epochs.packed is not None
        assert count.remainder <= (0 if padded else length)
    return planned


ONE = BatchSchedule.constant(1)
LENGTHS = [[7, 12, 3, 9, 20, 5, 8], [6, 6, 11, 2, 15]]


def first_plan(directory, **options):
    plan = plan_of(blended(directory, LENGTHS), 2, batch=2, **options)
    write_plan(plan, directory / "plan")
    return read_plan(directory / "plan")


def changed(plan, directory, consumed, length, **changes):
    request = ReplanRequest(consumed_samples=consumed, sequence_length=length, **changes)
    write_plan(continue_plan(plan, request, directory), directory, force=True)
    return read_plan(directory)


@pytest.mark.parametrize("mmap", [True, False])
def test_the_loader_reads_the_samples_of_views(tmp_path, mmap):
    plan = first_plan(tmp_path)
    before = RankLoader.open(tmp_path / "plan", rank=1)
    before.seek(12)
    after = changed(plan, tmp_path / "plan2", 12, 8)
    tokens, read = Tokens(after.streams["train"].source), Counter()
    for rank in range(2):
        loader = RankLoader.open(tmp_path / "plan2", rank=rank, mmap=mmap)
        loader.load_state_dict(before.state_dict())
        assert (loader.consumed_samples, loader.step) == (12, 0)
        for number, batch in enumerate(loader):
            assert Counter(batch["tokens"].ravel().tolist()) == tokens.of(loader.sample_ids(number))
            assert np.array_equal(batch["labels"][:, :-1], batch["tokens"][:, 1:])
            read += Counter(batch["tokens"].ravel().tolist())
    assert set(read.values()) == {1}
    stream = after.streams["train"]
    assert read.total() == 8 * stream.assignment.steps * 2 == 8 * (stream.source.total // 2 * 2)


def test_a_view_of_a_view_leads_to_the_dataset_itself(tmp_path):
    second = changed(first_plan(tmp_path), tmp_path / "plan2", 6, 8)
    third = changed(second, tmp_path / "plan3", 8, 3)
    for plan in (second, third):
        found = [data_prefix(dataset.prefix) for dataset in plan.streams["train"].source.datasets]
        assert found == [str(tmp_path / "d0"), str(tmp_path / "d1")]
    assert verify_replan(third, parent=second, deep=True) == []


def test_the_same_again_writes_the_same(tmp_path):
    plan = first_plan(tmp_path)
    once = changed(plan, tmp_path / "plan2", 6, 8)
    files = {path: path.stat().st_ino for path in (tmp_path / "plan2").rglob("*.npy")}
    left = next((tmp_path / "plan2").glob("views-*/train")) / ".d0.idx.4711-0-0123abcd.tokshard-tmp"
    left.write_text("of a killed run")
    again = continue_plan(plan, ReplanRequest(consumed_samples=6, sequence_length=8), tmp_path / "plan2")
    assert again.plan_id == once.plan_id
    assert not left.exists()
    assert files == {path: path.stat().st_ino for path in (tmp_path / "plan2").rglob("*.npy")}


def test_datasets_of_one_name_get_views_of_their_own(tmp_path):
    for number, folder in enumerate(("a", "b", "c")):
        write_dataset(
            str(tmp_path / folder / ("x" if number < 2 else "x-0")), [30, 9], first_token=100 * number
        )
    prefixes = [str(tmp_path / path) for path in ("a/x", "b/x", "c/x-0")]
    recipe = BlendRecipe(Mixture(tuple(map(Source, prefixes))))
    config = BuilderConfig(sequence_length=4, sizes=Sizes(None, 0, 0), split="1", tokenizer=TOKENIZER)
    build_blend(recipe, config, tmp_path / "mix")
    source = open_sources([str(tmp_path / "mix")], RequestedSamples())["train"]
    plan = changed(plan_of(source, 1, batch=1), tmp_path / "plan2", 3, 5)
    names = [Path(dataset.prefix).name for dataset in plan.streams["train"].source.datasets]
    assert names == ["x-0-0", "x-1", "x-0"]
    assert verify_replan(plan, deep=True) == []


def test_epochs_that_are_left_are_in_the_views(tmp_path):
    source = blended(tmp_path, LENGTHS)
    finite = plan_of(source, 2, batch=2, epochs=3)
    per_epoch = source.total // 2 * 2
    for plan, consumed, left in (
        (finite, per_epoch + 4, 1),
        (plan_of(source, 2, batch=2, mode="cyclic", steps=per_epoch), 4, 1),
        (plan_of(source, 2, batch=2, mode="cyclic", steps=per_epoch + 1), 4, 2),
    ):
        write_plan(plan, tmp_path / "plan", force=True)
        after = changed(plan, tmp_path / "plan2", consumed, 8)
        change = after.history[-1].streams["train"].length_change
        assert change.epochs_left == left
        tokens = sum(map(sum, LENGTHS))
        assert sum(count.tokens for count in change.tokens) == tokens * (1 + left)
        samples = Tokens(after.streams["train"].source).of(range(after.streams["train"].source.total))
        assert max(samples.values()) == 1 + left
        assert verify_replan(after, parent=plan, deep=True) == []


def test_as_many_tokens_are_read_as_the_steps_had_left(tmp_path):
    plan = first_plan(tmp_path, steps=8)
    assert changed(plan, tmp_path / "plan2", 4, 8).streams["train"].assignment.steps == 3
    assert changed(plan, tmp_path / "plan3", 4, 8, steps=4).streams["train"].assignment.steps == 4
    with pytest.raises(
        UsageError, match="steps must be from 1 to 4, which 9 samples of 8 tokens fill, got 5"
    ):
        changed(plan, tmp_path / "plan4", 4, 8, steps=5)


def test_new_weights_and_a_new_length_in_turn(tmp_path):
    plan = first_plan(tmp_path)
    read = Tokens(plan.streams["train"].source).of(flat(reads_of(plan, steps=2)))
    weights = f"0.5 {tmp_path}/d0 0.5 {tmp_path}/d1"
    request = ReplanRequest(consumed_samples=4, blend=weights, steps=6)
    second = continue_plan(plan, request, tmp_path / "plan2")
    write_plan(second, tmp_path / "plan2")
    read += Tokens(second.streams["train"].source).of(flat(reads_of(second, steps=2)))
    third = changed(second, tmp_path / "plan3", 8, 8)
    samples = Tokens(third.streams["train"].source).of(range(third.streams["train"].source.total))
    assert max((read + samples).values()) == 1
    assert verify_replan(third, parent=second, deep=True) == []
    views = " ".join(f"1 {dataset.prefix}" for dataset in third.streams["train"].source.datasets)
    request = ReplanRequest(consumed_samples=10, blend=views, steps=1)
    fourth = continue_plan(third, request, tmp_path / "plan4")
    write_plan(fourth, tmp_path / "plan4")
    assert verify_replan(fourth, parent=third, deep=True) == []
    assert max((read + Tokens(fourth.streams["train"].source).of(range(2))).values()) == 1


def test_all_streams_get_the_length_and_one_without_a_sample_ends(tmp_path):
    sources = {"train": blended(tmp_path, LENGTHS)}
    for name, lengths in (("valid", [30]), ("test", [9])):
        source = blended(tmp_path / name, [lengths])
        sources[name] = replace(source, name=name)
    train = StreamRequest(micro_batch_size=1, schedule=BatchSchedule.constant(2))
    plan = plan_shards(sources, Topology(2), PlanRequest(train=train))
    write_plan(plan, tmp_path / "plan")
    after = changed(plan, tmp_path / "plan2", 6, 12)
    assert set(after.streams) == {"train", "valid"}
    assert {stream.source.sequence_length for stream in after.streams.values()} == {12}
    assert [warning.message for warning in after.warnings if warning.stream == "test"] == [
        "the stream test is not continued: its 9 unread tokens are fewer than a sample of the new length"
    ]
    assert after.streams["valid"].source.datasets[0].index.files.split == "valid"
    assert verify_replan(after, parent=plan, deep=True) == []


def test_a_dataset_with_fewer_tokens_than_a_sample_is_named(tmp_path):
    after = changed(first_plan(tmp_path), tmp_path / "plan2", 6, 40, topology=Topology(1), schedule=ONE)
    assert [Path(dataset.prefix).name for dataset in after.streams["train"].source.datasets] == ["d0"]
    warning = after.warnings[0]
    assert (warning.code, warning.path_prefix, warning.tokens) == ("too-few-tokens", f"{tmp_path}/d1", 32)
    counts = after.history[-1].streams["train"].length_change.tokens
    assert [(count.planned, count.remainder) for count in counts] == [(40, 8), (0, 32)]
    assert verify_replan(after, deep=True) == []


@pytest.mark.parametrize(
    ("length", "changes", "message"),
    [
        (4, {}, "already have 4 tokens"),
        (90, {}, "no dataset has a sample of 90 tokens left: 80 tokens are unread"),
        (6, {"topology": Topology(4, context=2)}, "divisible"),
        (8, {"schedule": BatchSchedule.constant(64)}, "fewer than one batch of 64"),
        (8, {"schedule": BatchSchedule.constant(3)}, "must be divisible by micro batch size"),
    ],
)
def test_what_cannot_be_is_one_sentence(tmp_path, length, changes, message):
    with pytest.raises(UsageError, match=message):
        changed(first_plan(tmp_path), tmp_path / "plan2", 6, length, **changes)
    assert not (tmp_path / "plan2/plan.json").exists()


def test_documents_and_remote_datasets_have_no_views():
    with pytest.raises(UsageError, match="the samples of this plan are documents"):
        check_source(document_source([3]), 8)
    source = index_source(8)
    remote = replace(source, datasets=(replace(source.datasets[0], prefix="s3://bucket/web"),))
    with pytest.raises(UsageError, match="a view of s3://bucket/web would be a link"):
        check_source(remote, 8)
    with pytest.raises(UsageError, match="--seq-length and --blend exclude each other"):
        ReplanRequest(consumed_samples=0, sequence_length=8, blend="mix")
    with pytest.raises(UsageError, match="--emit-cache requires --seq-length"):
        ReplanOptions(plan="plan", output="plan2", consumed_samples=0, emit_cache="cache")
    with pytest.raises(UsageError, match="--dry-run and --seq-length exclude each other"):
        dry_run_replan(ReplanOptions(plan="plan", output="plan2", consumed_samples=0, sequence_length=8))


# The proof.


def with_record(plan, change):
    value = json.loads(json.dumps(encode(plan.history[-1])))
    change(value["streams"]["train"])
    last = decode(StoppedPlan, value, "plan.json")
    return Plan(plan.topology, plan.streams, plan.options, (*plan.history[:-1], last))


def codes(plan):
    return {problem.code for problem in verify_replan(plan)}


def test_counts_that_were_changed_are_found(tmp_path):
    after = changed(first_plan(tmp_path), tmp_path / "plan2", 6, 8)
    assert codes(after) == set()
    for name in ("tokens", "read_earlier", "read", "planned", "remainder"):

        def more(record, name=name):
            record["sequence_length_change"]["tokens"][0][name] += 1

        assert codes(with_record(after, more)) == {"wrong-count"}
    for change in (
        lambda record: record["sequence_length_change"].update(epochs_left=1),
        lambda record: record["proof"]["sources"][0].update(read=0),
    ):
        assert "wrong-count" in codes(with_record(after, change))
    stream = after.streams["train"]
    later = replace(stream, assignment=replace(stream.assignment, consumed_samples=8))
    assert codes(Plan(after.topology, {"train": later}, after.options, after.history)) == {"not-continued"}
    other = replace(stream, source=replace(stream.source, datasets=stream.source.datasets[::-1]))
    assert codes(Plan(after.topology, {"train": other}, after.options, after.history)) == {"not-continued"}


def test_a_view_of_tokens_that_were_read_is_found(tmp_path):
    after = changed(first_plan(tmp_path), tmp_path / "plan2", 6, 8)
    count = after.history[-1].streams["train"].length_change.tokens[0]
    table = count.view.open_dataset().index
    starts = (table.sequence_pointers // 2).tolist()
    at = next(place for place, start in enumerate(starts) if start and start - 1 not in set(starts))
    starts[at] -= 1  # as many tokens, and one of them was read
    shown = view_of(
        tmp_path / "d0", tmp_path / "other", list(zip(starts, table.sequence_lengths, strict=True))
    )
    view = replace(count.view, prefix=shown, idx=FileFingerprint.of(f"{shown}.idx"))

    def other(record):
        record["sequence_length_change"]["tokens"][0]["view"] = encode(view)

    found = verify_replan(with_record(after, other))
    assert [problem.code for problem in found] == ["read-twice", "not-continued"]
    assert f"from byte {2 * starts[at]} of the .bin on are not read exactly once" in found[0].message


def test_without_the_indexes_of_the_stopped_plan_tokens_are_not_counted(tmp_path):
    after = changed(first_plan(tmp_path), tmp_path / "plan2", 6, 8)
    for path in (tmp_path / "mix/cache").iterdir():
        path.unlink()
    assert codes(after) == {"unchecked"}


def test_paths_of_the_history_move_with_the_plan(tmp_path):
    changed(first_plan(tmp_path), tmp_path / "plan2", 6, 8)
    stored = json.loads((tmp_path / "plan2/plan.json").read_text())
    change = stored["history"][0]["streams"]["train"]["sequence_length_change"]
    assert change["tokens"][0]["view"]["path_prefix"].startswith("views-")
    (tmp_path / "plan2").rename(tmp_path / "moved")
    after = read_plan(tmp_path / "moved")
    assert after.history[0].streams["train"].length_change.source.datasets[0].prefix == f"{tmp_path}/d0"
    assert verify_replan(after, deep=True) == []
