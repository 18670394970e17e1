"""What is looked at: parts of the data, whole directories, and datasets that change meanwhile."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import bad_datasets, bad_products
from support.assignments import planned
from support.file_changes import flip
from support.interleaving import interleaved
from support.tokenize_runs import run_tokenize
from tokshard.checks import products
from tokshard.checks.commands.diff import diff
from tokshard.checks.commands.inspect import inspect
from tokshard.checks.commands.verify import verify
from tokshard.checks.inspect.options import InspectOptions
from tokshard.checks.verify.context import CountingRunner, attempt, spread_evenly
from tokshard.checks.verify.options import VerifyOptions
from tokshard.core.options import parse_share
from tokshard.core.progress import ProgressUpdate, SilentProgress
from tokshard.errors import InputError, StorageError, UsageError
from tokshard.ranks.discovery import RequestedSamples, open_sources
from tokshard.ranks.plan import read_plan
from tokshard.ranks.publication import write_plan


def codes(report):
    """Return all codes, without that of data without manifests, whose tokenizers are unknown."""
    return {finding.code for finding in report.findings} - {"tokenizer-unchecked"}


class Listener(SilentProgress):
    def __init__(self):
        self.heard = []

    def start(self, activity, bytes_total=None, bytes_resumed=0):
        self.heard.append(("start", bytes_total))

    def update(self, state):
        self.heard.append(("update", state.bytes_done))

    def finish(self):
        self.heard.append(("finish", None))


@given(st.integers(0, 300), st.fractions(Fraction(1, 1000), 1))
def test_a_share_names_as_many_pieces_as_it_says_evenly(count, share):
    pieces = spread_evenly(count, share)
    assert pieces == sorted(set(pieces))
    assert all(0 <= piece < count for piece in pieces)
    assert len(pieces) == max(min(count, 1), int(count * share))
    if len(pieces) > 1:
        gaps = {after - before for before, after in pairwise(pieces)}
        assert max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize(
    "text", ["", "5", "0%", "101%", "-1%", "5%%", "nan%", "1e1%", "0.0000001%", f"{10**400}%"]
)
def test_no_share_is_refused(text):
    with pytest.raises((UsageError, ValueError), match=r"percentage|at most 100% of the data, got|finite"):
        VerifyOptions(path="data", subset=parse_share(text))


def test_a_subset_finds_what_lies_in_it_and_nothing_else(tmp_path):
    prefix = bad_datasets.sound(tmp_path, unit_size=100)
    whole = verify(prefix).products[0].counts
    assert whole["pieces_checked"] == whole["pieces"] > 10
    part = verify(VerifyOptions(path=prefix, subset=0.3))
    counts = part.products[0].counts
    assert counts["pieces_checked"] == whole["pieces"] * 3 // 10
    assert part.subset_percent == 30
    found = []
    for offset in range(0, os.path.getsize(f"{prefix}.bin"), 7):
        flip(f"{prefix}.bin", offset)
        (finding,) = verify(prefix).findings
        partly = [finding.offset for finding in verify(VerifyOptions(path=prefix, subset=0.3)).findings]
        assert partly in ([], [finding.offset])
        found += partly
        flip(f"{prefix}.bin", offset)
    assert len(set(found)) == counts["pieces_checked"]
    assert 7 * len(found) == pytest.approx(counts["bytes_checked"], rel=0.2)


@pytest.mark.parametrize("subset", [0, 1e-9, -0.1, 1.01])
def test_a_subset_is_a_share(tmp_path, subset):
    with pytest.raises(UsageError, match="--subset must be above 0% and at most 100% of the data, got"):
        verify(VerifyOptions(path=bad_datasets.sound(tmp_path), subset=subset))


def test_a_directory_is_looked_through_and_links_are_not_followed(tmp_path):
    bad_products.goes_on(tmp_path)
    bad_datasets.foreign(tmp_path / "more" if not os.makedirs(tmp_path / "more") else None)
    os.symlink(tmp_path, tmp_path / "loop")
    os.makedirs(tmp_path / ".git/objects/pack")
    Path(tmp_path / ".git/objects/pack/pack-1.idx").write_bytes(b"\xfftOc")
    Path(tmp_path / "model.bin").write_bytes(b"weights")
    os.makedirs(tmp_path / "half.tokshard/work")
    report = verify(VerifyOptions(path=tmp_path, recursive=True, level="structure"))
    kinds = [product.kind for product in report.products]
    assert {kind: kinds.count(kind) for kind in kinds} == {"dataset": 4, "index": 6, "blend": 1, "plan": 2}
    assert codes(report) == {"unverified", "unfinished"}
    assert [product.path for product in report.products if not product.sound] == [str(tmp_path / "half")]


def test_a_blend_brings_what_it_is_made_from(tmp_path):
    path = bad_products.sound_blend(tmp_path)
    alone, whole = verify(path), verify(VerifyOptions(path=path, recursive=True))
    assert [product.kind for product in alone.products] == ["index"] * 6 + ["blend"]
    assert [product.kind for product in whole.products] == ["dataset"] * 2 + ["index"] * 6 + ["blend"]
    assert [product.kind for product in verify(f"{path}/blend.json").products] == ["index"] * 6 + ["blend"]
    shutil.rmtree(f"{path}/cache")
    assert codes(verify(VerifyOptions(path=path, recursive=True))) == {
        "unverified",
        "cache-incomplete",
        "cache-foreign",
    }


def test_a_rank_brings_what_its_plan_reads(tmp_path):
    path = bad_products.sound_plan(tmp_path)
    report = verify(VerifyOptions(path=f"{path}/rank-00001.json", recursive=True))
    assert [product.kind for product in report.products] == ["dataset"] * 2 + ["index"] * 3 + ["rank"]
    flip(tmp_path / "data/web.bin", 5)
    assert codes(verify(f"{path}/rank-00001.json")) == {"plan-file-changed"}


@pytest.mark.parametrize("name", ["plan.json", "rank-00001.json"])
def test_plan_named_in_its_own_directory_is_read(tmp_path, monkeypatch, name):
    monkeypatch.chdir(bad_products.sound_plan(tmp_path))
    report = verify(VerifyOptions(path=name, recursive=True, level="structure"))
    assert [product.kind for product in report.products[:-1]] == ["dataset"] * 2 + ["index"] * 3
    assert inspect(InspectOptions(path=name, sample=3)).places
    assert diff(name, ".").reads_same


@pytest.mark.parametrize("thing", ["plan", "plan/rank-00001.json", "blend"])
def test_a_product_that_cannot_be_read_at_first_is_not_sound(tmp_path, monkeypatch, thing):
    """Its indexes and datasets are not known then."""
    path = (bad_products.sound_blend if thing == "blend" else bad_products.sound_plan)(tmp_path)
    name = "blend" if thing == "blend" else "plan"
    left = [StorageError("read", path, OSError(errno.ENOMEM, "no memory"))]
    monkeypatch.setattr(products, "attempt", lambda read, path: left.pop() if left else attempt(read, path))

    report = verify(VerifyOptions(path=path + thing.removeprefix(name), recursive=True))

    assert codes(report) - {"unverified"} == {f"{name}-damaged"}
    assert any("no memory" in finding.message for finding in report.findings)
    assert codes(verify(VerifyOptions(path=path, recursive=True))) <= {"unverified"}


def test_plans_of_documents(tmp_path):
    bad_datasets.sound(tmp_path)
    sources = open_sources([str(tmp_path / "data/web")], RequestedSamples(documents=True))
    plan = planned(sources, world_size=2, **bad_products.BATCHES, steps=3)
    write_plan(plan, tmp_path / "documents")
    assert codes(verify(VerifyOptions(path=tmp_path / "documents", level="deep", recursive=True))) <= {
        "unverified",
        "vocabulary-unknown",
    }


def test_things_that_cannot_be_verified(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bad_datasets.sound(tmp_path)
    for thing in ("nothing", "a.jsonl"):
        with pytest.raises(InputError):
            verify(thing)
    with pytest.raises(UsageError, match="not an index cache, a blend, a plan or an export"):
        verify("data")
    assert [product.path for product in verify(VerifyOptions(path="data", recursive=True)).products] == [
        "data/web"
    ]
    assert [product.path for product in verify("data/web.tokshard").products] == ["data/web"]


def test_the_progress_tells_of_every_byte_once(tmp_path, monkeypatch):
    prefix = bad_datasets.sound(tmp_path)
    inline, threaded = Listener(), Listener()
    verify(VerifyOptions(path=prefix, workers=2), progress=inline)
    monkeypatch.setattr("tokshard.checks.verify.context._WORTH_THREADS_BYTES", 0)
    report = verify(VerifyOptions(path=prefix, workers=2), progress=threaded)
    for listener in (inline, threaded):
        assert [event[0] for event in listener.heard][:: len(listener.heard) - 1] == ["start", "finish"]
        done = [count for kind, count in listener.heard if kind == "update"]
        assert done == sorted(done)
        assert done[-1] == report.bytes_read
    (total,) = [total for kind, total in inline.heard if kind == "start" and total is not None]
    assert total / 2 < report.bytes_read <= total


def test_work_in_threads_is_the_work_in_order(monkeypatch):
    listener = Listener()
    runner = CountingRunner(3, listener)
    items = list(range(50))

    def work(item):
        runner.count_bytes(2)
        return item * item

    assert runner.run(work, items, 1 << 30) == runner.run(work, items, 0) == [item * item for item in items]
    assert runner.bytes_done == 200
    assert listener.heard[-1] == ("update", 200)
    listener.update(ProgressUpdate())


def test_readers_see_the_old_or_the_new_and_never_a_mixture(tmp_path):
    """Four verifications run all the while that a dataset is made anew from one input and the other."""
    prefix = bad_datasets.sound(tmp_path)
    inputs = [[str(tmp_path / "a.jsonl")], [str(tmp_path / "b.jsonl")]]
    ended, seen, failures = threading.Event(), [], []

    def read():
        while not ended.is_set():
            try:
                report = verify(VerifyOptions(path=prefix, level="digest", workers=1))
            except Exception as error:
                failures.append(repr(error))
                return
            seen.append(codes(report))
            counts = report.products[0].counts
            if not codes(report) and counts["records"] not in {40, 25, 65}:
                failures.append(counts)

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    try:
        for number in range(15):
            run_tokenize(inputs[number % 2], prefix, on_error="skip", workers=1, force=True)
    finally:
        ended.set()
        for reader in readers:
            reader.join()
    assert failures == []
    assert set().union(*seen) <= {"unfinished", "changed", "unverified"}
    assert len(seen) > 15
    assert verify(prefix).findings == ()


def rewritable(directory, product):
    """Return the path of a sound product, and what makes it anew as it is."""
    if product == "cache":
        description = bad_products.sound_cache(directory)

        def rebuild():
            os.unlink(description)
            bad_products.build_cache(str(directory / "data/web"))

        return description, rebuild
    path = bad_products.sound_plan(directory)
    plan = read_plan(path)

    def rewrite():
        os.unlink(os.path.join(path, "plan.json"))
        for rank in Path(path).glob("rank-*.json"):
            rank.unlink()
        write_plan(plan, path)

    return path, rewrite


@pytest.mark.parametrize(
    ("product", "module"),
    [("cache", "checks/verify/cache.py"), ("plan", "checks/verify/plan.py"), ("plan", "ranks/manifests.py")],
)
def test_a_product_that_is_rewritten_meanwhile_is_changed_or_sound(tmp_path, product, module):
    path, rewrite = rewritable(tmp_path, product)
    found = [
        *interleaved(
            lambda: frozenset(codes(verify(VerifyOptions(path=path, workers=1)))), rewrite, inside=(module,)
        )
    ]
    assert len(found) > 30
    sound = frozenset(codes(verify(VerifyOptions(path=path, workers=1))))
    assert set(found) <= {sound, sound | {"changed"}, frozenset({"changed"})}
    assert any("changed" in result for result in found)


def test_a_directory_that_cannot_be_listed_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "below").mkdir()
    listed = os.scandir

    def scandir(path):
        if str(path).endswith("below"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(StorageError, match=r"cannot read .*/below: Permission denied"):
        verify(VerifyOptions(path=str(tmp_path), recursive=True))
