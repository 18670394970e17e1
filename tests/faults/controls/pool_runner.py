"""An executor that is wrong on purpose: ``multiprocessing.Pool`` waits for ever for a worker that died.

python pool_runner.py CORPUS DIRECTORY
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time

from tokshard.dataset.parameters import TokenizeParameters
from tokshard.text.corpus.files import discover
from tokshard.text.corpus.planning import plan_units
from tokshard.text.tokenize.encoder import EncodingSpec, Task, UnitEncoder
from tokshard.text.tokenizer.definition import load_tokenizer

CORPUS, DIRECTORY = sys.argv[1:]
UNIT_BYTES = 500_000


def make_encoder() -> UnitEncoder:
    path = os.environ["TOKENIZER"]
    spec = EncodingSpec(
        tokenizer=path,
        tokenizer_identity=load_tokenizer(path).identity,
        parameters=TokenizeParameters(eod_id=0, dtype="uint16", max_document_bytes=64_000_000),
        encoder="reference",
        fallback=True,
        max_rejected=0,
        unknown_id=None,
        drops_characters=False,
    )
    return UnitEncoder(spec, DIRECTORY)


def encode(task: Task) -> int:
    if task.key.index == 3:  # whoever has this one is killed at it
        with open("holder.new", "w") as file:
            file.write(str(os.getpid()))
        os.replace("holder.new", "holder")
        time.sleep(3600)
    *_, outcome = make_encoder().encode(task)
    return outcome.key.index


if __name__ == "__main__":
    (file,) = discover([CORPUS])
    tasks = [Task(unit, CORPUS, f"{unit.index:025d}.part", 0) for unit in plan_units(0, file, UNIT_BYTES)]
    os.makedirs(DIRECTORY, exist_ok=True)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(encode, tasks, chunksize=1)
