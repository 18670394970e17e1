"""Scripts that are endless, huge or deep end in an error or an unknown value, in bounded time and memory."""

from __future__ import annotations

import contextlib
import resource
import subprocess
import sys
import time

import pytest

from tokshard.checks.doctor.shell import state, syntax
from tokshard.checks.doctor.shell.interpreter import read_shell
from tokshard.errors import UsageError

RUN = "torchrun pretrain_gpt.py --mock-data --train-iters 3 --seed "
TOO_MUCH = "runs too many commands, or makes too long values"
TOO_LARGE = "is too large to parse"
TOO_DEEP = "is nested too deeply"
LONG = "x=" + "a" * 1000 + "\n"
WORDS = "x='" + "a " * 200_000 + "'\n"
ROUNDS = "for i in {1..900}; do "
# They would take minutes or gigabytes without a limit.
HOSTILE = {
    "braces": (RUN + "{a,b}" * 40, TOO_MUCH),
    "ranges": (RUN + "{1..1000}{1..1000}{1..1000}", TOO_MUCH),
    "a range": (RUN + "{1..999999999}", TOO_MUCH),
    "an eval that doubles": ('e=\'e="$e$e"; eval "$e"\'; eval "$e"\n' + RUN + "1", None),
    "words": (RUN + "a " * 500_000, TOO_LARGE),
    "elements": ("A=(" + "a " * 500_000 + ")\n" + RUN, TOO_LARGE),
    "assignments": ("A=1\n" * 500_000 + RUN + "$A", TOO_LARGE),
    "patterns": ("case x in\n" + "".join(f"p{n}) ;;\n" for n in range(100_000)) + "esac\n", TOO_LARGE),
    "parentheses": ("(" * 2_000_000, TOO_LARGE),
    "values": (LONG + f'x="{"$x" * 1000}"\n' * 3 + RUN, TOO_MUCH),
    "replacements": (LONG + "x=${x//a/$x}\n" * 3 + RUN, TOO_MUCH),
    "outputs": (LONG + f'x=$(echo "{"$x" * 1000}"\n)\n' * 3 + RUN, TOO_MUCH),
    "formats": (LONG + f"x=$(printf '%s{'-' * 1000}' {{1..999}}\n)\n" + "x=$(printf $x $x$x$x)\n" * 9, None),
    "documents": (LONG + f"x=$(cat <<END\n{'$x' * 1000}\nEND\n)\n" * 3 + RUN, TOO_MUCH),
    "long outputs": (LONG + 'x=$(echo "$x$x$x$x$x$x$x$x$x$x")\n' * 12 + RUN, TOO_MUCH),
    "a sequence": (RUN + "$(seq 1 999999999)", TOO_MUCH),
    "functions": (
        "f0() { :; }\n" + "".join(f"f{n + 1}() {{ f{n}; f{n}; }}\n" for n in range(50)) + "f50",
        TOO_MUCH,
    ),
    "loops": (ROUNDS * 5 + "A=1; " + "done; " * 5 + RUN, TOO_MUCH),
    "endless loops": ("while :; do " * 4 + "X=1$X; " + "done; " * 4 + RUN, TOO_MUCH),
    "splits": (WORDS + ROUNDS + "A=($x); done\n" + RUN, TOO_MUCH),
    "reads": (WORDS + ROUNDS + 'read -ra A <<< "$x"; done\n' + RUN, TOO_MUCH),
    "evals": (ROUNDS + 'eval "A$i=1; B$i=1; C=$(eval "echo $i")"; done\n' + RUN, TOO_MUCH),
    "arrays": (ROUNDS + 'L+=("${L[@]}" x); done\n' + RUN, TOO_MUCH),
    "a pattern": ("x=" + "a" * 4000 + "\n" + ("y=${x%%" + "*a" * 60 + "b}\n") * 90 + RUN, None),
    "conditions": ("".join(f"V{n}=\nif [ $X ]; then W{n}=1; fi\n" for n in range(3000)) + RUN, TOO_MUCH),
    "recursion": ("f() { f; }; f", TOO_DEEP),
}

# The others of these need little time or memory with a limit.
WORST = [
    "an eval that doubles",
    "words",
    "patterns",
    "parentheses",
    "long outputs",
    "loops",
    "splits",
    "conditions",
]


def last_words(text: str) -> list[str]:
    """The words of the last command."""
    return [word.text for word in read_shell(text).commands[-1].words]


@pytest.mark.parametrize("name", WORST)
def test_the_worst_scripts_end_soon_and_in_little_memory(name, tmp_path):
    script, message = HOSTILE[name]
    (tmp_path / "launch.sh").write_text(script)
    limits = {resource.RLIMIT_CPU: 30, resource.RLIMIT_DATA: 300 << 20}

    def limit() -> None:
        for kind, most in limits.items():
            resource.setrlimit(kind, (most, most))

    command = [sys.executable, "-m", "tokshard", "doctor", "launch.sh"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False, preexec_fn=limit
    )
    if message is None:
        assert done.returncode in (0, 1, 2), done.stderr
        assert "Traceback" not in done.stderr
    else:
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("name", [name for name in HOSTILE if name not in WORST])
def test_hostile_scripts_are_refused_soon(name):
    script, message = HOSTILE[name]
    start = time.process_time()
    refused = pytest.raises(UsageError, match=message) if message else contextlib.suppress(UsageError)
    with refused:
        read_shell(script)
    assert time.process_time() - start < 30  # each takes at most 3 s: without a limit, minutes or more


@pytest.mark.parametrize(
    "text",
    [
        "(" * 1500 + "run" + ")" * 1500,
        'run "' + "$(echo " * 200 + ")" * 200 + '"',
        "run $((" + "(" * 1500 + "1" + ")" * 1500 + "))",
    ],
)
def test_what_is_nested_deeply_is_read_or_refused(text):
    with contextlib.suppress(UsageError):
        read_shell(text)


@pytest.mark.parametrize("text", ["f() { f; }; f", "f() { eval f; }; f", "x='eval $x'; eval $x"])
def test_a_script_that_calls_itself_is_refused(text):
    with pytest.raises(UsageError, match="the launch script is nested too deeply"):
        read_shell(text)


def test_a_huge_script_is_refused(monkeypatch):
    monkeypatch.setattr(syntax, "_MAX_CHARACTERS", 10)
    with pytest.raises(UsageError, match="at most 10 characters, got 11"):
        read_shell("run 2345678")


@pytest.mark.parametrize(
    "loop",
    [
        "while true; do X=1$X; done",
        "while :; do :; done",
        "for ((;;)); do X=2; done",
        "until false; do X=3; done",
    ],
)
def test_an_endless_loop_makes_its_variables_unknown(loop):
    assert last_words(f"X=0; Y=1; {loop}; run $X $Y")[-1] == "1"


def test_a_loop_over_much_work_is_refused_and_a_small_one_is_read(monkeypatch):
    monkeypatch.setattr(state, "_MAX_WORK", 100_000)
    assert last_words("for i in {1..50}; do X=$i; done; run $X") == ["run", "50"]
    with pytest.raises(UsageError, match="the launch script runs too many commands"):
        read_shell("for i in {1..900}; do for j in {1..900}; do run; done; done")


def test_twenty_thousand_datasets_are_read():
    words = [f"/data/part-{number}" for number in range(20_000)]
    assert last_words("run " + " ".join(words)) == ["run", *words]


def test_numbers_that_bash_would_wrap_are_unknown():
    numbers = ["$((9223372036854775807 + 1))", "$((999999999999999999 * 10))", "$((1 << 63))", "$((9 ** 63))"]
    assert last_words(f"run {' '.join(numbers)} $((-7 / 2))") == ["run", *numbers, "-3"]


def test_many_conditions_are_one_path():
    text = "".join(f'if [ "$A{n}" = 1 ]; then X=1$X; else X=2$X; fi\n' for n in range(200))
    (command,) = read_shell(text + "run $X\n").commands
    assert len(command.words) == 2
    assert command.words[1].is_open


@pytest.mark.parametrize("code", ["00", "ff", "7b7d", "5b5d", "5b5b5b", "22"])
def test_a_script_may_contain_the_names_of_unknown_values(code):
    assert last_words(f"run 'a' ${{__unknown_{code}}} \"${{__unknown_{code}}}\"")[0] == "run"
    assert last_words(f"eval 'run ${{__unknown_{code}}}'")[0] == "run"
