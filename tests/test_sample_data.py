"""sample_data/ is what its page says, and its program makes it again."""

import gzip
import json
import os
import re
import statistics
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "sample_data"
SOURCES = ("stories", "manuals")
# Those that a line of a text file can have; the others (utf-16, too-long, corrupt-stream) are of whole files.
LINE_REASONS = {
    "invalid-json",
    "truncated-record",
    "not-object",
    "field-missing",
    "field-null",
    "field-type",
    "item-type",
    "invalid-utf8",
    "byte-order-mark",
    "nul-byte",
    "lone-surrogate",
    "too-deep",
}


def records(source):
    lines = (FOLDER / f"{source}.jsonl").read_bytes().split(b"\n")
    assert lines.pop() == b""
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def regenerated(tmp_path_factory):
    directory = tmp_path_factory.mktemp("regenerated")
    subprocess.run(
        [sys.executable, ROOT / "scripts" / "make_sample_data", directory],
        check=True,
        cwd=directory,
        env={**os.environ, "PYTHONHASHSEED": "7", "LC_ALL": "C", "TZ": "Asia/Tokyo"},
        stdout=subprocess.DEVNULL,
    )
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_the_program_makes_the_same_files_again(regenerated):
    assert len(regenerated) == 8
    for name, content in regenerated.items():
        committed = (FOLDER / name).read_bytes()
        # Builds of zlib differ in how they compress, not in what.
        unpack = gzip.decompress if name.endswith(".gz") else bytes
        assert unpack(content) == unpack(committed), name


@pytest.mark.parametrize("source", SOURCES)
def test_compressed_equals_plain_and_has_no_time(source):
    compressed = (FOLDER / f"{source}.jsonl.gz").read_bytes()
    assert gzip.decompress(compressed) == (FOLDER / f"{source}.jsonl").read_bytes()
    assert compressed[4:8] == bytes(4)


@pytest.mark.parametrize("source", SOURCES)
def test_sources_have_enough_documents_of_very_different_lengths(source):
    found = records(source)
    lengths = sorted(len(record["text"].split()) for record in found if record["text"])
    assert len(found) >= 300
    assert len({record["id"] for record in found}) == len(found)
    assert 400_000 <= (FOLDER / f"{source}.jsonl").stat().st_size <= 700_000
    assert lengths[0] <= 5
    assert 60 <= statistics.median(lengths) <= 180
    assert lengths[-1] >= 10 * statistics.median(lengths)
    # A long tail: the mean lies well above the median, and every decade from ten to a thousand is there.
    assert statistics.mean(lengths) > 1.5 * statistics.median(lengths)
    assert all(sum(low <= n < 10 * low for n in lengths) >= 3 for low in (1, 10, 100, 1000))


def test_stories_are_written_in_many_scripts_and_mostly_english():
    found = records("stories")
    characters = set("".join(record["text"] for record in found))
    names = {unicodedata.name(character, "").split("-")[0].split(" ")[0] for character in characters}
    assert names >= {
        "LATIN",
        "GREEK",
        "CYRILLIC",
        "ARABIC",
        "HEBREW",
        "DEVANAGARI",
        "CJK",
        "HIRAGANA",
        "KATAKANA",
    }
    assert names >= {"HANGUL", "COMBINING", "REGIONAL", "EMOJI"}  # combining marks, flags, skin tones
    assert {"\u200d", "\u0301", "\U0001f600"} <= characters
    languages = [record["lang"] for record in found]
    assert len(set(languages)) == 13
    assert languages.count("en") > 0.5 * len(languages)
    assert all(list(record) == ["id", "text", "lang"] for record in found)


def test_stories_use_every_slot_and_repeat_no_document():
    texts = [record["text"] for record in records("stories")]
    assert not [text for text in texts if "{" in text or "}" in text]
    long_texts = [text for text in texts if len(text) > 100]
    assert len(set(long_texts)) == len(long_texts)


def test_manuals_vary_in_order_kind_and_escapes():
    found = records("manuals")
    assert len({tuple(record) for record in found}) == 6
    assert all(isinstance(record["meta"]["version"]["major"], int) for record in found)
    assert 3 <= sum(record["text"] == "" for record in found) <= 6
    everything = "\n".join(record["text"] for record in found)
    assert not re.findall(r"@[A-Za-z]+\d?@", everything)
    languages = set(re.findall(r"^```([a-z+]+)$", everything, re.MULTILINE))
    assert languages >= {
        "python",
        "c",
        "c++",
        "javascript",
        "go",
        "rust",
        "java",
        "sql",
        "shell",
        "html",
        "haskell",
    }
    raw = (FOLDER / "manuals.jsonl").read_bytes()
    for escape in (rb"\u00e9", rb"\n", rb"\t", rb"\ud83d\ude00", rb"\u2028", "°".encode()):
        assert escape in raw


def judge(line, *, is_cut):
    """What a plain reader makes of one line: the outcome, and the text if it is accepted."""
    at_sight = {
        "blank": not line.strip(b" \t\r"),
        "nul-byte": b"\0" in line,
        "byte-order-mark": line.startswith(b"\xef\xbb\xbf"),
    }
    for outcome, seen in at_sight.items():
        if seen:
            return outcome, None
    try:
        value = json.loads(line.decode("utf-8"))
    except (UnicodeDecodeError, RecursionError) as error:
        return ("invalid-utf8" if isinstance(error, UnicodeDecodeError) else "too-deep"), None
    except json.JSONDecodeError:
        return ("truncated-record" if is_cut else "invalid-json"), None
    if not isinstance(value, dict):
        return "not-object", None
    return judge_field(value["text"]) if "text" in value else ("field-missing", None)


def judge_field(text):
    if text is None:
        return "field-null", None
    if not isinstance(text, str | list):
        return "field-type", None
    if isinstance(text, list) and not all(isinstance(item, str) for item in text):
        return "item-type", None
    if any("\ud800" <= character <= "\udfff" for item in text for character in item):
        return "lone-surrogate", None
    return "accepted", text


def test_hostile_lines_are_all_expected_and_show_every_reason():
    content = (FOLDER / "hostile.jsonl").read_bytes()
    expected = json.loads((FOLDER / "hostile.expected.json").read_text(encoding="utf-8"))
    lines = content.split(b"\n")
    rows = expected["lines"]
    assert expected["field"] == "text"
    assert [row["line"] for row in rows] == list(range(1, len(lines) + 1))
    assert {row["outcome"] for row in rows} == LINE_REASONS | {"accepted", "blank"}
    for line, row in zip(lines, rows, strict=True):
        assert judge(line, is_cut=row["line"] == len(lines)) == (row["outcome"], row.get("text")), row
    assert not content.endswith(b"\n")
    assert content.startswith(b"{")
    assert len(content) < 300_000


def test_tokenizer_gives_every_sample_text_back():
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    configuration = json.loads((FOLDER / "tokenizer_config.json").read_text(encoding="utf-8"))
    definition = json.loads((FOLDER / "tokenizer.json").read_text(encoding="utf-8"))
    assert len(definition["model"]["vocab"]) == 4096
    assert tokenizer.encode(configuration["eos_token"]).ids == [0]
    assert tokenizer.encode(configuration["pad_token"]).ids == [1]
    texts = [record["text"] for source in SOURCES for record in records(source)]
    encodings = tokenizer.encode_batch(texts)
    assert [tokenizer.decode(encoding.ids, skip_special_tokens=False) for encoding in encodings] == texts
    # Trained on these texts: clearly fewer tokens than bytes, and no special ones.
    ids = [number for encoding in encodings for number in encoding.ids]
    assert len(ids) < 0.4 * sum(len(text.encode()) for text in texts)
    assert min(ids) >= 2


def test_the_page_gives_the_counts_and_sizes_of_the_files():
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w.]+)` \| ([\d,]*) \| ([\d,]+) \|", page, re.MULTILINE)
    assert len(rows) == 8
    for name, count, size in rows:
        content = (FOLDER / name).read_bytes()
        assert len(content) == int(size.replace(",", "")), name
        if count:
            plain = gzip.decompress(content) if name.endswith(".gz") else content
            lines = plain.count(b"\n") + (not plain.endswith(b"\n"))
            assert lines == int(count.replace(",", "")), name
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 3_000_000


def test_the_page_describes_the_lengths_and_outcomes_that_are_there():
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    for source in SOURCES:
        lengths = sorted(len(record["text"].split()) for record in records(source) if record["text"])
        median = int(statistics.median(lengths))
        assert f"{source}: shortest {lengths[0]}, median {median}, longest {lengths[-1]:,}" in page
    rows = json.loads((FOLDER / "hostile.expected.json").read_text(encoding="utf-8"))["lines"]
    outcomes = [row["outcome"] for row in rows]
    for outcome in {*outcomes}:
        assert f"| {outcome} | {outcomes.count(outcome)} |" in page
