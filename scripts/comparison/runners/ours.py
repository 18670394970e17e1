"""Runner of tokshard."""

from __future__ import annotations

import os
import sys

import harness


def command(*words: object) -> None:
    """Run a tokshard command in this process."""
    from tokshard.cli.main import main

    sys.argv = ["tokshard", *map(str, words)]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise


def tokens(job: harness.Job) -> None:
    """Tokenize."""
    options = ["--tokenizer", job.tokenizer, "--eod", job.eod_text, "--encoder", job.encoder]
    command("tokenize", *job.files, "-o", f"{job.output}/data", *options, "--workers", job.workers, "--quiet")


def read(job: harness.Job) -> None:
    """Read all documents."""
    from tokshard import IndexedDataset

    dataset = IndexedDataset(f"{job.output}/data")
    harness.count(job, (dataset.document_tokens(number) for number in range(dataset.document_count)))


def convert(job: harness.Job) -> None:
    """Write a dataset from tokens."""
    from tokshard.dataset.builder import IndexedDatasetBuilder

    os.makedirs(job.output, exist_ok=True)
    builder = IndexedDatasetBuilder(f"{job.output}/data.bin", dtype=job.dtype)
    for document in job.documents():
        builder.add_item(document)
        builder.end_document()
    builder.finalize(f"{job.output}/data.idx")
    command("verify", f"{job.output}/data", "--adopt", "--quiet")


def _sources(job: harness.Job) -> list[str]:
    return [word for weight, path in job.sources for word in (str(weight), f"{path}/data")]


def blend(job: harness.Job) -> None:
    """Build the indexes of the sources and the order of their blend; of one source, its index."""
    options = ["--split", "1,0,0", "--seq-length", job.length, "--num-samples", job.samples, "--quiet"]
    command("blend", *_sources(job), *options, "--seed", job.seed, "-o", f"{job.output}/blend", "--force")


def plan(job: harness.Job) -> None:
    """Plan the batches of one rank."""
    sizes = ["--micro-batch-size", job.batch, "--global-batch-size", job.batch, "--data-parallel", 1]
    command("shard-plan", f"{job.output}/blend", *sizes, "-o", f"{job.output}/plan", "--quiet")


def load(job: harness.Job) -> None:
    """Read batches of tensors."""

    def opened() -> object:
        from tokshard.loader import BatchOptions, RankLoader

        # The files are in the page cache, and the peers of this row read nothing ahead.
        settings = {"options": BatchOptions(tokens_only=True), "readahead": 0} if job.tokens_only else {}
        loader = RankLoader.open(f"{job.output}/plan", rank=0, **settings)
        if job.workers is None:
            return loader
        from tokshard.loader.torch import data_loader

        return data_loader(loader, num_workers=job.workers)

    harness.drain(job, opened, lambda batch: batch["tokens"])


if __name__ == "__main__":
    harness.main(tokens=tokens, read=read, convert=convert, blend=blend, plan=plan, load=load)
