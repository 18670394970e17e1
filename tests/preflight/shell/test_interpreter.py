"""Shell text is read as bash reads it, as far as it can be known without running it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.real_bash import bash
from tokshard.errors import UsageError
from tokshard.preflight.shell.interpreter import read_shell
from tokshard.preflight.shell.values import Word


def read_commands(text: str) -> list[tuple[Word, ...]]:
    """The commands of a script with one path."""
    (path,) = read_shell(text)
    return [command.words for command in path.commands]


def words_of(text: str) -> list[list[str]]:
    return [[word.text for word in command] for command in read_commands(text)]


QUOTED = ["'q q'", '"d  d"', '"x $T y"', '"$S"', '"${L[@]}"', '"\\"x\\""', "''", '""', '"a\\\nb"', '"\\x"']
EXPANDED = ["$S.", "${S}", "${L[@]}", "${L[*]}", "$L,", "${N:-0.5}", "$((K * 2 + 1))", "$(((K-1)/2))", "$'z'"]
PIECES = st.sampled_from([*QUOTED, *EXPANDED, "a", "B7", "--data-path", "=", "e\\$", "\\ ", "\\\n"])
WORDS = st.lists(PIECES, min_size=1, max_size=4).map("".join)
COMMANDS = st.lists(WORDS, max_size=5).map(lambda words: " ".join(["run", *words]))
SEPARATORS = st.sampled_from(["\n", " ; ", " && ", "  # note 'x\n", "\n\n", " 2>/dev/null\n"])
SETTINGS = "S='1 two'\nT=three\nexport K=7\nL=(a 'b c' # comment\n  \"$T\" $S)\nL+=(last) T+=$K\n"


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(COMMANDS, SEPARATORS), min_size=1, max_size=4))
def test_words_are_those_of_bash(commands):
    text = SETTINGS + "".join(map("".join, commands)) + "run"
    assert words_of(text) == bash(text)


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("run $HOME", "$HOME"),
        ("run ${X%.*}", "${X%.*}"),
        ("run a$(date)b", "$(date)"),
        ("run `date +'%s'`", "`date +'%s'`"),
        ("run $1", "$1"),
        ("Y=$X; run $Y", "$X"),
        ("run $((2**X))", "$((2**X))"),
        ("X=1; run $((X/0))", "$((X/0))"),
    ],
)
def test_what_only_a_shell_knows_is_marked(text, unknown):
    word = read_commands(text)[-1][-1]
    assert unknown in word.text
    assert word.unknown == (unknown,)


def test_a_plain_word_has_nothing_unknown():
    assert read_commands("run '$X' \\$X $") == [(Word("run"), Word("$X"), Word("$X"), Word("$"))]


def test_pipes_brackets_and_redirections_part_commands():
    text = "(cd x && run a) 2>&1 | tee log > out &\nif run b; then run c; fi"
    (holds, fails) = read_shell(text)
    assert [[word.text for word in command.words] for command in holds.commands] == [
        ["run", "a"],
        ["tee", "log"],
        ["run", "b"],
        ["run", "c"],
    ]
    assert (holds.branches, fails.branches) == (("run b",), ("not run b",))


@pytest.mark.parametrize("text", ["run 'a", 'run "a', "A=(a b", "run ${A", "run $(a", "run `a", "A=(a; b)"])
def test_what_is_not_closed_is_an_error(text):
    with pytest.raises(UsageError):
        read_commands(text)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="ab=$(){}[]@'\"\\ \n#;&|<>`*+-:1", max_size=30))
def test_no_text_breaks_the_reader(text):
    try:
        paths = read_shell(text)
    except UsageError:
        return
    assert all(command.words for path in paths for command in path.commands)


LEAVES = st.sampled_from(["1", "a", "-", "${T}", '"{,}"', "\\{", "\\,", "'x y'", "{}", "{a}", "=", "${S}"])
RANGES = st.builds(
    "{{{}..{}{}}}".format,
    *[st.sampled_from(["1", "04", "-2", "9"])] * 2,
    st.sampled_from(["", "..2", "..-3"]),
)
BRACES = st.recursive(
    LEAVES | RANGES | st.just("{c..e}"),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map("".join)
        | st.lists(inner, min_size=2, max_size=3).map(lambda choices: f"{{{','.join(choices)}}}")
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(st.lists(BRACES, max_size=3))
def test_braces_are_expanded_as_bash_does(words):
    text = SETTINGS + f"run {' '.join(words)}"
    assert words_of(text) == bash(text)


def open_words(text: str) -> list[tuple[str, bool]]:
    return [(word.text, word.is_open) for word in read_commands(text)[-1]]


def test_elements_of_arrays_may_be_any_number_of_words():
    text = 'L=(a $X "$Y" "$@"); '
    opened = [("a", False), ("$X", True), ("$Y", False), ("$@", True)]
    assert open_words(text + 'run "${L[@]}"') == [("run", False), *opened]
    assert open_words(text + 'run "${L[*]}"') == [("run", False), ("a $X $Y $@", False)]
    assert open_words(text + 'run "${L[2]}" ${#L[@]}')[1:] == [("${L[2]}", False), ("${#L[@]}", True)]


@pytest.mark.parametrize("append", ["L+=(--b 2)", "L+=' --b 2'"])
def test_a_file_that_cannot_be_read_may_set_what_is_appended_to(append):
    known = [("run", False), ("--b", False), ("2", False)]
    assert open_words(f"{append}; run ${{L[@]}}") == known
    assert open_words(f"source settings.sh; {append}; run ${{L[@]}}") == [
        known[0],
        ("${L[@]}", True),
        *known[1:],
    ]


def test_text_is_appended_to_a_variable_that_another_branch_sets():
    assert open_words("if false; then L=a; fi; L+=b; run $L") == [("run", False), ("b", False)]


def test_descriptions_in_angle_brackets_are_unknown_values():
    texts = ["run <data path>_x --to <PATH>", "sh -c 'run <data path>_x --to <the path>' 2>&1 <in 2>log"]
    for text, last in zip(texts, ("<PATH>", "<the path>"), strict=True):
        (command,) = read_commands(text)
        assert [word.text for word in command] == ["run", "<data path>_x", "--to", last]
        assert [word.unknown for word in command] == [(), ("<data path>",), (), (last,)]
    assert words_of("run '<s>' \"</s>\" <a >b") == [["run", "<s>", "</s>"]]


def test_elements_of_arrays_may_begin_with_brackets():
    assert words_of("L=(--layers [0]+[1]\n [2]=x); run ${L[@]}")[-1][:2] == ["run", "--layers"]
    assert open_words("L=(--layers [0]+[1] -a); run ${L[@]}")[2:] == [("[0]+[1]", False), ("-a", False)]


def test_of_too_many_paths_those_with_other_options_stay_apart():
    defaults = "".join(f'if [ -z "$V{n}" ]; then V{n}={n}; fi\n' for n in range(9))
    text = 'if [ "$D" = x ]; then O="--data a"; else O="--data b"; fi\n'
    paths = read_shell(f"{defaults}{text}{defaults.replace('V', 'W')}run $O $V1")
    assert len(paths) <= 32
    commands = [[word.text for word in path.commands[0].words] for path in paths]
    assert {tuple(words[:3]) for words in commands} == {("run", "--data", "a"), ("run", "--data", "b")}
    assert {len(words) for words in commands} == {4}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("until run a; do sleep 1; done", ["run", "a"]),
        ("IFS=,; L=a,b; run $L", ["run", "a", "b"]),
        ("D=x; unset D; run ${D-m}", ["run", "m"]),
        ("A=(1 2 3); unset 'A[1]'; run ${A[@]}", ["run", "1", "3"]),
        ("D=w; f() { local D=s; g; }; g() { D=z; }; f; run $D", ["run", "w"]),
        ("run $((010)) $((0x10)) $'t\\tb'", ["run", "8", "16", "t\tb"]),
        ("ls | xargs -I{} run data/{}", ["xargs", "-I{}", "run", "data/{}", "xargs"]),
    ],
)
def test_less_common_syntax(text, expected):
    found = read_commands(text)[0 if "until" in text else -1]
    assert [word.text for word in found] == expected


def test_what_runs_for_each_input_is_unknown():
    (found,) = [command for command in read_commands("ls | xargs -I{} run data/{}") if len(command) > 1]
    assert [word.unknown for word in found][2:] == [(), ("data/{}",), ("xargs",)]


def test_alternatives_within_a_pipe_stay_apart():
    text = "srun bash -c 'if [ $X = 1 ]; then run a; else run b; fi' | tee log"
    paths = read_shell(text)
    assert [path.branches for path in paths] == [("[ $X = 1 ]",), ("not [ $X = 1 ]",)]
    assert [[word.text for word in path.commands[0].words] for path in paths] == [["run", "a"], ["run", "b"]]


def test_a_condition_on_parameters_is_asked_again_when_they_change():
    text = 'set -- $U; if [ "$1" = a ]; then :; fi; set -- $V; if [ "$1" = a ]; then run; fi; run end'
    assert {tuple(word.text for word in path.commands[0].words) for path in read_shell(text)} == {
        ("run",),
        ("run", "end"),
    }
