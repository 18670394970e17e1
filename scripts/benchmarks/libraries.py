"""scripts/bench libraries: versions of `tokenizers` and both encoders of tokshard, on one core.

Each version is installed without its dependencies into a temporary directory. All programs encode the same
texts in batches of about 1 MiB; the time is the CPU time of encoding alone, after one warm-up text.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from measure import ROOT, Contender, parser, rate, session

BATCH_BYTES = 1 << 20
SAMPLE = ROOT / "sample_data"
ONE_THREAD = {"TOKENIZERS_PARALLELISM": "false", "FASTOKENS_BPE_THREADS": "1"}
LABELS = {"bare": "library only", "reference": "reference encoder", "fast": "fast encoder"}


def encode(name: str, tokenizer: str, corpus: str) -> float:
    """Return the CPU seconds that a program needs to encode the texts of a JSON file of batches."""
    batches = json.loads(Path(corpus).read_text(encoding="utf-8"))
    if name == "bare":
        import tokenizers

        library = tokenizers.Tokenizer.from_file(tokenizer)

        def run(texts: list[str]) -> object:
            return [part.ids for part in library.encode_batch_fast(texts, add_special_tokens=False)]
    else:
        from tokshard.text.tokenizer.definition import load_tokenizer
        from tokshard.text.tokenizer.encoders import reference_encoder
        from tokshard.text.tokenizer.fast import fast_encoder

        make = fast_encoder if name == "fast" else reference_encoder
        run = make(load_tokenizer(tokenizer, need_eod=False), special_tokens=False).encode
    run(batches[0][:1])
    started = time.process_time()  # one thread: other load of the machine does not count
    for texts in batches:
        run(texts)
    return time.process_time() - started


def batches_of(files: list[Path], megabytes: float) -> list[list[str]]:
    """Return the beginnings of the files, each with an equal share, in batches."""
    batches, batch, size = [], [], 0
    for path in files:
        content = path.read_bytes()
        if path.suffix == ".zst":
            content = subprocess.run(["zstd", "-dcq", path], capture_output=True, check=True).stdout
        share = 0
        for line in content.splitlines():
            if share > megabytes * 1e6 / len(files):
                break
            text = json.loads(line)["text"]
            batch.append(text)
            share += len(text.encode())
            size += len(text.encode())
            if size >= BATCH_BYTES:
                batches.append(batch)
                batch, size = [], 0
    return [*batches, batch]


def main(arguments: list[str]) -> None:
    """Parse the arguments, install the versions, and print a table for each tokenizer."""
    options = parser("libraries", __doc__, rounds=5)
    options.add_argument("inputs", nargs="*", type=Path, default=[SAMPLE / "stories.jsonl"],
                         help="JSONL files, plain or .zst")  # fmt: skip
    options.add_argument("--tokenizer", action="append", help="may be given several times")
    options.add_argument("--versions", nargs="+", default=["0.22.2", "0.23.3"])
    options.add_argument("--megabytes", type=float, default=6)
    with session(options, arguments, "tokshard", "fastokens") as bench:
        versions = bench.options.versions
        batches = batches_of(bench.options.inputs, bench.options.megabytes)
        size = sum(len(text.encode()) for batch in batches for text in batch)
        corpus = bench.directory / "batches.json"
        corpus.write_text(json.dumps(batches), encoding="utf-8")
        for version in versions:
            install = [sys.executable, "-m", "pip", "install", "-q", "-q", "--no-deps", "--target"]
            subprocess.run([*install, bench.directory / version, f"tokenizers=={version}"], check=True)
        programs = [("bare", version) for version in versions]
        # Of tokshard's own encoders one version is enough: 0.22 and 0.23 have the same interface.
        programs += [(name, versions[-1]) for name in ("reference", "fast")]
        for tokenizer in bench.options.tokenizer or [str(SAMPLE / "tokenizer.json")]:
            contenders = [
                Contender(
                    f"{LABELS[program]}, tokenizers {version}",
                    [sys.executable, __file__, program, tokenizer, str(corpus)],
                    size,
                    environment={"PYTHONPATH": str(bench.directory / version), **ONE_THREAD},
                    is_peer=program == "bare",
                )
                for program, version in programs
            ]
            title = f"{Path(tokenizer).stem}, {size / 1e6:.1f} MB"
            figures = [rate("MB per CPU s", 1e6)]
            bench.compare(contenders, title=title, base=contenders[0].name, figures=figures)


if __name__ == "__main__":
    print(json.dumps({"seconds": encode(*sys.argv[1:])}))
