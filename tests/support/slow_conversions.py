"""Documents in other trainers' files by their descriptions, a token at a time, to compare convert with."""

import csv
import io
import struct
from dataclasses import dataclass

from support.slow_exports import packed


@dataclass
class Source:
    """Files of one format.

    Attributes:
        files: Their content by name, in order: of token files and what is beside them.
        documents: The documents of the output.
    """

    files: dict[str, bytes]
    documents: list[list[int]]

    def write(self, directory):
        directory.mkdir()
        for name, content in self.files.items():
            (directory / name).write_bytes(content)
        return directory


def header(dtype, count, *, automodel=False):
    start = [20240520, 1, count, 0]
    if automodel:
        start = [278895051, 1, count, {"uint16": 2, "uint32": 4}[dtype]]
    return struct.pack("<256i", *start, *[0] * 252)


def nanogpt(shards, *, dtype, bos, eod, treatment):
    files = {
        f"x_{'train' if number else 'val'}_{number:06d}.bin": header(
            dtype, len(tokens), automodel=dtype == "uint32"
        )
        + packed(dtype, tokens)
        for number, tokens in enumerate(shards)
    }
    documents = []
    for token in [token for tokens in shards for token in tokens]:
        if token == bos or not documents:
            documents.append([])
        if token != bos or treatment == "keep":
            documents[-1].append(token)
    if treatment == "move":
        for document in documents:
            document.append(eod)
    return Source(files, documents)


def boundary_rows(documents):
    text = io.StringIO()
    rows, position = csv.writer(text), 0
    for number, document in enumerate(documents):
        # As dolma writes them, and with ids that need quotes.
        rows.writerow([position, position + len(document), f'"{number},\n', "a.jsonl.gz", number + 1])
        position += len(document)
    return text.getvalue().encode()


def olmo(shards, *, dtype, compress):
    files = {}
    for number, documents in enumerate(shards):
        files[f"part-{number}.npy"] = packed(dtype, [token for document in documents for token in document])
        files[f"part-{number}.csv.gz"] = compress(boundary_rows(documents))
    return Source(files, [document for documents in shards for document in documents])


def datatrove(shards, *, dtype, metadata):
    files = {}
    for number, documents in enumerate(shards):
        tokens = [token for document in documents for token in document]
        ends = [sum(map(len, documents[: place + 1])) for place in range(len(documents))]
        name = f"{number}_x.ds"
        files[name] = packed(dtype, tokens)
        files[f"{name}.index"] = struct.pack(f"<{len(ends)}Q", *ends)
        if metadata:
            size = {"uint16": 2, "uint32": 4}[dtype]
            files[f"{name}.metadata"] = f"gpt|2|{size}\n{len(tokens)}\n{len(tokens)} T".encode()
    return Source(files, [document for documents in shards for document in documents])


def ended(shards, *, dtype, eod):
    """Shards without boundaries: documents end with EOD or their file."""
    files, documents = {}, []
    for number, tokens in enumerate(shards):
        files[f"part-{number}.npy"] = packed(dtype, tokens)
        is_open = False
        for token in tokens:
            if not is_open:
                documents.append([])
            documents[-1].append(token)
            is_open = token != eod
    return Source(files, documents)
