"""scripts/bench tokenize: tokshard tokenize against bare encoders, unchecked threads and a process pool."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from measure import Contender, Result, compare, machine

from tokshard.dataset.layout import optimal_dtype
from tokshard.tokenizer.definition import load_tokenizer

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
TOKSHARD = [sys.executable, "-c", "import sys; from tokshard.cli.main import main; main()", "tokenize"]


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench tokenize", description=__doc__)
    sample = ROOT / "sample_data"
    parser.add_argument("inputs", nargs="*", default=[sample / "stories.jsonl", sample / "manuals.jsonl"],
                        help="JSONL files, plain or .zst")  # fmt: skip
    parser.add_argument("--tokenizer", default=sample / "tokenizer.json")
    parser.add_argument("--megabytes", type=float, default=300, help="repeat the inputs up to this size")
    parser.add_argument("--slow-megabytes", type=float, default=12, help="size for the slow contenders")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", help="where to work (default: a temporary directory)")
    parser.add_argument(
        "--compressed", action="store_true", help="also gz and zst inputs (tokshard, 2 workers)"
    )
    parser.add_argument("--no-slow", action="store_true", help="leave the slow contenders out")
    return parser.parse_args(arguments)


def make_corpus(inputs: list[Path], path: Path, megabytes: float) -> Path:
    """Write the inputs, again and again, up to a size."""
    texts = []
    for source in map(Path, inputs):
        if source.suffix == ".zst":
            texts.append(subprocess.run(["zstd", "-dcq", source], capture_output=True, check=True).stdout)
        else:
            texts.append(source.read_bytes())
    wanted, size = int(megabytes * 1e6), 0
    with path.open("wb") as file:
        while size < wanted:
            for text in texts:
                if size >= wanted:
                    break
                room = wanted - size
                piece = text if len(text) <= room else text[: text.find(b"\n", room) + 1]
                size += file.write(piece)
    return path


def contenders(options: argparse.Namespace, directory: Path) -> list[Contender]:
    """Return everything to be compared."""
    tokenizer = str(options.tokenizer)
    big = make_corpus(options.inputs, directory / "big.jsonl", options.megabytes)
    small = make_corpus(options.inputs, directory / "small.jsonl", options.slow_megabytes)
    output = directory / "out"
    dtype = optimal_dtype(load_tokenizer(tokenizer, need_eod=False).vocab_size).name

    def clean() -> None:
        shutil.rmtree(output, ignore_errors=True)
        output.mkdir()

    def ours(name: str, corpus: Path, content: Path, *more: str) -> Contender:
        command = [*TOKSHARD, str(corpus), "-o", str(output / "x"), "--tokenizer", tokenizer, "-q", *more]
        return Contender(name, command, content.stat().st_size, clean)

    def theirs(label: str, name: str, processes: int, corpus: Path) -> Contender:
        command = [sys.executable, str(HERE / "encoders.py"), name, str(processes), tokenizer, str(corpus)]
        size = corpus.stat().st_size
        return Contender(
            label, [*command, str(output / "x"), dtype], size, clean, own_time=name not in {"pool", "unsafe"}
        )

    found = []
    for n in (1, 2):
        found += [
            ours(f"tokshard, fast encoder, {n}", big, big, "--workers", str(n), "--encoder", "fast"),
            theirs(f"bare fastokens, {n}", "fastokens", n, big),
        ]
        if not options.no_slow:
            found += [
                ours(
                    f"tokshard, reference encoder, {n}",
                    small,
                    small,
                    "--workers",
                    str(n),
                    "--encoder",
                    "reference",
                ),
                theirs(f"bare tokenizers, {n}", "tokenizers", n, small),
                theirs(f"process pool as Megatron's, {n}", "pool", n, small),
            ]
    found.append(theirs("unsafe trial with threads, 2", "unsafe", 2, big))
    if options.compressed:
        for suffix, command in ((".gz", ["gzip", "-1kf"]), (".zst", ["zstd", "-3qkf"])):
            subprocess.run([*command, big], check=True)
            packed = big.with_name(big.name + suffix)
            found.append(
                ours(
                    f"tokshard, fast encoder, 2, {suffix}",
                    packed,
                    big,
                    "--workers",
                    "2",
                    "--encoder",
                    "fast",
                )
            )
    return found


def tokens_per_byte(directory: Path) -> float:
    """Return how many tokens a byte of the corpus gives, by the last dataset written."""
    manifest = json.loads((directory / "out" / "x.tokshard" / "manifest.json").read_text())
    return manifest["dataset"]["tokens"] / manifest["counts"]["content_bytes"]


def main(arguments: list[str]) -> None:
    """Run the benchmark."""
    options = parse(arguments)
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        directory = Path(name)
        work = contenders(options, directory)
        results = compare(work, options.rounds)
        work[0].before()
        subprocess.run(work[0].command, check=True)
        density = tokens_per_byte(directory)
    print(machine("tokshard", "fastokens", "tokenizers", "numpy", "orjson"))
    sizes = f"{options.megabytes:g} MB of JSONL (slow contenders: {options.slow_megabytes:g} MB)"
    print(f"{sizes}, tokenizer {options.tokenizer}; medians of {options.rounds} interleaved runs")
    show(work, results, density)


def show(work: list[Contender], results: dict[str, Result], density: float) -> None:
    """Print the table."""
    base = next(contender for contender in work if contender.name == "tokshard, fast encoder, 2")
    base_speed = base.work / results[base.name].seconds
    print(
        f"{'contender, processes':<36}{'s':>8}{'CPU s':>8}{'MB/s':>8}{'Mtok/s':>8}{'peak MB':>9}{'ratio':>8}"
    )
    for contender in work:
        result = results[contender.name]
        speed = contender.work / result.seconds
        print(
            f"{contender.name:<36}{result.seconds:>8.2f}{result.cpu_seconds:>8.2f}{speed / 1e6:>8.1f}"
            f"{speed * density / 1e6:>8.2f}{result.peak_bytes / 1e6:>9.0f}{base_speed / speed:>8.2f}"
        )
    print("ratio: how many times faster `tokshard, fast encoder, 2` is")
