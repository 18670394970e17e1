"""Runner of Hugging Face datasets: load_dataset, map with a batched tokenizer, save_to_disk."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

import harness


class Encode:
    """Tokenizes a batch; the library is opened once in each process."""

    library: Any = None

    def __init__(self, tokenizer: str, eod: int) -> None:
        self.tokenizer, self.eod = tokenizer, eod

    def __call__(self, texts: list[str]) -> dict[str, list[list[int]]]:
        """Return the tokens of texts."""
        if Encode.library is None:
            import tokenizers

            Encode.library = tokenizers.Tokenizer.from_file(self.tokenizer)
        encodings = Encode.library.encode_batch_fast(texts, add_special_tokens=False)
        return {"input_ids": [[*encoding.ids, self.eod] for encoding in encodings]}


def tokens(job: harness.Job) -> None:
    """Tokenize: with one process, the library's threads are used."""
    from datasets import load_dataset

    os.environ["TOKENIZERS_PARALLELISM"] = "false" if job.workers > 1 else "true"
    texts = load_dataset("json", data_files=job.files, split="train", cache_dir=f"{job.output}/cache")
    dataset = texts.map(
        Encode(job.tokenizer, job.eod),
        input_columns="text",
        batched=True,
        remove_columns=texts.column_names,
        num_proc=job.workers if job.workers > 1 else None,
    )
    dataset.save_to_disk(f"{job.output}/data")


def read(job: harness.Job) -> None:
    """Read all documents."""
    from datasets import load_from_disk

    def documents() -> Iterator[Any]:
        for row in load_from_disk(f"{job.output}/data").with_format("numpy"):
            yield row["input_ids"]

    harness.count(job, documents())


def convert(job: harness.Job) -> None:
    """Write samples from tokens: concatenated and cut, as in the examples of transformers."""
    import numpy as np
    from datasets import Dataset, Features, List, Value

    size = job.length + 1
    content = np.load(job.tokens, mmap_mode="r")
    rows = len(content) // size
    features = Features({"input_ids": List(Value("int32"), length=size)})

    def blocks() -> Iterator[dict[str, Any]]:
        for begin in range(0, rows * size, size):
            yield {"input_ids": content[begin : begin + size].astype(np.int32)}

    dataset = Dataset.from_generator(blocks, features=features, cache_dir=f"{job.output}/cache")
    dataset.save_to_disk(f"{job.output}/data")


def load(job: harness.Job) -> None:
    """Read batches of tensors."""

    def opened() -> Iterable[Any]:
        from datasets import load_from_disk
        from torch.utils.data import DataLoader

        dataset = load_from_disk(f"{job.sources[0][1]}/data").shuffle(seed=job.seed).with_format("torch")
        return DataLoader(dataset, batch_size=job.batch, num_workers=job.workers)

    harness.drain(job, opened, lambda batch: batch["input_ids"])


if __name__ == "__main__":
    harness.main(tokens=tokens, read=read, convert=convert, load=load)
