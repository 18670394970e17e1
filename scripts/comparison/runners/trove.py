"""Runner of datatrove: JSONL reader and tokenizer on a local executor, and its dataset of .ds files."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import harness


def tokens(job: harness.Job) -> None:
    """Tokenize: as many tasks as workers, which share the files; with one, the library's threads are used."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer

    folder = Path(job.files[0]).parent
    if job.workers > 1:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
    LocalPipelineExecutor(
        pipeline=[
            JsonlReader(str(folder), glob_pattern="*.jsonl"),
            DocumentTokenizer(
                f"{job.output}/data",
                tokenizer_name_or_path=job.tokenizer,
                eos_token=job.eod_text,
                shuffle_documents=False,
            ),
        ],
        tasks=job.workers,
        workers=job.workers,
        logging_dir=f"{job.output}/logs",
    ).run()


def read(job: harness.Job) -> None:
    """Read all documents, as the index files divide them."""
    import numpy as np

    def documents() -> Iterable[Any]:
        files = sorted(Path(job.output, "data").glob("*.ds"))
        if not files:
            raise FileNotFoundError(f"no .ds file in {job.output}/data")
        for path in files:
            size = int(Path(f"{path}.metadata").read_text().splitlines()[0].rsplit("|", 1)[1])
            content = np.fromfile(path, f"<u{size}")
            begin = 0
            for end in np.fromfile(f"{path}.index", "<u8").tolist():
                yield content[begin:end]
                begin = end
            if begin != len(content):
                raise ValueError(f"{path}: the index ends at token {begin:,} of {len(content):,}")

    harness.count(job, documents())


def convert(job: harness.Job) -> None:
    """Write a .ds file from tokens, with the writer of DocumentTokenizer."""
    from datatrove.pipeline.tokens.tokenizer import TokenizedFile

    os.makedirs(job.output, exist_ok=True)
    file = TokenizedFile(
        f"{job.output}", "data.ds", token_size=2 if job.dtype == "uint16" else 4, save_final_metadata=True
    )
    for document in job.documents():
        file.write_bytes(document.tobytes())
    file.close()


def load(job: harness.Job) -> None:
    """Read batches of tensors."""

    def opened() -> Iterable[Any]:
        from datatrove.utils.dataset import DatatroveFolderDataset
        from torch.utils.data import DataLoader

        dataset = DatatroveFolderDataset(
            job.sources[0][1],
            seq_len=job.length,
            token_size=2 if job.dtype == "uint16" else 4,
            shuffle=True,
            seed=job.seed,
        )
        return DataLoader(dataset, batch_size=job.batch, num_workers=job.workers, shuffle=True)

    harness.drain(job, opened, lambda batch: batch["input_ids"])


if __name__ == "__main__":
    harness.main(tokens=tokens, read=read, convert=convert, load=load)
