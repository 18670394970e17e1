"""Datasets with one defect each, made from a sound one."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path

from support.file_changes import age, cut, edit_manifest, edit_units, flip, poke
from support.plain_datasets import Plain
from support.tokenize_runs import run_tokenize
from tokshard import MergeOptions, merge
from tokshard.core.progress import SilentProgress

SAMPLE = Path(__file__).parents[2] / "sample_data"
TOKENIZER = str(SAMPLE / "tokenizer.json")

WORDS = ["it", "was", "the", "best", "of", "times", "it", "was", "the", "worst", "of", "times"]


def sound(directory, **options):
    """Tokenize two small inputs, with rejected records, in several units; return the prefix."""
    for name, count in (("a", 40), ("b", 25)):
        records = [{"text": " ".join(WORDS[i % 7 : i % 7 + i % 5])} for i in range(count)]
        lines = [json.dumps(record) for record in records]
        lines[7] = '{"text": 7}'
        (directory / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    os.makedirs(directory / "data", exist_ok=True)
    prefix = str(directory / "data" / "web")
    inputs = [str(directory / "a.jsonl"), str(directory / "b.jsonl")]
    options = {"on_error": "skip", "workers": 1, "unit_size": 500, **options}
    run_tokenize(inputs, prefix, **options)
    return prefix


def foreign(directory):
    """Return the prefix of a pair of files without a manifest."""
    prefix = sound(directory)
    shutil.rmtree(f"{prefix}.tokshard")
    return prefix


def header(prefix):
    """Return the number of sequences and of boundaries of documents."""
    return struct.unpack_from("<QQ", Path(f"{prefix}.idx").read_bytes(), 18)


def replace_tokens(prefix, change):
    """Change the tokens, and nothing else."""
    path = Path(f"{prefix}.bin")
    content = bytearray(path.read_bytes())
    change(memoryview(content).cast("H"))
    path.write_bytes(content)


def sequence_pointers(prefix):
    return 34 + 4 * header(prefix)[0]


def _documents(prefix):
    return 34 + 12 * header(prefix)[0]


def unreadable(directory):
    prefix = sound(directory)
    os.unlink(f"{prefix}.idx")
    os.mkdir(f"{prefix}.idx")
    return prefix


def unfinished(directory):
    prefix = sound(directory)
    os.mkdir(f"{prefix}.tokshard/work")
    return prefix


def unfinished_from_the_start(directory):
    os.makedirs(directory / "data/web.tokshard/work")
    return str(directory / "data/web")


class Meddler(SilentProgress):
    """Writes to a dataset while it is verified."""

    def __init__(self, prefix):
        self._path = f"{prefix}.bin"

    def update(self, state):
        flip(self._path, 3)


def bin_missing(directory):
    prefix = sound(directory)
    os.unlink(f"{prefix}.bin")
    return prefix


def idx_missing(directory):
    prefix = sound(directory)
    os.unlink(f"{prefix}.idx")
    return prefix


def idx_header(directory):
    prefix = sound(directory)
    flip(f"{prefix}.idx", 3)
    return prefix


def idx_short(directory):
    prefix = foreign(directory)
    Path(f"{prefix}.idx").write_bytes(b"MMIDIDX")
    return prefix


def idx_version(directory):
    prefix = sound(directory)
    poke(f"{prefix}.idx", 9, "<Q", 2)
    return prefix


def idx_dtype(directory):
    prefix = sound(directory)
    poke(f"{prefix}.idx", 17, "<B", 9)
    return prefix


def idx_count(directory):
    prefix = sound(directory)
    poke(f"{prefix}.idx", 26, "<Q", 0)
    return prefix


def idx_size(directory):
    prefix = sound(directory)
    cut(f"{prefix}.idx")
    return prefix


def idx_length(directory):
    prefix = sound(directory)
    poke(f"{prefix}.idx", 34 + 4 * 5, "<i", -1)
    return prefix


def idx_pointer(directory):
    prefix = sound(directory)
    flip(f"{prefix}.idx", sequence_pointers(prefix) + 8 * 5)
    return prefix


def idx_document(directory):
    prefix = sound(directory)
    poke(f"{prefix}.idx", _documents(prefix) + 8 * 5, "<q", 2**40)
    return prefix


def several_at_once(directory):
    """Four defects of the index, of which a reader would tell the first."""
    prefix = foreign(directory)
    poke(f"{prefix}.idx", 9, "<Q", 2)
    poke(f"{prefix}.idx", 34 + 4 * 5, "<i", -1)
    poke(f"{prefix}.idx", sequence_pointers(prefix) + 8 * 20, "<q", 1)
    poke(f"{prefix}.idx", _documents(prefix), "<q", 1)
    return prefix


def bin_size(directory):
    prefix = sound(directory)
    cut(f"{prefix}.bin", 2)
    return prefix


def bin_of_another(directory):
    prefix = foreign(directory)
    Path(f"{prefix}.bin").write_bytes(Path(f"{prefix}.bin").read_bytes() * 2)
    return prefix


def adopted_and_changed(directory):
    from tokshard.checks.commands.verify import verify
    from tokshard.checks.verify.options import VerifyOptions

    prefix = foreign(directory)
    verify(VerifyOptions(path=prefix, adopt=True))
    flip(f"{prefix}.bin", 100)
    return prefix


def manifest_damaged(directory):
    prefix = sound(directory)
    cut(f"{prefix}.tokshard/manifest.json", 20)
    return prefix


def manifest_older(directory):
    prefix = sound(directory)
    age(f"{prefix}.tokshard/manifest.json")
    return prefix


def manifest_without_units(directory):
    prefix = sound(directory)
    edit_manifest(prefix, lambda value: value["files"].pop("units"))
    return prefix


def manifest_changed(directory):
    prefix = sound(directory)
    path = Path(f"{prefix}.tokshard/manifest.json")
    path.write_bytes(path.read_bytes().replace(b'"name": "tokshard"', b'"name": "tokshart"'))
    return prefix


def manifest_reformatted(directory):
    prefix = sound(directory)
    path = Path(f"{prefix}.tokshard/manifest.json")
    path.write_text(json.dumps(json.loads(path.read_bytes())))
    return prefix


def manifest_count(directory):
    prefix = sound(directory)
    edit_manifest(prefix, lambda value: value["counts"].update(records=value["counts"]["records"] + 1))
    return prefix


def manifest_index(directory):
    prefix = sound(directory)

    def change(value):
        value["dataset"]["dtype"] = "int32"
        value["counts"]["longest_sequence"] = 1

    edit_manifest(prefix, change)
    return prefix


def file_missing(directory):
    prefix = sound(directory)
    os.unlink(f"{prefix}.tokshard/provenance.bin")
    return prefix


def file_size(directory):
    prefix = sound(directory)
    cut(f"{prefix}.tokshard/provenance.bin", 8)
    return prefix


def file_unlisted(directory):
    prefix = sound(directory, provenance=False)
    Path(f"{prefix}.tokshard/provenance.bin").write_bytes(bytes(8))
    return prefix


def units_damaged(directory):
    prefix = sound(directory)
    path = Path(f"{prefix}.tokshard/units.jsonl")
    path.write_bytes(path.read_bytes().replace(b'"unit":1,', b'"unit":-1,', 1))
    return prefix


def units_count(directory):
    prefix = sound(directory)

    def change(lines):
        lines[1]["counts"]["lines"] += 1

    edit_units(prefix, change)
    return prefix


def units_index(directory):
    prefix = sound(directory)

    def move(lines):
        lines[0]["counts"]["tokens"] -= 1
        lines[1]["counts"]["tokens"] += 1

    edit_units(prefix, move)
    return prefix


def units_digest(directory):
    prefix = sound(directory)
    edit_units(prefix, lambda lines: lines[1].update(tokens_xxh3_128="0" * 32))
    return prefix


def bin_digest(directory):
    prefix = sound(directory)
    flip(f"{prefix}.bin", 77)
    return prefix


def idx_digest(directory):
    """A boundary between documents that moved and stayed in order: no structure shows it."""
    prefix = sound(directory)
    path = f"{prefix}.idx"
    content, begin = Path(path).read_bytes(), _documents(prefix)
    ends = struct.unpack_from(f"<{header(prefix)[1]}q", content, begin)
    # An empty document and one of a sequence change places.
    moved = next(k for k in range(1, len(ends) - 1) if ends[k - 1] == ends[k] < ends[k + 1])
    poke(path, begin + 8 * moved, "<q", ends[moved + 1])
    return prefix


def file_digest(directory):
    prefix = sound(directory)
    flip(f"{prefix}.tokshard/rejected.jsonl", -3)
    return prefix


def token_range(directory):
    prefix = sound(directory)
    replace_tokens(prefix, lambda tokens: tokens.__setitem__(9, 60000))
    return prefix


def negative_token(directory):
    prefix = str(directory / "masked")
    Plain("int32", [[[5, -100, 6]]]).write(prefix)
    return prefix


def floating_point_tokens(directory):
    prefix = str(directory / "float")
    Plain("float32", [[[0.5, 1.0]]]).write(prefix)
    return prefix


def eod_missing(directory):
    prefix = sound(directory)
    replace_tokens(prefix, lambda tokens: tokens.__setitem__(len(tokens) - 1, 65))
    return prefix


def eod_count(directory):
    prefix = sound(directory)
    edit_manifest(prefix, lambda value: value["counts"].update(eod_in_text=3))
    return prefix


def edited_tokenizer(directory, edit):
    """Return the path of the sample tokenizer after a change of its definition."""
    definition = json.loads(Path(TOKENIZER).read_text())
    edit(definition)
    path = directory / "edited/tokenizer.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(definition))
    return str(path)


def with_template(directory):
    """Return the path of a tokenizer that adds BOS before each text, with another special token."""

    def edit(definition):
        bos, other = ({**definition["added_tokens"][0], "content": name} for name in ("<s>", "<|im_start|>"))
        definition["added_tokens"] += [bos, other]
        index = len(definition["model"]["vocab"])
        definition["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<s>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [index], "tokens": ["<s>"]}},
        }

    return edited_tokenizer(directory, edit)


def corpus(directory, texts, name="corpus.jsonl"):
    """Write texts as records; return the path."""
    path = directory / name
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(path)


def undecodable(directory):
    """Tokens in a gap of the vocabulary."""

    def leave_gap(definition):
        vocabulary = definition["model"]["vocab"]
        last = max(vocabulary, key=vocabulary.get)
        vocabulary[last] += 5

    tokenizer = edited_tokenizer(directory, leave_gap)
    prefix = sound(directory, tokenizer=tokenizer)
    gap = len(json.loads(Path(tokenizer).read_text())["model"]["vocab"])
    replace_tokens(prefix, lambda tokens: tokens.__setitem__(0, gap))
    return prefix


def special_in_text(directory):
    """A text that spells special tokens, which become control tokens."""
    texts = ["plain", "a <|endoftext|> b", "", "<|im_start|>user", "<s>begin"]
    prefix = str(directory / "web")
    tokenizer = with_template(directory)
    run_tokenize([corpus(directory, texts)], prefix, tokenizer=tokenizer, special_tokens=True, workers=1)
    return prefix


def bos_missing(directory):
    """A text without the BOS token that its manifest records for all texts."""
    prefix = sound(directory, tokenizer=with_template(directory), special_tokens=True)
    replace_tokens(prefix, lambda tokens: tokens.__setitem__(0, 65))
    return prefix


def bos_never(directory):
    """A dataset without BOS, whose manifest records that every text begins with it."""
    prefix = sound(directory, tokenizer=with_template(directory))
    edit_manifest(prefix, lambda value: value["options"].update(special_tokens=True))
    return prefix


def eod_never(directory):
    """A dataset without EOD, whose manifest records that every document ends with it."""
    prefix = sound(directory, append_eod=False)
    edit_manifest(prefix, lambda value: value["options"].update(append_eod=True))
    return prefix


def provenance_order(directory):
    prefix = sound(directory)
    poke(f"{prefix}.tokshard/provenance.bin", 16 * 3, "<q", 1)
    return prefix


def rejected_count(directory):
    prefix = sound(directory)
    path = Path(f"{prefix}.tokshard/rejected.jsonl")
    path.write_bytes(path.read_bytes().replace(b'"reason":"', b'"reason":"x', 1))
    assert b'"reason":"x' in path.read_bytes()
    return prefix


def input_missing(directory):
    prefix = sound(directory)
    os.unlink(directory / "a.jsonl")
    return prefix


def merged_eod_missing(directory):
    """A merge of two datasets whose documents end with EOD; one of them does not."""
    parts = []
    for name in "ab":
        (directory / name).mkdir()
        parts.append(sound(directory / name))
    prefix = str(directory / "merged")
    merge(MergeOptions(inputs=parts, output=prefix))
    replace_tokens(prefix, lambda tokens: tokens.__setitem__(len(tokens) - 1, 65))
    return prefix


def shuffled(directory):
    """A sound dataset whose documents are in a random order."""
    merge(MergeOptions(inputs=sound(directory), output=(prefix := str(directory / "shuffled")), shuffle=7))
    return prefix


def order_incomplete(directory):
    prefix = shuffled(directory)
    path = Path(f"{prefix}.tokshard/order.bin")
    content = path.read_bytes()
    path.write_bytes(content[:8] + content[:8] + content[16:])
    return prefix


def piece_tokens(directory):
    prefix = shuffled(directory)
    flip(f"{prefix}.bin", 9)
    return prefix


def piece_count(directory):
    prefix = shuffled(directory)
    path = Path(f"{prefix}.tokshard/pieces.jsonl")
    path.write_text(path.read_text().replace('"documents":63', '"documents":62'))
    return prefix


def input_changed(directory):
    prefix = sound(directory)
    flip(directory / "a.jsonl", 600)
    return prefix


def input_longer(directory):
    prefix = sound(directory)
    with open(directory / "b.jsonl", "a") as file:
        file.write('{"text": "more"}\n')
    return prefix
