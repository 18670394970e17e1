"""Minimal script with `tokenizers`: parse lines, encode batches with its threads, write ids; no safety."""

from __future__ import annotations

import os

import harness


def tokens(job: harness.Job) -> None:
    """Tokenize in one process; the library uses all cores."""
    import numpy as np
    import orjson
    import tokenizers

    library = tokenizers.Tokenizer.from_file(job.tokenizer)
    os.makedirs(job.output, exist_ok=True)
    with open(f"{job.output}/data.bin", "wb") as output:

        def write(texts: list[str]) -> None:
            output.writelines(
                np.array([*encoding.ids, job.eod], job.dtype)
                for encoding in library.encode_batch_fast(texts, add_special_tokens=False)
            )

        for name in job.files:
            texts: list[str] = []
            with open(name, "rb") as lines:
                for line in lines:
                    texts.append(orjson.loads(line)["text"])
                    if len(texts) == 1000:
                        write(texts)
                        texts = []
            write(texts)


def read(job: harness.Job) -> None:
    """Read all documents."""
    import numpy as np

    harness.count(job, harness.split(np.fromfile(f"{job.output}/data.bin", job.dtype), job.eod))


if __name__ == "__main__":
    harness.main(tokens=tokens, read=read)
