"""Runner of MosaicML streaming: MDSWriter and StreamingDataset."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from collections.abc import Iterable, Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import harness


def without_images() -> None:
    """Replace torchvision, which `streaming` imports for images, by empty modules.

    Beside the CPU build of torch, the usual torchvision cannot be imported. The import also takes time.
    """
    names = {
        "": (),
        ".datasets": ("VisionDataset",),
        ".transforms": (),
        ".transforms.functional": ("to_tensor",),
    }
    for name, members in names.items():
        module = ModuleType(f"torchvision{name}")
        module.__spec__ = ModuleSpec(module.__name__, None)
        for member in members:
            setattr(module, member, object)
        sys.modules[module.__name__] = module


def write_files(path: str, files: list[str], tokenizer: str, eod: int, dtype: str) -> None:
    """Write the tokens of documents of some files into one directory."""
    import numpy as np
    import tokenizers
    from streaming import MDSWriter

    library = tokenizers.Tokenizer.from_file(tokenizer)
    with MDSWriter(out=path, columns={"tokens": f"ndarray:{dtype}"}, hashes=["xxh64"]) as out:

        def write(texts: list[str]) -> None:
            for encoding in library.encode_batch_fast(texts, add_special_tokens=False):
                out.write({"tokens": np.array([*encoding.ids, eod], dtype)})

        for name in files:
            texts: list[str] = []
            with open(name, encoding="utf-8") as lines:
                for line in lines:
                    texts.append(json.loads(line)["text"])
                    if len(texts) == 1000:
                        write(texts)
                        texts = []
            write(texts)


def tokens(job: harness.Job) -> None:
    """Tokenize: with one worker, the library's threads are used; else each process writes a part."""
    root = f"{job.output}/data"
    if job.workers == 1:
        write_files(root, job.files, job.tokenizer, job.eod, job.dtype)
        return
    from streaming.base.util import merge_index

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    shares = [
        (f"{root}/{worker:05}", job.files[worker :: job.workers], job.tokenizer, job.eod, job.dtype)
        for worker in range(job.workers)
    ]
    with multiprocessing.Pool(job.workers) as pool:
        pool.starmap(write_files, shares)
    merge_index(root, keep_local=True)


def read(job: harness.Job) -> None:
    """Read all documents in order."""
    from streaming import StreamingDataset

    def documents() -> Iterator[Any]:
        for sample in StreamingDataset(local=f"{job.output}/data", shuffle=False, batch_size=1):
            yield sample["tokens"]

    harness.count(job, documents())


def convert(job: harness.Job) -> None:
    """Write samples from tokens: documents are concatenated and cut into samples, as in LLM Foundry."""
    import numpy as np
    from streaming import MDSWriter

    size = job.length + 1
    content = np.load(job.tokens, mmap_mode="r")
    with MDSWriter(out=job.output, columns={"tokens": f"ndarray:{job.dtype}:{size}"}) as out:
        for begin in range(0, len(content) - size + 1, size):
            out.write({"tokens": np.array(content[begin : begin + size])})


def load(job: harness.Job) -> None:
    """Read batches of tensors."""

    def opened() -> Iterable[Any]:
        import numpy as np
        import torch
        from streaming import StreamingDataset
        from torch.utils.data import DataLoader

        class Tokens(StreamingDataset):
            def __getitem__(self, at: int) -> Any:
                return torch.from_numpy(super().__getitem__(at)["tokens"].astype(np.int64))

        dataset = Tokens(local=job.sources[0][1], shuffle=True, shuffle_seed=job.seed, batch_size=job.batch)
        return DataLoader(dataset, batch_size=job.batch, num_workers=job.workers)

    harness.drain(job, opened, lambda batch: batch)


without_images()  # also in processes that are spawned
if __name__ == "__main__":
    harness.main(tokens=tokens, read=read, convert=convert, load=load)
