"""Runner of Megatron Core: tokens as tools/preprocess_data.py makes them, indexes, blends and samples."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import warnings
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import harness

warnings.simplefilter("ignore")


class Encoder:
    """The encoder of preprocess_data.py: one document at a time, in a process of a pool."""

    tokenizer: Any

    def __init__(self, job: harness.Job) -> None:
        self.path, self.eod = job.tokenizer, job.eod

    def initializer(self) -> None:
        """Load the tokenizer in a process of the pool."""
        from transformers import PreTrainedTokenizerFast

        Encoder.tokenizer = PreTrainedTokenizerFast(tokenizer_file=self.path)

    def encode(self, line: str) -> tuple[list[int], list[int], int]:
        """Return the tokens of a line, the lengths of its sentences, and its size."""
        document = Encoder.tokenizer(json.loads(line)["text"]).input_ids
        lengths = [len(document)]
        if document:
            document.append(self.eod)
            lengths[-1] += 1
        return document, lengths, len(line)


def tokens(job: harness.Job) -> None:
    """Tokenize with a pool of processes; the parent writes."""
    from megatron.core.datasets import indexed_dataset

    os.makedirs(job.output, exist_ok=True)
    builder = indexed_dataset.IndexedDatasetBuilder(
        f"{job.output}/data.bin", dtype=indexed_dataset.DType.optimal_dtype(job.vocabulary)
    )
    encoder = Encoder(job)
    with multiprocessing.Pool(job.workers, initializer=encoder.initializer) as pool:
        for name in job.files:
            with open(name, encoding="utf-8") as lines:
                for document, lengths, _ in pool.imap(encoder.encode, lines, 32):
                    builder.add_document(document, lengths)
    builder.finalize(f"{job.output}/data.idx")


def read(job: harness.Job) -> None:
    """Read all documents."""
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    dataset = IndexedDataset(f"{job.output}/data")
    harness.count(job, (dataset[number] for number in range(len(dataset))))


def convert(job: harness.Job) -> None:
    """Write a dataset from tokens."""
    import torch
    from megatron.core.datasets import indexed_dataset

    os.makedirs(job.output, exist_ok=True)
    builder = indexed_dataset.IndexedDatasetBuilder(
        f"{job.output}/data.bin", dtype=indexed_dataset.DType.optimal_dtype(job.vocabulary)
    )
    for document in job.documents():
        builder.add_item(torch.from_numpy(document.astype("int32")))
        builder.end_document()
    builder.finalize(f"{job.output}/data.idx")


def _dataset(job: harness.Job) -> Any:
    """Return the dataset, or the blend of several, with its indexes in a cache below the output."""
    import torch
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group(
            "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
        )
    identity = SimpleNamespace(vocab_size=job.vocabulary, eod=job.eod, pad=-1, unique_identifiers={})
    prefixes = [f"{path}/data" for _, path in job.sources]
    weights = [weight for weight, _ in job.sources] if len(prefixes) > 1 else None
    config = GPTDatasetConfig(
        random_seed=job.seed,
        sequence_length=job.length,
        blend=(prefixes, weights),
        split="1,0,0",
        path_to_cache=f"{job.output}/cache",
        tokenizer=identity,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    sizes = [job.samples, 0, 0]
    return BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, config).build()[0]


def blend(job: harness.Job) -> None:
    """Build the indexes of the sources and the order of their blend; of one source, its index."""
    if len(_dataset(job)) < job.samples:
        sys.exit("the dataset has too few samples")


def load(job: harness.Job) -> None:
    """Read batches of tensors."""

    def opened() -> Iterable[Any]:
        from torch.utils.data import DataLoader

        return DataLoader(_dataset(job), batch_size=job.batch, num_workers=job.workers)

    harness.drain(job, opened, lambda batch: batch["tokens"])


if __name__ == "__main__":
    harness.main(tokens=tokens, read=read, convert=convert, blend=blend, load=load)
