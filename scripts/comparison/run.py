"""scripts/compare: tokshard and its peers on the same work, measured; docs/compare.md and its plots.

The default corpus is made of sample_data, by repetition. Results are kept in docs/compare.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "benchmarks"))  # measure and footprint

import measure  # noqa: E402

import corpus as corpora  # noqa: E402
import faults  # noqa: E402
import page  # noqa: E402
import sizes  # noqa: E402
import tasks  # noqa: E402
import tools  # noqa: E402

SAMPLE = tools.ROOT / "sample_data"
RESULTS = tools.ROOT / "docs/compare.json"
STAGES = {"tokens", "index", "blend", "load", "faults"}


def parse(arguments: list[str]) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="scripts/compare", description=__doc__)
    parser.add_argument("--files", nargs="+", type=Path, help="JSONL files with texts, repeated",
                        default=[SAMPLE / "stories.jsonl", SAMPLE / "manuals.jsonl"])  # fmt: skip
    parser.add_argument("--tokenizer", type=Path, default=SAMPLE / "tokenizer.json", help="a tokenizer.json")
    parser.add_argument("--eod", default="<|endoftext|>", help="the EOD token")
    parser.add_argument("--megabytes", type=float, default=48, help="size of the corpus")
    parser.add_argument("--fault-megabytes", type=float, default=8, help="the same for the faults")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", help="measure only these, separated by commas, and tokshard")
    parser.add_argument("--only", type=lambda text: set(text.split(",")), default=STAGES,
                        help="measure only these, separated by commas, and keep the other results: "
                        "tokens, index, blend, load, faults; sizes (not by default)")  # fmt: skip
    parser.add_argument("--samples", type=int, default=1_000_000, help="samples of indexes and blends")
    parser.add_argument("--length", type=int, default=2048, help="tokens of a sample")
    parser.add_argument("--batch", type=int, default=8, help="samples of a batch")
    parser.add_argument("--seconds", type=float, default=2, help="how long each loader reads")
    parser.add_argument("--quick", action="store_true", help="2 MB and one round, to try the command")
    parser.add_argument("--install", action="store_true", help="only install the environments")
    parser.add_argument("--page", action="store_true", help="only write the page from docs/compare.json")
    parser.add_argument("--output", type=Path, default=RESULTS, help="the file of results; only the default "
                        "writes the page, others are a trial")  # fmt: skip
    parser.add_argument("--directory", help="where the temporary directory is made")
    options = parser.parse_args(arguments)
    if options.quick and options.output == RESULTS:
        parser.error("--quick needs --output: its numbers are not for the page")
    if options.quick:
        options.megabytes, options.fault_megabytes, options.rounds, options.seconds = 2, 1, 1, 0.2
    return options


def describe(path: Path, eod: str, directory: Path) -> dict[str, Any]:
    """Return the members of jobs that describe a tokenizer.

    dolma requires tokenizers below 0.20, which read merges as texts only: the directory gets such a file.
    """
    import tokenizers

    library = tokenizers.Tokenizer.from_file(str(path))
    number = library.token_to_id(eod)
    if number is None:
        sys.exit(f"error: {path} has no token {eod!r}; pass --eod")
    size = library.get_vocab_size(with_added_tokens=True)
    definition = json.loads(path.read_text())
    model = definition["model"]
    model["merges"] = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    older = directory / "tokenizer.json"
    older.write_text(json.dumps(definition, ensure_ascii=False))
    return {
        "tokenizer": str(path.resolve()),
        "older_tokenizer": str(older),
        "eod": number,
        "eod_text": eod,
        "vocabulary": size,
    }


def main(arguments: list[str]) -> None:
    """Install, measure and write the page."""
    options = parse(arguments)
    if options.page:
        page.write(json.loads(RESULTS.read_text()))
        return
    wanted = (
        options.peers.split(",")
        if options.peers
        else [name for name, tool in tools.TOOLS.items() if tool.is_peer]
    )
    if unknown := [name for name in wanted if name not in tools.TOOLS]:
        sys.exit(f"error: unknown peers: {', '.join(unknown)}\nhint: choose from {', '.join(tools.TOOLS)}")
    skipped, chosen = {}, []
    for tool in tools.TOOLS.values():
        if tool.is_peer and tool.name not in wanted:
            continue
        if reason := tools.install(tool):
            print(f"{tool.title} is skipped: {reason}", file=sys.stderr)
            skipped[tool.name] = reason
        else:
            chosen.append(tool)
    if options.install:
        return
    results = json.loads(options.output.read_text()) if options.output.is_file() else {}
    kept = {
        name: reason
        for name, reason in results.get("failed", {}).items()
        if name.rpartition(", ")[2] not in options.only
    }
    results |= {"skipped": skipped, "failed": kept}
    for part in measured(options, chosen, kept):
        results |= part
        options.output.write_text(json.dumps(results, indent=1) + "\n")
    if options.output == RESULTS:
        page.write(results)


def machine() -> str:
    """Return the processor, memory, system and Python."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    system = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    return f"{measure.processor()}, {memory:.0f} GB of memory, {system}"


def measured(
    options: argparse.Namespace, chosen: list[tools.Tool], failed: dict[str, str]
) -> Iterator[dict[str, Any]]:
    """Yield the results, stage by stage; add to the peers that failed."""
    wanted = options.only
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        directory = Path(name)
        if "sizes" in wanted:
            yield {"sizes": sizes.measure(chosen, directory / "sizes")}
        if not wanted & STAGES:
            return
        tokenizer = describe(options.tokenizer, options.eod, directory)
        corpus = corpora.make(options.files, directory / "corpus", options.megabytes)
        yield {
            "machine": machine(),
            "setting": setting(options, tokenizer, corpus),
            "versions": {tool.name: tools.versions(tool) for tool in chosen if tool.packages},
        }
        bench = tasks.Bench(directory, chosen, options, tokenizer, failed)
        if "tokens" in wanted:
            yield {"tokens": tasks.tokens(bench, corpus)}
        if "faults" in wanted:
            yield {"faults": faults.measure(bench, options)}
        if wanted & {"index", "blend", "load"}:
            prefix = directory / "tokens" / tools.OURS / "data"
            if not prefix.with_suffix(".idx").is_file():
                bench.run(tools.TOOLS[tools.OURS], "tokens", prefix.parent, files=corpus.files, workers=2)
            paths = tasks.prepare(bench, str(prefix))
            for stage, several in (("index", False), ("blend", True)):
                if stage in wanted:
                    yield {stage: tasks.build(bench, paths, several=several)}
            if "load" in wanted:
                yield {"load": tasks.load(bench, paths)}


def setting(options: argparse.Namespace, tokenizer: dict[str, Any], corpus: corpora.Corpus) -> dict[str, Any]:
    """Return what the page says about how it was measured."""
    return {
        "command": re.sub(r" --only \S+", "", shlex.join(["scripts/compare", *sys.argv[1:]])),
        "files": [path.name for path in options.files],
        "tokenizer": options.tokenizer.name,
        "vocabulary": tokenizer["vocabulary"],
        "rounds": options.rounds,
        "documents": corpus.documents,
        "file_bytes": corpus.file_bytes,
        "fault_megabytes": options.fault_megabytes,
        "samples": options.samples,
        "length": options.length,
        "batch": options.batch,
    }


if __name__ == "__main__":
    main(sys.argv[1:])
