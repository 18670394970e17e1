"""What is said of packed samples: by build-indices, and by inspect of an index and of a cache."""

from __future__ import annotations

import re
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


def test_build_indices_reports_an_epoch_of_packed_samples(workshop):
    training = ("--train-iters", 100, "--global-batch-size", 4, "--eval-interval", 100, "--eval-iters", 0)
    done = run(*BUILD, *PACK, *training)
    report = run(*BUILD, *PACK, *training, "--json").json
    assert (done.returncode, report["global_batch_size"]) == (0, 4)
    packing = report["indices"][0]["packing_report"]
    longer = [length for length in WEB if length > SIZE]
    assert (packing["cut_documents"], packing["cut_tokens"]) == (len(longer), sum(longer))
    assert packing["samples"] * SIZE == sum(WEB) + packing["padding_tokens"]
    lines = lines_of(done.stdout)
    first = lines.index(f"Packing of data/web, train, in samples of {SIZE} tokens")
    cut, documents = packing["concat"]["cut_documents"], sum(map(bool, WEB))
    shares = f"{sum(longer) / sum(WEB):.2%} {packing['concat']['cut_tokens'] / sum(WEB):.2%}"
    more = f"({packing['samples'] / 48 - 1:+.2%}): {packing['samples'] / 4:.2f} instead of 12.00"
    assert lines[first : first + 10] == [
        f"Packing of data/web, train, in samples of {SIZE} tokens",
        "per epoch best-fit concat (expected)",
        f"samples {packing['samples']} {(sum(WEB) - 1) // SIZE}",
        f"lower bound of samples {packing['minimum_samples']}",
        f"fill {packing['fill']:.2%} 100.00%",
        f"padding tokens {packing['padding_tokens']} 0",
        f"documents cut {len(longer)} of {documents} {cut:.0f} of {documents}",
        f"... of at most {SIZE} tokens 0 {cut - len(longer):.0f}",
        f"tokens in cut documents {shares}",
        f"An epoch has {packing['samples']} samples instead of 48 {more} steps of 4 samples.",
    ]
    drawn = [line for line in lines if re.fullmatch(r"[\d to]+ │\S+ \d+", line)]
    bins = packing["documents_per_sample"]["bins"]
    assert [line.split()[-1] for line in drawn] == [str(each["count"]) for each in bins]
    assert any(line.startswith("--eod-mask-loss required") for line in lines)
    assert "--split 1 --eod-mask-loss; check the launch script" in lines[-1]


def test_only_packed_samples_are_reported(workshop):
    done = run(*BUILD, "--num-samples", "none")
    assert "Packing" not in done.stdout
    assert "--eod-mask-loss" not in done.stdout
    report = run(*BUILD, "--num-samples", "none", "--json").json
    assert "packing_report" not in report["indices"][0]
    assert "global_batch_size" not in report


def test_many_packed_indexes_are_not_all_described(workshop):
    lengths = [word for length in (8, 24, 32, 40, 48) for word in ("--seq-length", length)]
    done = run(*BUILD, *lengths, "--num-samples", "none", "--epochs", 1, *PACK)
    assert done.stdout.count("Packing of data/web") == 4
    assert "2 more: run tokshard inspect CACHE" in done.stdout


def test_a_launch_script_gives_the_batch_size(workshop):
    job = (
        "torchrun pretrain_gpt.py --data-path data/web --split 1 --seq-length 16 --train-iters 10 "
        "--global-batch-size 3 --eval-interval 10 --eval-iters 0 --tokenizer-model llama "
        "--tokenizer-type HuggingFaceTokenizer {}"
    )
    options = ("--megatron", "0.19", "--pack", "best-fit", "--cache-dir")
    for number, (more, batch) in enumerate((("", 3), ("--rampup-batch-size 1 1 12", None))):
        done = run("build-indices", "--from-launch", job.format(more), *options, f"c{number}", "--json")
        assert done.json.get("global_batch_size") == batch


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
        packing = found["entry"]["sidecar"]["packing_report"]
        assert statistics["cut_documents"] == origin["epochs"] * packing["cut_documents"]
        assert statistics["cut_tokens"] == origin["epochs"] * packing["cut_tokens"]
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
    listed = run("inspect", "packed").stdout
    header, *rows = lines_of(listed)[lines_of(listed).index("Packed samples") + 2 :]
    assert (
        header
        == "dataset split sequence samples fill documents cut concat cuts tokens in these concat tokens"
    )
    assert [row.split()[:3] for row in rows] == [["data/web", "train", "16"], ["data/web", "train", "32"]]
    for path, expected in (
        ("packed", ("Tokens in documents that are cut", "data/web, train, 32: samples by the number of")),
        (entry_in("packed").description_path, ("Samples by the number of their documents", "Shares")),
    ):
        assert run("inspect", path, "--html", "page.html").returncode == 0
        page = Page(Path("page.html").read_text())
        assert all(any(text in found for found in page.texts) for text in expected)


def test_verify_compares_the_report(workshop):
    assert run(*BUILD, *PACK, "--num-samples", "none").returncode == 0
    entry = entry_in("packed")
    options = VerifyOptions(path=entry.description_path, level="deep")
    assert not verify(options).findings
    sidecar = entry.readable_sidecar()
    changed = replace(sidecar.packing_report, cut_documents=sidecar.packing_report.cut_documents + 1)
    replace(sidecar, packing_report=changed).write(entry.sidecar_path)
    (finding,) = verify(options).findings
    assert finding.code == "cache-content"
    assert "packing_report contradicts the dataset" in finding.message
    replace(sidecar, packing_report=None).write(entry.sidecar_path)
    assert not verify(options).findings


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
        assert lines[first + 4 : first + 6] == ["", "Options of the job"]
    assert " --eod-mask-loss; check the launch script" in done.stdout
    for path in Path("mix/cache").glob("*-tokshard.json"):
        path.unlink()
    assert "Packed samples" not in run("inspect", "mix").stdout
    concat = run("blend", "data/web", "data/code", "--seq-length", SIZE, "--split", "1", *NAMES, "-o", "c")
    assert concat.returncode == 0
    assert "--eod-mask-loss" not in concat.stdout
