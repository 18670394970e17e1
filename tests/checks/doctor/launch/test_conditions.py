"""Of random scripts with unset variables, all that is known of a launch command is what bash passes."""

from __future__ import annotations

import argparse
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from support.real_bash import bash
from tokshard.checks.doctor.launch.arguments import LaunchArguments
from tokshard.checks.doctor.launch.launch import Launch
from tokshard.checks.doctor.launch.text import read_launches
from tokshard.errors import UsageError

ASSIGNMENTS = st.sampled_from(
    [
        *("A='--seed 1'", 'A="$A --split 9,1"', "A+=' --eval-iters 3'", "A='x --seed 3'", "A=", "unset A"),
        *("B+=(--seq-length 8)", "B=(--seq-length 16 --seed 2)", "B+=(b c)", "B=()", "B[1]=7"),
        *("S=4", "S=$((S + 1))", "B+=(--micro-batch-size $S)", 'B+=(--split "$S")', "A+=${S:+ --seed 9}"),
    ]
)
CONDITIONS = st.sampled_from(
    [
        *('[ "$M" = a ]', "[[ $M == b ]]", '[ -z "$M" ]', '[ -n "$N" ]', "[[ $M == a && $N == 1 ]]"),
        *("((N > 1))", '[ "$S" = 4 ]', "! [ -n $M ]", '[ "$M" = a -o "$N" = 2 ]', "[[ -z $A ]]", "false"),
    ]
)
STATEMENTS = st.recursive(
    ASSIGNMENTS,
    lambda inner: st.one_of(
        st.builds("if {}; then {}; fi".format, CONDITIONS, inner),
        st.builds("if {}; then {}; else {}; fi".format, CONDITIONS, inner, inner),
        st.builds("if {}; then {}; elif {}; then {}; fi".format, CONDITIONS, inner, CONDITIONS, inner),
        st.builds("case $M in a) {} ;; b) {} ;; esac".format, inner, inner),
        st.builds("{} && {{ {}; }}".format, CONDITIONS, inner),
        st.builds("{} || {{ {}; }}".format, CONDITIONS, inner),
        st.builds("f() {{ {} && return; {}; }}; f".format, CONDITIONS, inner),
        st.builds(
            "for i in 1 2; do {} && {}; {}; done".format,
            CONDITIONS,
            st.sampled_from(["break", "continue"]),
            inner,
        ),
        st.builds("if {}; then {}; exit; fi".format, CONDITIONS, inner),
        st.builds("{}; {}".format, inner, inner),
    ),
    max_leaves=4,
)
LAUNCH = 'run pretrain_gpt.py --data-path d $A --eval-interval $S "${B[@]}" --train-iters 5'
NAMES = (
    "data_path",
    "seed",
    "split",
    "eval_iters",
    "eval_interval",
    "seq_length",
    "micro_batch_size",
    "train_iters",
)


def passed(words: list[str]) -> dict[str, object]:
    parser = argparse.ArgumentParser(allow_abbrev=False, argument_default=argparse.SUPPRESS)
    for name in NAMES:
        parser.add_argument("--" + name.replace("_", "-"), nargs="*" if name == "data_path" else "?")
    return vars(parser.parse_known_args(words)[0])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(STATEMENTS, min_size=1, max_size=4).map("\n".join))
def test_what_is_known_is_what_bash_passes_for_every_value_of_the_variables(script):
    text = f"S=2\nA=\nB=()\n{script}\n{LAUNCH}"
    try:
        (launch,) = read_launches(text.replace("\nrun ", "\ntorchrun "))
    except UsageError:  # the script always ends before it
        launch = Launch(arguments=LaunchArguments())
    unknown = dict(launch.arguments.unknown)
    for mode, number in product(("", "a", "b"), ("", "1", "2")):
        for _, program, *words in bash(text, variables={"M": mode, "N": number}):
            assert program == launch.program
            values = passed(words)
            for name in NAMES:
                value = getattr(launch.arguments, name)
                if value is not None:
                    assert str(value) == str(tuple(values[name]) if name == "data_path" else values[name]), (
                        name
                    )
                elif name not in unknown and not launch.arguments.unseen:
                    assert name not in values, name
