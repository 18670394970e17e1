"""Runner of litdata: optimize() with the token loader, StreamingDataset."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterable, Iterator
from typing import Any

import harness


def encode(path: str, *, tokenizer: str, eod: int) -> Iterator[Any]:
    """Yield the tokens of the documents of a file."""
    import json

    import tokenizers
    import torch

    library = tokenizers.Tokenizer.from_file(tokenizer)

    def encoded(texts: list[str]) -> Iterator[Any]:
        for encoding in library.encode_batch_fast(texts, add_special_tokens=False):
            yield torch.tensor([*encoding.ids, eod], dtype=torch.int32)

    texts = []
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            texts.append(json.loads(line)["text"])
            if len(texts) == 1000:
                yield from encoded(texts)
                texts = []
    yield from encoded(texts)


def tokens(job: harness.Job) -> None:
    """Tokenize; the workers share the files."""
    from litdata import TokensLoader, optimize

    os.environ["TOKENIZERS_PARALLELISM"] = "false" if job.workers > 1 else "true"
    optimize(
        fn=functools.partial(encode, tokenizer=job.tokenizer, eod=job.eod),
        inputs=job.files,
        output_dir=f"{job.output}/data",
        chunk_bytes="64MB",
        item_loader=TokensLoader(),
        num_workers=job.workers,
        fast_dev_run=False,
    )


def read(job: harness.Job) -> None:
    """Read all documents by reading the stream in blocks of one token less than the smallest file has."""
    import json
    from pathlib import Path

    import numpy as np

    def documents() -> Iterable[Any]:
        folder = Path(job.output, "data")
        index = json.loads((folder / "index.json").read_text())
        for chunk in index["chunks"]:
            content = (folder / chunk["filename"]).read_bytes()
            items = int(np.frombuffer(content, "<u4", 1)[0])
            offsets = np.frombuffer(content, "<u4", items + 1, 4).tolist()
            if offsets[-1] != len(content):
                raise ValueError(f"{chunk['filename']} has {len(content):,} bytes instead of {offsets[-1]:,}")
            for begin, end in itertools.pairwise(offsets):
                yield np.frombuffer(content[begin:end], "<i4")

    harness.count(job, documents())


def convert(job: harness.Job) -> None:
    """Write chunks from tokens."""
    from litdata import TokensLoader
    from litdata.streaming import Cache

    os.makedirs(job.output, exist_ok=True)
    import torch

    cache = Cache(job.output, chunk_bytes="64MB", item_loader=TokensLoader(job.length + 1))
    for number, document in enumerate(job.documents()):
        cache[number] = torch.from_numpy(document.astype("int32"))
    cache.done()
    cache.merge()


def load(job: harness.Job) -> None:
    """Read batches of tensors."""

    def opened() -> Iterable[Any]:
        from litdata import StreamingDataLoader, StreamingDataset, TokensLoader

        dataset = StreamingDataset(
            job.sources[0][1],
            item_loader=TokensLoader(job.length + 1),
            shuffle=True,
            drop_last=True,
            seed=job.seed,
        )
        return StreamingDataLoader(dataset, batch_size=job.batch, num_workers=job.workers)

    harness.drain(job, opened, lambda batch: batch)


if __name__ == "__main__":
    harness.main(tokens=tokens, read=read, convert=convert, load=load)
