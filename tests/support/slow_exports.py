"""The files of other trainers, written in plain Python from their descriptions: {file name: content}.

Compressed files are given by their decoded content, Parquet files by their rows.
"""

import gzip
import struct
from pathlib import Path

LETTERS = {"uint8": "B", "uint16": "H", "uint32": "I", "uint64": "Q"}


def packed(dtype, tokens):
    return struct.pack(f"<{len(tokens)}{LETTERS[dtype]}", *tokens)


def olmo(documents, *, dtype, limit, source, name="part-0"):
    shards, tokens = [], 0
    for number, document in enumerate(documents):
        if not document:
            continue
        if not shards or tokens + len(document) >= limit:
            shards.append([])
            tokens = 0
        shards[-1].append((number, document))
        tokens += len(document)
    files = {}
    for place, shard in enumerate(shards):
        lines, position = [], 0
        for number, document in shard:
            lines.append(f"{position},{position + len(document)},{number},{source},{number + 1}\r\n")
            position += len(document)
        content = [token for _, document in shard for token in document]
        files[f"{name}-{place:05d}.npy"] = packed(dtype, content)
        files[f"{name}-{place:05d}.csv.gz"] = "".join(lines).encode()
    return files


def nanogpt(documents, *, dtype, limit, name, bos, eod, val_shards=1, header="fineweb"):
    stream = []
    for document in documents:
        ends = bool(document) and document[-1] == eod
        stream += [bos, *(document[:-1] if ends else document)]
    files = {}
    for number, first in enumerate(range(0, len(stream), limit)):
        tokens = stream[first : first + limit]
        split = "val" if number < val_shards else "train"
        start = [20240520, 1, len(tokens), 0]
        if header == "automodel":
            start = [278895051, 1, len(tokens), {"uint16": 2, "uint32": 4}[dtype]]
        stem = f"{name}_{split}_{number:06d}"
        files[f"{stem}.bin"] = struct.pack("<256i", *start, *[0] * 252) + packed(dtype, tokens)
    return files


def datatrove(documents, *, dtype, limit, name, tokenizer, people):
    """``people``: the third line of the metadata of a number of tokens."""
    shards = [[]]
    for document in documents:
        if sum(map(len, shards[-1])) >= limit:
            shards.append([])
        shards[-1].append(document)
    size = {"uint16": 2, "uint32": 4}[dtype]

    def metadata(tokens):
        return f"{tokenizer}|{size}\n{tokens}\n{people(tokens)}".encode()

    files = {f"{name}.ds.metadata": metadata(sum(map(len, documents)))}
    for number, shard in enumerate(shards):
        ends = [sum(map(len, shard[: place + 1])) for place in range(len(shard))]
        stem = f"{number:03d}_{name}.ds"
        tokens = [token for document in shard for token in document]
        files[stem] = packed(dtype, tokens)
        files[f"{stem}.index"] = struct.pack(f"<{len(ends)}Q", *ends)
        files[f"{stem}.metadata"] = metadata(len(tokens))
    return files


def parquet(documents, *, limit, name="train", column="document_id"):
    shards, tokens = [[]], 0
    for number, document in enumerate(documents):
        if shards[-1] and tokens + len(document) > limit:
            shards.append([])
            tokens = 0
        shards[-1].append({"input_ids": document, column: number})
        tokens += len(document)
    names = [f"{name}-{number:05d}-of-{len(shards):05d}.parquet" for number in range(len(shards))]
    return dict(zip(names, shards, strict=True))


def written(directory):
    """The files of an export, decoded, and without its manifest."""
    import pyarrow.parquet as pq

    found = {}
    for path in Path(directory).iterdir():
        if path.suffix == ".parquet":
            found[path.name] = pq.read_table(path).to_pylist()
        elif path.name.endswith(".gz"):
            found[path.name] = gzip.decompress(path.read_bytes())
        elif path.is_file():
            found[path.name] = path.read_bytes()
    return found
