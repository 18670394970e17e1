"""Random rounds of attempts: job arrays whose tasks run at once; edited inputs and other options."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from collections import Counter
from pathlib import Path

from faults import children, seam
from faults.campaign import Row
from faults.children import Child, Ended
from faults.processes import output
from faults.scenarios import write_lines
from faults.seam import Fault

_KILLED = -signal.SIGKILL
_CALLS_OF_A_TASK, _CALLS_OF_A_RUN = 60, 260
_MOST_TASKS = 8
# 1, 4: a --finish that finds units missing; 5: one that is locked out, or locks out a task.
_DISTURBED = {0, 1, 5, _KILLED}
_NAMES = ("a.jsonl", "b.jsonl", "c.jsonl.gz")
_OPTIONS = ("--no-append-eod", "--field title", "--no-provenance", "--field text --field title")
_FORCED = "--force"


def arrays(row: Row, chance: random.Random) -> tuple[Counter[str], str | None]:
    """Play a round of the row of arrays: waves of tasks, and --finish; return their ends, and what is wrong.

    All processes of a wave start at the same moment. In every wave but the last, tasks are killed at a
    storage call, and a --finish or a second task of the same index may run with them; the number of tasks
    changes from wave to wave.
    """
    command = row.scenario.commands[-1]
    words = [word for word in command if word != "--finish"] if not callable(command) else []
    row.fresh()
    ends: Counter[str] = Counter()
    for wave in range(3):
        count = chance.randint(2, _MOST_TASKS)
        tasks = [[*words, "--array-task", f"{index}/{count}"] for index in range(count)]
        if wave < 2:
            tasks += chance.choice([[], [chance.choice(tasks)], [[*words, "--finish"]]])
        chance.shuffle(tasks)
        gate = os.pipe()
        children = [Child(tuple(task), row.round, _death(chance, row, wave), gate) for task in tasks]
        for descriptor in gate:
            os.close(descriptor)
        for child in children:
            ended = child.wait()
            ends["killed" if ended.code == _KILLED else str(ended.code)] += 1
            if ended.defect or ended.code not in (_DISTURBED if wave < 2 else {0}):
                return ends, f"wave {wave}: {ended}"
    ended = Child(command, row.round).wait()
    if ended.code != 0:
        return ends, f"--finish: {ended}"
    return ends, row.wrong_files("after all tasks")


def _death(chance: random.Random, row: Row, wave: int):
    if wave == 2 or chance.random() < 0.6:
        return None
    fault = Fault("kill", chance.randint(1, _CALLS_OF_A_TASK))
    return lambda: seam.install(fault, row.world / f"calls-{os.getpid()}.txt")


def attempts(row: Row, chance: random.Random) -> tuple[Counter[str], str | None]:
    """Play a round of attempts on one output; the last one ends as a clean run of it does, with its bytes."""
    os.chdir(row.world)
    shutil.rmtree(row.round, ignore_errors=True)
    row.round.mkdir()
    os.chdir(row.round)
    corpus = {name: _records(name, chance.randint(3, 30)) for name in _NAMES}
    for name, lines in corpus.items():
        write_lines(f"in/{name}", lines)
    commands = [_command(chance) for _ in range(2)]
    history, ends = [], Counter()
    for _ in range(chance.randint(1, 5)):
        words = [*chance.choice(commands), *([_FORCED] if chance.random() < 0.2 else [])]
        k = chance.randint(1, _CALLS_OF_A_RUN) if chance.random() < 0.8 else 0
        ended = _run(row, [*words, "-o", "out/x"], k)
        ends["killed" if ended.code == _KILLED else str(ended.code)] += 1
        history.append(f"{' '.join(words)} killed at {k}: {ended.code}")
        if ended.defect or ended.code not in {0, 3, 4, _KILLED}:
            return ends, f"{history}: {ended}"
        while chance.random() < 0.5:
            _edit(chance, corpus)
    last = chance.choice(commands)
    ended = _run(row, [*last, "-o", "out/x"])
    if ended.code == 4:
        ended = _run(row, [*last, "-o", "out/x", _FORCED])
    clean = _run(row, [*last, "-o", "clean/x"])
    history.append(f"{' '.join(last)}: {ended.code}, clean {clean.code}")
    if ended.code != clean.code:
        return ends, f"{history}: {ended}"
    for suffix in ("_text_document", "_title_document") if last.count("--field") == 2 else ("",):
        if ended.code == 0 and output(f"out/x{suffix}") != output(f"clean/x{suffix}"):
            return ends, f"{history}: other bytes of {suffix}"
    if ended.code == 0 and Path("out/x.tokshard/work").exists():
        return ends, f"{history}: work is left"
    return ends, None


def _run(row: Row, words: list[str], k: int = 0) -> Ended:
    log = row.world / "calls.txt"
    return children.run(tuple(words), row.round, lambda: seam.install(Fault("kill", k), log))


def _records(name: str, count: int) -> list[bytes]:
    texts = [f"{name}{number} " + "word " * (number % 9) for number in range(count)]
    return [json.dumps({"text": text, "title": f"t{number}"}).encode() for number, text in enumerate(texts)]


def _command(chance: random.Random) -> list[str]:
    names = chance.choice([_NAMES, _NAMES, _NAMES[:2], _NAMES[::-1]])
    more = chance.choice(_OPTIONS).split() if chance.random() < 0.3 else []
    skip = ["--on-error", "skip"] if chance.random() < 0.6 else []
    size = chance.choice(["300", "300", "500"])
    return ["tokenize", *(f"in/{name}" for name in names), "--quiet", "--unit-size", size, *more, *skip]


def _edit(chance: random.Random, corpus: dict[str, list[bytes]]) -> None:
    """Change an input in one of the ways in which people do."""
    name = chance.choice(_NAMES)
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
        lines.append(b'{"text": "appended word", "title": "n"}')
    elif kind == "break":
        lines[place] = b"broken"
    elif kind == "mend":
        lines[:] = [b'{"text": "mended", "title": "m"}' if line == b"broken" else line for line in lines]
    write_lines(f"in/{name}", lines)
    os.utime(f"in/{name}", ns=(seconds := chance.randrange(10**18), seconds))
