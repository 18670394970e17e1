"""Packed samples compared with concatenation: by build-indices, blend and inspect."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from support.index_caches import write_dataset
from support.mixture_data import NAMES, WEB, run, write_mixture
from support.pages import Page
from tokshard.checks.commands.verify import verify
from tokshard.checks.verify.options import VerifyOptions
from tokshard.samples.index.entry import CacheEntry
from tokshard.samples.index.sidecar import readable_sidecar

SIZE = 16
BUILD = ("build-indices", "data/web", "--seq-length", SIZE, "--split", "1", *NAMES)
PACK = ("--pack", "best-fit", "--cache-dir", "packed")


@pytest.fixture
def workshop(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    return write_mixture(tmp_path)


def lines_of(text):
    return [" ".join(line.split()) for line in text.splitlines()]


def test_build_indices_compares_an_epoch_of_packed_samples_with_concatenation(workshop):
    done = run(*BUILD, *PACK, "--num-samples", "none")
    plan = run(*BUILD, *PACK, "--num-samples", "none", "--json").json["indices"][0]["plan"]
    packed = plan["packed"]
    longer = [length for length in WEB if length > SIZE]
    assert (packed["cut_documents"], packed["cut_tokens"]) == (len(longer), sum(longer))
    assert packed["cut_tokens"] < packed["concat_cut_tokens"] < sum(WEB)
    fill = sum(WEB) / (packed["samples"] * SIZE)
    share, concat_share = (packed[name] / sum(WEB) for name in ("cut_tokens", "concat_cut_tokens"))
    documents = sum(map(bool, WEB))
    cut = f"{len(longer)} of {documents} {share:.2%}"
    concat_cut = f"{packed['concat_cut_documents']} of {documents} {concat_share:.2%}"
    lines = lines_of(done.stdout)
    first = lines.index("Packed samples")
    assert lines[first + 2 : first + 5] == [
        "dataset split sequence packing samples fill documents cut tokens in these",
        f"data/web train {SIZE} best-fit {packed['samples']} {fill:.2%} {cut}",
        f"concat (expected) {(sum(WEB) - 1) // SIZE} 100.00% {concat_cut}",
    ]
    assert any(line.startswith("--eod-mask-loss required") for line in lines)
    assert "--split 1 --eod-mask-loss; check the launch script" in lines[-1]


def test_only_packed_samples_are_reported(workshop):
    done = run(*BUILD, "--num-samples", "none")
    assert "Packed samples" not in done.stdout
    assert "--eod-mask-loss" not in done.stdout
    report = run(*BUILD, "--num-samples", "none", "--json").json
    assert "packed" not in report["indices"][0]["plan"]


def test_indexes_of_the_same_epoch_are_described_once(workshop):
    lengths = ("--seq-length", 8, "--num-samples", "none", "--num-samples", "1,0,0")
    done = run(*BUILD, *lengths, *PACK)
    assert "indexes: 4 built" in done.stdout
    rows = [line.split()[:3] for line in lines_of(done.stdout) if "best-fit" in line]
    assert rows == [["data/web", "train", "8"], ["data/web", "train", "16"]]


def entry_in(directory):
    return next(filter(None, (CacheEntry.of_file(str(path)) for path in Path(directory).iterdir())))


@pytest.mark.parametrize("pack", [PACK, ("--cache-dir", "concat")], ids=["best-fit", "concat"])
def test_inspect_counts_the_cuts_of_an_index(workshop, pack):
    assert run(*BUILD, *pack, "--num-samples", 100).returncode == 0
    entry = entry_in(pack[-1])
    arrays = entry.load()
    rows = arrays["sample_index"].tolist()
    cut = [arrays["document_index"][position] for position in sorted({p for p, offset in rows if offset})]
    found = run("inspect", entry.description_path, "--json").json
    statistics = found["statistics"]
    assert (statistics["cut_documents"], statistics["cut_tokens"]) == (
        len(cut),
        sum(WEB[document] for document in cut),
    )
    origin = found["entry"]["sidecar"]["origin"]["plan"]
    assert statistics["epochs"] == origin["epochs"] > 1
    documents = origin["epochs"] * (sum(map(bool, WEB)) if pack is PACK else len(WEB))
    share = statistics["cut_tokens"] / (origin["epochs"] * sum(WEB))
    text = run("inspect", entry.description_path).stdout
    assert f"documents cut {len(cut)} of {documents}, which have {share:.2%} of the tokens" in lines_of(text)
    assert f"packing {'best-fit' if pack is PACK else 'concat'}" in lines_of(text)
    assert ("Options of the job" in text) == (pack is PACK)
    if pack is PACK:
        # Documents of each sample, without the borrowed last label.
        twin = Counter(max(q - p, 1) for (p, _), (q, _) in pairwise(rows))
        pieces = statistics["sequences_per_sample"]
        assert (pieces["count"], pieces["total"]) == (twin.total(), sum(n * twin[n] for n in twin))
        assert pieces["longest"] == max(twin)
        packed = origin["packed"]
        assert statistics["cut_documents"] == origin["epochs"] * packed["cut_documents"]
        assert statistics["cut_tokens"] == origin["epochs"] * packed["cut_tokens"]
    write_dataset("data/web", [*WEB, 9])
    changed = run("inspect", entry.description_path, "--json").json["statistics"]
    assert (changed["cut_documents"], changed.get("cut_tokens")) == (len(cut), None)


def test_cuts_of_another_programs_index_are_not_known(workshop):
    assert run(*BUILD, "--num-samples", 100, "--cache-dir", "c").returncode == 0
    entry = entry_in("c")
    Path(entry.sidecar_path).unlink()
    assert "cut_documents" not in run("inspect", entry.description_path, "--json").json["statistics"]


def test_an_index_of_documents_that_do_not_exist_is_an_error(workshop):
    assert run(*BUILD, "--num-samples", 100, "--cache-dir", "c").returncode == 0
    entry = entry_in("c")
    documents = np.load(entry.array_path("document_index"))
    np.save(entry.array_path("document_index"), documents + 1000)
    done = run("inspect", entry.description_path)
    assert done.returncode == 6
    assert "refers to documents that do not exist" in done.stderr


def test_inspect_shows_packed_indexes_on_pages(workshop):
    assert run(*BUILD, "--seq-length", 32, *PACK, "--num-samples", "none").returncode == 0
    listed = lines_of(run("inspect", "packed").stdout)
    first = listed.index("Packed samples") + 3
    assert [row.split()[:3] for row in listed[first : first + 4 : 2]] == [
        ["data/web", "train", "16"],
        ["data/web", "train", "32"],
    ]
    for path, expected in (
        ("packed", ("Tokens in documents that are cut", "data/web, train, 32")),
        (entry_in("packed").description_path, ("Tokens in documents that are cut", "Sequences per sample")),
    ):
        assert run("inspect", path, "--html", "page.html").returncode == 0
        page = Page(Path("page.html").read_text())
        assert all(any(text in found for found in page.texts) for text in expected)


def test_verify_compares_the_numbers_of_a_packed_epoch(workshop):
    assert run(*BUILD, *PACK, "--num-samples", "none").returncode == 0
    entry = entry_in("packed")
    options = VerifyOptions(path=entry.description_path, level="deep")
    assert not verify(options).findings
    sidecar = readable_sidecar(entry)
    plan = sidecar.origin.plan
    changed = replace(plan, packed=replace(plan.packed, cut_documents=plan.packed.cut_documents + 1))
    replace(sidecar, origin=replace(sidecar.origin, plan=changed)).write(entry.sidecar_path)
    (finding,) = verify(options).findings
    assert finding.code == "cache-content"
    assert "packed contradicts the dataset" in finding.message


def test_blends_report_their_packed_sources(workshop):
    Path("recipe.toml").write_text(
        'num_samples = 60\n[[source]]\nprefix = "data/web"\nweight = 0.5\npack = "best-fit"\n'
        '[[source]]\nprefix = "data/code"\nweight = 0.5\n'
    )
    done = run("blend", "recipe.toml", "--seq-length", SIZE, "--split", "1,0,0", *NAMES, "-o", "mix")
    assert done.returncode == 0
    for shown in (done.stdout, run("inspect", "mix").stdout):
        lines = lines_of(shown)
        first = lines.index("Packed samples")
        assert lines[first + 3].startswith(f"data/web train {SIZE} ")
        assert lines[first + 5 : first + 7] == ["", "Options of the job"]
    assert " --eod-mask-loss; check the launch script" in done.stdout
    concat = run("blend", "data/web", "data/code", "--seq-length", SIZE, "--split", "1", *NAMES, "-o", "c")
    assert concat.returncode == 0
    assert "--eod-mask-loss" not in concat.stdout
