"""Programs that `scripts/bench tokenize` compares with.

    encoders.py NAME PROCESSES TOKENIZER INPUT [OUTPUT DTYPE]

``fastokens`` and ``tokenizers`` are the bare encoders: each process parses its share of the texts and encodes
the first ones to warm up; the time printed is that of encoding all of them. ``pool`` does what Megatron's
preprocess_data.py does: a pool of processes, one document at a time, lists of ids back to the parent, which
writes them. ``unsafe`` is the fast encoder between a reading and a writing thread, with nothing checked,
synced or indexed.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from typing import Any

BATCH_BYTES = 1 << 20
WARM_UP_BATCHES = 16


def batches(path: str, share: int, shares: int) -> list[list[str]]:
    """Return a share of the texts, in batches of about 1 MiB of JSON."""
    import orjson

    found, batch, size, number = [], [], 0, 0
    with open(path, "rb") as file:
        for line in file:
            if number % shares == share:
                batch.append(orjson.loads(line)["text"])
            size += len(line)
            if size >= BATCH_BYTES:
                found += [batch] if batch else []
                batch, size, number = [], 0, number + 1
    return [*found, batch]


def encode_share(
    name: str, tokenizer: str, path: str, share: int, shares: int, gate: Any, times: Any
) -> None:
    """Encode a share of the batches after a warm-up and a barrier.

    Each process parses its own texts: those of a parent would be copied page by page when they are used.
    The warm-up encodes texts that are parsed again for the measurement, because a `str` keeps its UTF-8.
    """
    os.environ["FASTOKENS_BPE_THREADS"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if name == "fastokens":
        import fastokens

        with open(tokenizer) as file:
            encode = fastokens.Tokenizer.from_json_str(file.read()).encode_batch_flat
    else:
        import tokenizers

        library = tokenizers.Tokenizer.from_file(tokenizer)

        def encode(batch: list[str]) -> object:
            return [encoding.ids for encoding in library.encode_batch_fast(batch, add_special_tokens=False)]

    texts = batches(path, share, shares)
    for batch in texts[:WARM_UP_BATCHES]:
        encode([(text + " ")[:-1] for text in batch])
    gate.wait()
    started = time.time()
    for batch in texts:
        encode(batch)
    times.put((started, time.time()))


def bare(name: str, processes: int, tokenizer: str, path: str) -> float:
    """Return the wall time of encoding in ``processes`` processes."""
    context = multiprocessing.get_context("spawn")
    gate, times = context.Barrier(processes), context.Queue()
    workers = [
        context.Process(target=encode_share, args=(name, tokenizer, path, k, processes, gate, times))
        for k in range(processes)
    ]
    for worker in workers:
        worker.start()
    spans = [times.get() for _ in workers]
    for worker in workers:
        worker.join()
    return max(end for _, end in spans) - min(start for start, _ in spans)


_library = None


def _open(tokenizer: str) -> None:
    global _library  # noqa: PLW0603 - how a pool's processes keep what they load
    import tokenizers

    _library = tokenizers.Tokenizer.from_file(tokenizer)


def _encode_line(line: str) -> tuple[list[int], int]:
    return _library.encode(json.loads(line)["text"]).ids, len(line)


def pool(processes: int, tokenizer: str, path: str, output: str, dtype: str) -> None:
    """Tokenize as Megatron's preprocess_data.py does."""
    import numpy as np

    lengths = []
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with (
        open(path, encoding="utf-8") as file,
        open(output, "wb") as bin_file,
        multiprocessing.get_context("fork").Pool(processes, _open, (tokenizer,)) as workers,
    ):
        for ids, _ in workers.imap(_encode_line, file, 32):
            ids.append(0)
            array = np.array(ids, dtype)
            bin_file.write(array.tobytes())
            lengths.append(array.size)


def unsafe(tokenizer: str, path: str, output: str, dtype: str) -> None:
    """Tokenize in one process with threads, checking nothing."""
    import queue
    import threading

    import fastokens
    import numpy as np
    import orjson

    with open(tokenizer) as file:
        library = fastokens.Tokenizer.from_json_str(file.read())
    parsed: queue.Queue = queue.Queue(3)
    encoded: queue.Queue = queue.Queue(3)

    def read() -> None:
        rest = b""
        with open(path, "rb", buffering=0) as source:
            while chunk := source.read(8 << 20):
                *lines, rest = (rest + chunk).split(b"\n")
                parsed.put([orjson.loads(line)["text"] for line in lines])
        parsed.put(None)

    def write() -> None:
        with open(output, "wb", buffering=0) as target:
            while (item := encoded.get()) is not None:
                ids, offsets = (
                    np.frombuffer(item[0], np.uint32),
                    np.frombuffer(item[1], np.uint64).astype(np.int64),
                )
                tokens = np.empty(len(ids) + len(offsets) - 1, dtype)
                mask = np.ones(len(tokens), bool)
                mask[offsets[1:] + np.arange(len(offsets) - 1)] = False
                tokens[mask] = ids
                tokens[~mask] = 0
                target.write(tokens.data)

    threads = [threading.Thread(target=read), threading.Thread(target=write)]
    for thread in threads:
        thread.start()
    while (texts := parsed.get()) is not None:
        encoded.put(library.encode_batch_flat(texts))
    encoded.put(None)
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    name, processes, tokenizer, source = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
    if name == "pool":
        pool(processes, tokenizer, source, *sys.argv[5:])
    elif name == "unsafe":
        unsafe(tokenizer, source, *sys.argv[5:])
    else:
        print(json.dumps({"seconds": bare(name, processes, tokenizer, source)}))
