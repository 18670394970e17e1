"""Rounds of job arrays whose tasks run at once, some of which are killed, and others that disturb them.

    python array_rounds.py '{"workdir": ..., "inputs": "...", "arguments": [...], "rounds": 8, ...}'

This is a program because it forks. A round is some waves of tasks. All processes of a wave start at the
same moment. In every wave but the last, tasks are killed at a storage call or at some moment, and a
--finish, an ordinary run or a second task of the same index may run beside them; the number of tasks
changes from wave to wave. After the last wave somebody must have published, with the bytes of an
undisturbed run. Prints one JSON object: what the processes said, and what went wrong in which round.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import campaign

MOMENT_SECONDS = 0.15
CALLS_OF_A_TASK = 60


@dataclass
class Rounds:
    """What to try.

    Attributes:
        workdir: Where to make the fresh directories.
        inputs: The directory with the inputs.
        arguments: The command line after ``tokshard``; ``{in}`` stands for the input directory.
        rounds: How many.
        waves: Waves of a round before the last.
        killed: The share of the processes of a wave that are killed.
        most_tasks: The most tasks of an array.
        seed: Of all choices.
    """

    workdir: str
    inputs: str
    arguments: list[str]
    rounds: int
    waves: int = 2
    killed: float = 0.4
    most_tasks: int = 8
    seed: int = 1


def kill_at_call(k: int) -> None:
    """Let the k-th storage call be the death of this process."""
    from tokshard.storage import syscalls

    count = 0

    def wrap(name: str) -> None:
        original = getattr(syscalls, name)

        def wrapped(*arguments: Any) -> Any:
            nonlocal count
            count += 1
            if count == k:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*arguments)

        setattr(syscalls, name, wrapped)

    for name in campaign.WRITING_CALLS:
        wrap(name)


def start(
    pipe: tuple[int, int], rounds: Rounds, extra: list[str], log: str, death: tuple[str, float] | None
) -> int:
    """Fork a command that waits for the end of a pipe; return its process id."""
    pid = os.fork()
    if pid:
        return pid
    status = 99
    try:
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), 1)
        os.dup2(1, 2)
        os.close(pipe[1])
        os.read(pipe[0], 1)
        if death and death[0] == "call":
            kill_at_call(int(death[1]))
        elif death:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # which ends the process, whatever it is doing
            signal.setitimer(signal.ITIMER_REAL, death[1])
        sys.argv = ["tokshard", *(word.replace("{in}", rounds.inputs) for word in rounds.arguments), *extra]
        from tokshard.cli import main

        main.main()
        status = 0
    except SystemExit as stop:
        status = int(stop.code or 0)
    except BaseException:  # a traceback is what the report needs
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def play_wave(rounds: Rounds, chance: random.Random, *, last: bool) -> Counter[str]:
    """Start all tasks of an array at once, and others; return how often each ended in which way."""
    count = chance.randint(2, rounds.most_tasks)
    indices = list(range(count))
    if not last:
        indices += [chance.randrange(count)]  # twice at once
    commands = [["--array-task", f"{index}/{count}", "--json"] for index in indices]
    if not last:
        commands += chance.choice([[], [["--finish", "--json"]], [["--json"]]])
    chance.shuffle(commands)
    pipe = os.pipe()
    pids = []
    for number, extra in enumerate(commands):
        death = None
        if not last and chance.random() < rounds.killed:
            at_call = chance.random() < 0.7
            moment = chance.randint(1, CALLS_OF_A_TASK) if at_call else chance.random() * MOMENT_SECONDS
            death = ("call" if at_call else "moment", moment + (0 if at_call else 0.001))
        pids.append(start(pipe, rounds, extra, f"log-{number}.txt", death))
    for descriptor in pipe:
        os.close(descriptor)  # now all start
    ends: Counter[str] = Counter()
    for pid in pids:
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        ends[f"killed by {signal.Signals(-status).name}" if status < 0 else str(status)] += 1
    for path in Path().glob("log-*.txt"):
        for line in path.read_text().splitlines():
            if line.lstrip().startswith('"state"'):
                ends[line.split('"')[3]] += 1
    return ends


def play(
    rounds: Rounds, chance: random.Random, new: list[campaign.Output]
) -> tuple[Counter[str], str | None]:
    """Play a round; return what happened, and what is wrong, if anything is."""
    directory = Path(rounds.workdir, "round")
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    os.chdir(directory)
    ends: Counter[str] = Counter()
    for wave in range(rounds.waves + 1):
        for path in Path().glob("log-*.txt"):
            path.unlink()
        this = play_wave(rounds, chance, last=wave == rounds.waves)
        ends += this
        logs = "\n".join(path.read_text()[-1500:] for path in Path().glob("log-*.txt"))
        if wrong := this.keys() - ALLOWED[wave == rounds.waves]:
            return ends, f"wave {wave}: somebody ended by {sorted(wrong)}: {logs}"
        if (judged := campaign.judge(campaign.outputs(["out/x"]), new, None)) is not None:
            return ends, f"wave {wave}: {judged}"
    if campaign.outputs(["out/x"]) != new:
        return ends, f"nobody has published, or other bytes: {logs}"
    if left := campaign.leftovers():
        return ends, f"left over: {left}"
    return ends, None


STATES = {"encoded", "published", "elsewhere", "up-to-date"}
# Disturbed: 1 is a --finish that found something to lack, 5 one that was locked out.
ALLOWED = {
    True: STATES | {"0"},
    False: STATES | {"0", "1", "5", "killed by SIGKILL", "killed by SIGALRM"},
}


def main() -> None:
    rounds = Rounds(**json.loads(sys.argv[1]))
    os.makedirs(rounds.workdir)
    os.chdir(rounds.workdir)
    os.environ["TMPDIR"] = rounds.workdir
    import tokshard.text.tokenize.job_array.job  # noqa: F401 - once, before the forks

    if campaign.load_for(lambda: campaign.command(rounds.arguments, rounds.inputs, None)) != 0:
        raise RuntimeError(Path("stderr.txt").read_text())
    new = campaign.outputs(["out/x"])
    ends: Counter[str] = Counter()
    failures = {}
    for number in range(rounds.rounds):
        this, wrong = play(rounds, random.Random(f"{rounds.seed} {number}"), new)
        ends += this
        if wrong is not None:
            failures[number] = wrong
    os.chdir("/")
    shutil.rmtree(rounds.workdir, ignore_errors=True)
    print(json.dumps({"ends": ends, "failures": failures}))


if __name__ == "__main__":
    main()
