"""Runner of dolma: `dolma tokens` writes token files; OLMo-core, another package, reads them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import harness


def tokens(job: harness.Job) -> None:
    """Tokenize; the processes share the files."""
    from dolma.cli.__main__ import main

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    words = ["dolma", "tokens", "--documents", *job.files, "--destination", f"{job.output}/data"]
    words += ["--tokenizer.name_or_path", job.older_tokenizer, "--tokenizer.eos_token_id", job.eod]
    words += ["--tokenizer.pad_token_id", job.eod, "--dtype", job.dtype, "--processes", job.workers]
    words += ["--work_dir.input", f"{job.output}/work/in", "--work_dir.output", f"{job.output}/work/out"]
    sys.argv = [str(word) for word in words]
    main()


def written(content: Any, eod: int, block: int = 1 << 24) -> int:
    """Return the number of tokens before the zeros at the end: files are truncated when they are closed."""
    import numpy as np

    for begin in range((len(content) - 1) // block * block, -1, -block):
        used = np.flatnonzero(content[begin : begin + block])
        if len(used):
            return min(len(content), begin + int(used[-1]) + (2 if eod == 0 else 1))
    return 0


def read(job: harness.Job) -> None:
    """Read all documents; OLMo-core takes all .npy files of a directory."""
    import numpy as np

    padding = 0

    def documents() -> Iterable[Any]:
        nonlocal padding
        files = sorted(Path(job.output, "data").glob("**/*.npy"))
        if not files:
            raise FileNotFoundError(f"no .npy file in {job.output}/data")
        for path in files:
            content = np.memmap(path, job.dtype, mode="r")
            used = written(content, job.eod)
            padding += len(content) - used
            yield from harness.split(content[:used], job.eod)

    harness.count(job, documents(), padding=lambda: padding)


if __name__ == "__main__":
    harness.main(tokens=tokens, read=read)
