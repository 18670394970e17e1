"""Exports against the writers and readers of other trainers, and their own files converted.

OLMo-core, dolma, datatrove and NeMo Automodel are imported from their packages. The script that writes
modded-nanogpt's files is no package: its loop over documents is here in our words.
"""

from __future__ import annotations

import gzip
import random
import struct
from pathlib import Path

import numpy as np
import pytest

from oracle import natives
from oracle.support import megatron_or_skip
from support.plain_datasets import Plain
from tokshard import ConvertOptions, ExportOptions, convert, export

pytestmark = pytest.mark.oracle

EOD, BOS = 50, 51
ROUNDS = 5
DTYPES = {"uint16": "uint16", "int32": "uint32"}


def make_documents(rng, *, count=None, with_empty=True, eod_inside=False):
    """Documents that end with EOD, of ids up to 65,535."""
    ids = [*range(EOD), 60000, 65535, *([EOD] if eod_inside else [])]
    count = count or rng.randrange(1, 40)
    documents = [[*rng.choices(ids, k=rng.randrange(30)), EOD] for _ in range(count)]
    if with_empty:
        documents += [[] for _ in range(rng.randrange(3))]
    rng.shuffle(documents)
    return documents


def write_dataset(prefix, documents, dtype):
    Plain(dtype, [[document] if document else [] for document in documents]).write(prefix)
    return prefix


def files_of(directory):
    """The files of a directory; compressed ones decoded."""
    return {
        path.name: gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        for path in Path(directory).iterdir()
        if path.is_file()
    }


def contents(prefix):
    return [Path(f"{prefix}{suffix}").read_bytes() for suffix in (".bin", ".idx")]


def by_megatron(megatron, prefix, documents, dtype):
    builder = megatron.IndexedDatasetBuilder(f"{prefix}.bin", getattr(np, dtype))
    for document in documents:
        builder.add_document(np.array(document, dtype), [len(document)] if document else [])
    builder.finalize(f"{prefix}.idx")
    return contents(prefix)


def write_dolma(directory, documents, dtype, limit, source):
    """Documents by dolma's writer: a file is full when the next document would reach its limit."""
    natives.module_alone("dolma.core.data_types")
    writers = natives.module_alone("dolma.tokenizer.memmap_writer")
    outputs = natives.module_alone("dolma.tokenizer.data_types")
    left = [
        outputs.TokenizerOutput.from_tokens(str(number), source, number + 1, document)
        for number, document in enumerate(documents)
        if document
    ]
    number = 0
    while left:
        path = str(directory / f"part-0-{number:05d}")
        with writers.MemmapWriter(path, np.dtype(dtype), limit) as writer:
            left = writer.write_many(left)
        number += 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_olmo_files_are_dolmas(tmp_path, dtype):
    for number in range(ROUNDS):
        rng = random.Random(f"{dtype} {number}")
        documents, limit = make_documents(rng, eod_inside=True), rng.choice([32, 100, 10000])
        prefix = write_dataset(tmp_path / f"{number}", documents, dtype)
        ours, theirs = tmp_path / f"{number}-ours", tmp_path / f"{number}-theirs"
        export(ExportOptions(source=prefix, to="olmo", output=ours, shard_tokens=limit))
        theirs.mkdir()
        write_dolma(theirs, documents, DTYPES[dtype], limit, f"{number}")
        assert files_of(ours) == files_of(theirs)


@pytest.mark.parametrize("dtype", DTYPES)
def test_olmo_core_reads_the_tokens_and_documents(tmp_path, dtype):
    data, utils = natives.package("olmo_core.data"), natives.package("olmo_core.data.utils")
    rng, length = random.Random(dtype), 8
    documents = make_documents(rng, count=30)
    prefix = write_dataset(tmp_path / "web", documents, dtype)
    export(ExportOptions(source=prefix, to="olmo", output=tmp_path / "out", shard_tokens=100))
    paths = sorted((tmp_path / "out").glob("*.npy"))
    assert len(paths) > 1
    unsigned = getattr(np, DTYPES[dtype])
    dataset = data.NumpyFSLDataset(
        *map(str, paths),
        sequence_length=length,
        pad_token_id=0,
        eos_token_id=EOD,
        vocab_size=65536,
        dtype=unsigned,
        generate_doc_lengths=True,
    )
    dataset.work_dir = str(tmp_path / "work")
    dataset.prepare()
    expected = []
    for path in paths:
        tokens = np.fromfile(path, unsigned).astype(np.int64)
        expected += [tokens[first : first + length] for first in range(0, len(tokens) - length + 1, length)]
    assert len(dataset) == len(expected)
    for number, tokens in enumerate(expected):
        item = dataset[number]
        assert item["input_ids"].tolist() == tokens.tolist()
        ends = np.flatnonzero(tokens == EOD) + 1
        lengths = np.diff([0, *ends, *([length] if length not in ends else [])])
        assert item["doc_lens"].tolist() == lengths.tolist()
    found = []
    for path in paths:
        tokens = np.fromfile(path, unsigned)
        by_rows = [*utils.iter_document_indices(str(path), use_array_if_local=False, dtype=unsigned)]
        by_tokens = [*utils.iter_document_indices(str(path), eos_token_id=EOD, dtype=unsigned)]
        assert by_rows == by_tokens
        found += [tokens[first:stop].tolist() for first, stop in by_rows]
    assert found == [document for document in documents if document]


def write_datatrove(directory, documents, token_size, name="gpt2"):
    """Documents by the class that writes datatrove's files."""
    tokens = natives.package("datatrove.pipeline.tokens.tokenizer")
    file = tokens.TokenizedFile(
        str(directory),
        "00000_x.ds",
        tokenizer_name_or_path=name,
        save_final_metadata=True,
        token_size=token_size,
    )
    for document in documents:
        file.write(document, None)
    file.close()


@pytest.mark.parametrize("dtype", DTYPES)
def test_datatrove_files_are_its_mergers(tmp_path, dtype):
    merger = natives.package("datatrove.pipeline.tokens.merger")
    for number in range(ROUNDS):
        rng = random.Random(f"{dtype} {number}")
        documents, limit = make_documents(rng, eod_inside=True), rng.choice([1, 30, 100, 10000])
        prefix = write_dataset(tmp_path / f"{number}", documents, dtype)
        ours, theirs = tmp_path / f"{number}-ours", tmp_path / f"{number}-theirs"
        export(
            ExportOptions(
                source=prefix, to="datatrove", output=ours, shard_tokens=limit, tokenizer_name="gpt2"
            )
        )
        write_datatrove(tmp_path / f"{number}-in", documents, 2 if dtype == "uint16" else 4)
        steps = merger.DocumentTokenizerMerger(
            str(tmp_path / f"{number}-in"),
            str(theirs),
            f"{number}",
            max_tokens_per_file=limit,
            shuffle=False,
            progress=False,
        )
        steps.run()
        assert files_of(ours) == files_of(theirs)


@pytest.mark.parametrize("dtype", DTYPES)
def test_datatrove_reads_the_tokens_and_positions(tmp_path, dtype):
    datasets = natives.package("datatrove.utils.dataset")
    documents = make_documents(random.Random(dtype), count=30, with_empty=False)
    prefix = write_dataset(tmp_path / "web", documents, dtype)
    export(ExportOptions(source=prefix, to="datatrove", output=tmp_path / "out", shard_tokens=100))
    length, size = 7, np.dtype(dtype).itemsize
    paths = sorted((tmp_path / "out").glob("*.ds"))
    assert len(paths) > 1
    expected, left = [], [*documents]
    for path in paths:
        tokens, positions = [], []
        while len(tokens) * size < path.stat().st_size:
            positions += range(len(left[0]))
            tokens += left.pop(0)
        cut = range(0, len(tokens) - length, length + 1)
        expected += [
            (tokens[first : first + length + 1], positions[first : first + length + 1]) for first in cut
        ]
    for eod in (None, EOD):
        dataset = datasets.DatatroveFolderDataset(
            str(tmp_path / "out"),
            length,
            filename_pattern="*.ds",
            token_size=size,
            return_positions=True,
            positions_from_eos_token_id=eod,
        )
        assert len(dataset) == len(expected)
        for number, (tokens, positions) in enumerate(expected):
            item = dataset[number]
            assert item["input_ids"].tolist() == tokens
            # Positions of a sample begin at 0.
            first = next(
                (place for place, value in enumerate(positions) if place and not value), len(positions)
            )
            assert item["positions"].tolist() == [*range(first), *positions[first:]]


def write_fineweb(directory, name, documents, shard_size):
    """Documents as modded-nanogpt's script writes them: BOS first, in shards of a fixed size."""
    shard, number = [], 0

    def flush():
        nonlocal number, shard
        split = "train" if number else "val"
        content = np.zeros(256, np.int32)
        content[:3] = 20240520, 1, len(shard)
        path = directory / f"{name}_{split}_{number:06d}.bin"
        path.write_bytes(content.tobytes() + np.array(shard, np.uint16).tobytes())
        shard, number = [], number + 1

    for document in documents:
        tokens = [BOS, *document]
        while len(shard) + len(tokens) >= shard_size:
            room = shard_size - len(shard)
            shard += tokens[:room]
            tokens = tokens[room:]
            flush()
        shard += tokens
    if shard:
        flush()


def texts_of(documents):
    return [document[:-1] if document[-1:] == [EOD] else document for document in documents]


def test_nanogpt_files_are_those_of_the_script(tmp_path):
    for number in range(ROUNDS):
        rng = random.Random(number)
        documents, limit = make_documents(rng), rng.choice([10, 33, 100, 10000])
        prefix = write_dataset(tmp_path / f"{number}", documents, "uint16")
        ours, theirs = tmp_path / f"{number}-ours", tmp_path / f"{number}-theirs"
        export(
            ExportOptions(
                source=prefix, to="nanogpt", output=ours, shard_tokens=limit, eod_id=EOD, bos_id=BOS
            )
        )
        theirs.mkdir()
        write_fineweb(theirs, f"{number}", texts_of(documents), limit)
        assert files_of(ours) == files_of(theirs)


@pytest.mark.parametrize("dtype", DTYPES)
def test_automodel_reads_the_tokens_and_begins_at_bos(tmp_path, dtype):
    native = natives.module_alone("nemo_automodel.components.datasets.llm.nanogpt_dataset")
    documents = make_documents(random.Random(dtype), count=30)
    prefix = write_dataset(tmp_path / "web", documents, dtype)
    export(
        ExportOptions(
            source=prefix,
            to="nanogpt",
            output=tmp_path / "out",
            shard_tokens=200,
            eod_id=EOD,
            bos_id=BOS,
            header="automodel",
        )
    )
    stream = [token for text in texts_of(documents) for token in [BOS, *text]]
    paths = sorted((tmp_path / "out").glob("*.bin"), key=lambda path: path.name[-10:])
    assert len(paths) > 1
    read = [native.load_bin_shard(path).numpy().astype(np.int64) for path in paths]
    assert np.concatenate(read).tolist() == stream
    length = 5
    for tokens, path in zip(read, paths, strict=True):
        dataset = native.NanogptDataset([str(path)], length, bos_token=BOS, align_to_bos=True)
        expected, place = [], 0
        while True:
            bos = np.flatnonzero(tokens[place:] == BOS)
            place += int(bos[0]) if len(bos) else len(tokens)
            if place + length >= len(tokens):
                break
            expected.append(tokens[place : place + length + 1].tolist())
            place += length + 1
        items = dataset._process_file_tokens(str(path), False, 0, None)
        assert [[*item["input_ids"], item["labels"][-1]] for item in items] == expected


@pytest.mark.parametrize("dtype", DTYPES)
def test_their_own_files_are_converted_to_what_megatron_writes(tmp_path, dtype):
    natives.module_alone("dolma.core.data_types")
    megatron = megatron_or_skip()
    rng = random.Random(dtype)
    documents = make_documents(rng, eod_inside=True)
    filled = [document for document in documents if document]
    unsigned = DTYPES[dtype]

    def check(source, form, expected, **options):
        report = convert(
            ConvertOptions(sources=source, format=form, output=tmp_path / f"{source.name}-ours", **options)
        )
        theirs = by_megatron(
            megatron, tmp_path / f"{source.name}-theirs", expected, report.output.dataset.dtype
        )
        assert report.output.dataset.dtype == dtype
        assert contents(tmp_path / f"{source.name}-ours") == theirs

    (tmp_path / "dolma").mkdir()
    write_dolma(tmp_path / "dolma", documents, unsigned, 100, 'a "source", quoted\nand divided')
    check(tmp_path / "dolma", "olmo", filled, eod_id=EOD)
    write_datatrove(tmp_path / "trove", documents, np.dtype(unsigned).itemsize)
    check(tmp_path / "trove", "datatrove", documents)
    if dtype == "uint16":
        (tmp_path / "fineweb").mkdir()
        write_fineweb(tmp_path / "fineweb", "fineweb", texts_of(documents), 64)
        expected = [[*text, EOD] for text in texts_of(documents)]
        check(tmp_path / "fineweb", "nanogpt", expected, bos_id=BOS, eod_id=EOD, split="all")


def test_files_that_datatrove_shuffled_are_converted_in_their_order(tmp_path):
    merger = natives.package("datatrove.pipeline.tokens.merger")
    documents = make_documents(random.Random(1), count=30, with_empty=False)
    write_datatrove(tmp_path / "in", documents, 2)
    merger.DocumentTokenizerMerger(
        str(tmp_path / "in"),
        str(tmp_path / "merged"),
        "x",
        max_tokens_per_file=60,
        shuffle=True,
        seed=3,
        progress=False,
    ).run()
    convert(ConvertOptions(sources=tmp_path / "merged", format="datatrove", output=tmp_path / "out"))
    found, begin = [], 0
    tokens = np.fromfile(tmp_path / "out.bin", np.uint16).tolist()
    for path in sorted((tmp_path / "merged").glob("*.ds")):
        content = np.fromfile(f"{path}.index", np.uint64).tolist()
        found += [
            tokens[begin + first : begin + stop] for first, stop in zip([0, *content], content, strict=False)
        ]
        begin += content[-1]
    assert sorted(found) == sorted(documents)
    lengths = struct.unpack_from(f"<{len(found)}i", (tmp_path / "out.idx").read_bytes(), 34)
    assert list(lengths) == [len(document) for document in found]
