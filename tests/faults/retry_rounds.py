"""Random attempts on one output: other options, edited inputs and kills in any order.

    python retry_rounds.py '{"workdir": ..., "seed": 0, "rounds": 10}'

However the attempts before it ended, the last one of a round ends as a clean run of it does, with its bytes.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import campaign

NAMES = ("a.jsonl", "b.jsonl", "c.jsonl.gz")
MOST_CALLS = 260


@dataclass
class Rounds:
    """What to try.

    Attributes:
        attempts: The largest number of attempts of a round.
    """

    workdir: str
    seed: int
    rounds: int
    attempts: int = 6


def write(name: str, lines: list[bytes]) -> None:
    content = b"".join(line + b"\n" for line in lines)
    Path("in", name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)


def edit(chance: random.Random, corpus: dict[str, list[bytes]]) -> None:
    """Change an input in one of the ways in which people do."""
    name = chance.choice(NAMES)
    lines = corpus[name]
    place = chance.randrange(len(lines))
    kind = chance.choice(["touch", "letters", "insert", "delete", "append", "break", "mend"])
    if kind == "letters":
        lines[place] = lines[place].replace(b"word", b"WORD")
    elif kind == "insert":
        lines.insert(place, json.dumps({"text": f"new {chance.random()}", "title": "n"}).encode())
    elif kind == "delete" and len(lines) > 1:
        del lines[place]
    elif kind == "append":
        lines.append(json.dumps({"text": "appended word", "title": "n"}).encode())
    elif kind == "break":
        lines[place] = b"broken"
    elif kind == "mend":
        lines[:] = [b'{"text": "mended", "title": "m"}' if line == b"broken" else line for line in lines]
    write(name, lines)


def arguments(chance: random.Random) -> list[str]:
    """Return the arguments of a random command."""
    names = chance.choice([NAMES, NAMES, NAMES[:2], NAMES[::-1]])
    more = [
        ["--no-append-eod"],
        ["--field", "title"],
        ["--no-provenance"],
        ["--field", "text", "--field", "title"],
    ]
    return [
        "tokenize",
        *(f"in/{name}" for name in names),
        *["--quiet", "--unit-size", chance.choice(["300", "300", "500"])],
        *(chance.choice(more) if chance.random() < 0.3 else []),
        *(["--on-error", "skip"] if chance.random() < 0.6 else []),
    ]


def run(words: list[str], output: str, kill: int | None = None) -> int:
    job = campaign.Job("", [], "", [])
    hook = None if kill is None else campaign.failing_hook(job, kill)
    return campaign.run_command([*words, "-o", output], "in", hook=hook)


def files(prefix: str) -> dict[str, bytes]:
    """Return the published files of an output, without the manifest, which has the times of the inputs."""
    names = ("units.jsonl", "provenance.bin", "rejected.jsonl")
    paths = {name: Path(f"{prefix}.tokshard", name) for name in names}
    paths |= {name: Path(f"{prefix}.{name}") for name in ("bin", "idx")}
    return {name: path.read_bytes() for name, path in paths.items() if path.exists()}


def play(rounds: Rounds, chance: random.Random) -> str | None:
    """Play a round; return what is wrong, if anything is."""
    directory = Path(rounds.workdir, "round")
    shutil.rmtree(directory, ignore_errors=True)
    Path(directory, "in").mkdir(parents=True)
    os.chdir(directory)
    corpus = {
        name: [
            json.dumps({"text": f"{name}{i} " + "word " * (i % 9), "title": f"t{i}"}).encode()
            for i in range(chance.randint(3, 30))
        ]
        for name in NAMES
    }
    for name, lines in corpus.items():
        write(name, lines)
    commands = [arguments(chance) for _ in range(2)]
    history: list[str] = []
    for _ in range(chance.randint(1, rounds.attempts - 1)):
        words = [*chance.choice(commands), *(["--force"] if chance.random() < 0.2 else [])]
        kill = chance.randint(1, MOST_CALLS) if chance.random() < 0.8 else None
        status = run(words, "out/x", kill)
        history.append(f"{' '.join(words)} killed at {kill}: {status}")
        if status not in {0, 3, 4, -signal.SIGKILL}:
            return f"{history}: {Path('stderr.txt').read_text()[-800:]}"
        while chance.random() < 0.5:
            edit(chance, corpus)
    last = chance.choice(commands)
    status = run(last, "out/x")
    if status == 4:
        status = run([*last, "--force"], "out/x")
    clean = run(last, "clean/x")
    history.append(f"{' '.join(last)}: {status}, clean {clean}")
    if status != clean:
        return f"{history}: {Path('stderr.txt').read_text()[-800:]}"
    if status == 0:
        suffixes = ["_text_document", "_title_document"] if last.count("--field") == 2 else [""]
        for suffix in suffixes:
            right, found = files(f"clean/x{suffix}"), files(f"out/x{suffix}")
            if found != right:
                return (
                    f"{history}: other bytes in {[name for name in right if found.get(name) != right[name]]}"
                )
        if any(Path("out/x.tokshard", name).exists() for name in ("work", "kept")):
            return f"{history}: work is left"
    return None


def main() -> None:
    rounds = Rounds(**json.loads(sys.argv[1]))
    os.makedirs(rounds.workdir)
    os.chdir(rounds.workdir)
    Path("in").mkdir()
    for name in NAMES:
        write(name, [b'{"text": "a"}', b"broken"])
    for words in ([], ["--on-error", "skip"]):
        everything = ["tokenize", *(f"in/{name}" for name in NAMES), "-o", "x", *words]
        campaign.load_for(lambda words=everything: campaign.command(words, "in", None))
    failures = {}
    for number in range(rounds.rounds):
        if (wrong := play(rounds, random.Random(f"{rounds.seed} {number}"))) is not None:
            failures[number] = wrong
    os.chdir("/")
    shutil.rmtree(rounds.workdir, ignore_errors=True)
    print(json.dumps({"failures": failures}))


if __name__ == "__main__":
    main()
