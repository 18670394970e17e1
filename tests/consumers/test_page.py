"""The page of consumers shows what its commands print, and the first batches that its blocks receive.

``TOKSHARD_UPDATE_PAGES=1 scripts/test --consumers -k page`` writes both into the page.
"""

import importlib.metadata
import os
import re

import pytest

from consumers.test_lightning import fit
from consumers.test_megatron import null_tokenizer
from support.consumers import PAGE, blocks, commands, needed, run, trained

needed("torch", "megatron.training.datasets.data_samplers", "lightning", "grain", "olmo_core")
pytestmark = pytest.mark.oracle


def timeless(text):
    """Return a text without what differs from run to run, or with the versions of packages."""
    text = re.sub(r"\b[0-9a-f]{12,64}\b", "ID", text)
    text = re.sub(r"^(\S+) [\d.]+$", r"\1 VERSION", text, flags=re.MULTILINE)
    return re.sub(r"\b(in|time:) [0-9.]+ m?s\b( \([^)\n]*/s\))?", r"\1 T", text)


def check_block(heading, language, text):
    """Compare the first block of a section, or write it."""
    (shown, *_) = blocks(heading, language)
    if os.environ.get("TOKSHARD_UPDATE_PAGES") and timeless(shown) != timeless(text):
        page = PAGE.read_text(encoding="utf-8")
        start = page.index(f"```{language}\n{shown}```", page.index(f"## {heading}\n"))
        end = start + len(f"```{language}\n{shown}")
        PAGE.write_text(f"{page[:start]}```{language}\n{text}{page[end:]}", encoding="utf-8")
        return
    assert timeless(shown) == timeless(text)


def test_the_page_shows_what_the_commands_print(prepared):
    check_block("Prepare", "console", (prepared / "transcript.txt").read_text(encoding="utf-8"))


def test_the_page_shows_the_first_batches(workdir, monkeypatch):
    run(commands(blocks("OLMo-core", "sh")[0])[0], workdir)
    consumers = {
        "megatron-core": lambda: trained(blocks("Megatron Core")[0], 1, tokenizer=null_tokenizer()),
        "torchdata": lambda: trained(blocks("torchdata")[0], 1),
        "lightning": lambda: fit(blocks("Lightning")[0], 1),
        "grain": lambda: trained(blocks("Grain")[1], 1),
        "ai2-olmo-core": lambda: trained(blocks("OLMo-core")[0], 1),
    }
    text = ""
    for package, first_batch in consumers.items():
        # Checkpoints have the same names.
        place = workdir / package
        place.mkdir()
        for name in ("data", "mix", "plan", "olmo"):
            (place / name).symlink_to(workdir / name)
        monkeypatch.chdir(place)
        (batch,) = first_batch()
        rows = [f"  {words(row[:8])} ... {words(row[60:64])}\n" for row in batch]
        text += f"{package} {importlib.metadata.version(package)}\n{''.join(rows)}"
    check_block("First batches", "text", text)


def words(tokens):
    return " ".join(f"{token:4}" for token in tokens)
