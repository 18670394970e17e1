"""Shell text is read as bash reads it, as far as it can be known without running it."""

from __future__ import annotations

import os

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.real_bash import bash
from tokshard.checks.doctor.shell.interpreter import read_shell
from tokshard.checks.doctor.shell.values import Word
from tokshard.errors import UsageError


def read_commands(text: str) -> list[tuple[Word, ...]]:
    return [command.words for command in read_shell(text).commands]


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
        ("run $USER", "$USER"),
        ("run ${X%.*}", "${X%.*}"),
        ("run a$(date)b", "$(date)"),
        ("run `date +'%s'`", "`date +'%s'`"),
        ("run $1", "$1"),
        ("Y=$X; run $Y", "$X"),
        ("run $(($X / 2))", "$X"),
        ("X=1; run $((X/0))", "$((X/0))"),
        ("run $((010))", "$((010))"),
        ("X=1; run $((X << 2))", "$((X << 2))"),
        ("X=; run $(($X + 1))", "$(($X + 1))"),
        ('IFS=,; X=(a b); run "${X[*]}"', "${X[*]}"),
    ],
)
def test_what_only_a_shell_knows_is_marked(text, unknown):
    word = read_commands(text)[-1][-1]
    assert unknown in word.text
    assert word.unknown == (unknown,)


@pytest.mark.parametrize(
    ("text", "written", "reason"),
    [
        ("X=abc; run ${X/?/c}", "${X/?/c}", "a changed value of `X`"),
        ("X=abc; run ${X^^[ab]}", "${X^^[ab]}", "a changed value of `X`"),
        ("X=abc; run ${X:1:2}", "${X:1:2}", "a changed value of `X`"),
        ("X=abc; run ${X%b?}", "${X%b?}", "a changed value of `X`"),
        ("X=abc; run ${X##a*}", "${X##a*}", "a changed value of `X`"),
        ("X=abc; run ${X^}", "${X^}", "a changed value of `X`"),
        ("X=Y; Y=z; run ${!X}", "${!X}", "a changed value of `X`"),
        ("run {01..03}", "{01..03}", "`{...}`"),
        ("N=1; run $((N || N++))", "$((N || N++))", "$((N || N++))"),
        ("N=1; M=$((N || N++)); run $N", "$N", "`||`"),
        ("X=abc; run ${X@Q}", "${X@Q}", "a changed value of `X`"),
        ("X=abc; run ${X%[^a]}", "${X%[^a]}", "a changed value of `X`"),
        ("X='L[1]'; run ${!X}", "${!X}", "a changed value of `X`"),
        ("run {a,{b,c}}", "{a,{b,c}}", "`{...}`"),
        ("run {a..c}", "{a..c}", "`{...}`"),
        ("IFS=,; X=(a,b); run $X", "a,b", "`IFS`"),
        ("A=(1 2 3); unset 'A[1]'; run ${A[@]}", "$A", "`unset`"),
        ("A=(1); A[0]=2; run ${A[@]}", "$A", "`A[...]=`"),
        ("N=1; [ a = b -o $N = 1 ] && A=1; run $A", "$A", "`[ a = b -o 1 = 1 ]`"),
        ("A=([3]=2); run ${A[@]}", "$A", "`A=([...]=...)`"),
        ("declare -A A; A[x]=2; run ${A[x]}", "${A[x]}", "`declare -A`"),
        ("declare -A A=([x]=2); run ${A[x]}", "${A[x]}", "`declare -A`"),
        ("select A in a b; do run $A; done", "$A", "`for`"),
        ("A=1; let 'A *= 2'; run $A", "$A", "`A *= 2`"),
        ("for ((;;)); do ((i++)); [ $i = 2000 ] && break; done; run $i", "$i", "$i"),
        ("N=1; cat <<< $((N++)); run $N", "$N", "`<<`"),
        ("PWD=/x; run $PWD", "$PWD", "`PWD=`"),
        ("declare -n A=B; A=1; run $B", "$B", "`declare -n`"),
    ],
)
def test_syntax_that_is_not_computed_is_unknown_for_a_reason_without_a_variable(text, written, reason):
    word = read_commands(text)[-1][-1]
    assert (word.text, word.unknown) == (written, (reason,))


def test_a_plain_word_has_nothing_unknown():
    assert read_commands("run '$X' \\$X $") == [(Word("run"), Word("$X"), Word("$X"), Word("$"))]


def test_pipes_brackets_and_redirections_part_commands():
    text = "(cd x && run a) 2>&1 | tee log > out &\nif run b; then run c; fi"
    commands = read_shell(text).commands
    assert [[word.text for word in command.words] for command in commands] == [
        ["run", "a"],
        ["tee", "log"],
        ["run", "b"],
        ["run", "c"],
    ]
    assert [command.conditions for command in commands] == [(), (), (), (["`run b`"],)]


@pytest.mark.parametrize("text", ["run 'a", 'run "a', "A=(a b", "run ${A", "run $(a", "run `a", "A=(a; b)"])
def test_what_is_not_closed_is_an_error(text):
    with pytest.raises(UsageError):
        read_commands(text)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="ab=$(){}[]@'\"\\ \n#;&|<>`*+-:1", max_size=30))
@example("()1")
def test_no_text_breaks_the_reader(text):
    try:
        reading = read_shell(text)
    except UsageError:
        return
    assert all(command.words for command in reading.commands)


LEAVES = st.sampled_from(["1", "a", "-", "${T}", '"{,}"', "\\{", "\\,", "'x y'", "{}", "{a}", "=", "${S}"])
RANGES = st.builds("{{{}..{}}}".format, *[st.sampled_from(["1", "04", "0", "9"])] * 2)
FLAT = (
    st.lists(st.sampled_from(["", "a", "1", "x.y"]), min_size=2, max_size=3)
    .map(",".join)
    .map("{{{}}}".format)
)
BRACES = st.recursive(
    LEAVES | RANGES | FLAT | st.sampled_from(["{c..e}", "{1..9..2}", "{-2..1}"]),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map("".join)
        | st.lists(inner, min_size=2, max_size=3).map(lambda choices: f"{{{','.join(choices)}}}")
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(BRACES)
def test_braces_are_expanded_as_bash_does_or_unknown(word):
    text = SETTINGS + f"run {word}"
    (command,) = read_commands(text)
    if not any(word.unknown for word in command):
        assert words_of(text) == bash(text)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        RANGES.filter(lambda text: "04" not in text) | FLAT | st.sampled_from(["a", "${T}", '"{,}"']),
        max_size=3,
    ).map("".join)
)
def test_flat_braces_are_expanded_as_bash_does(word):
    text = SETTINGS + f"run {word}"
    assert words_of(text) == bash(text)


def open_words(text: str) -> list[tuple[str, bool]]:
    return [(word.text, word.is_open) for word in read_commands(text)[-1]]


def test_elements_of_arrays_may_be_any_number_of_words():
    text = 'L=(a $X "$Y" "$@"); '
    opened = [("a", False), ("$X", True), ("$Y", False), ("$@", True)]
    assert open_words(text + 'run "${L[@]}"') == [("run", False), *opened]
    assert open_words(text + 'run "${L[*]}"') == [("run", False), ("a $X $Y $@", False)]
    assert open_words('L=(a b); run "${L[@]:1}"') == [("run", False), ("${L[@]:1}", True)]
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


def test_a_condition_is_not_evaluated_after_a_break():
    assert words_of("for ((i = 0; i++ < 9;)); do break; done; run $i") == [["run", "1"]]


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
    assert words_of("L=(--layers [0]+[1]\n [2]*3); run ${L[@]}")[-1][:2] == ["run", "--layers"]
    assert open_words("L=(--layers [0]+[1] -a); run ${L[@]}")[2:] == [("[0]+[1]", False), ("-a", False)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("until run a; do sleep 1; done", ["run", "a"]),
        ('A=xfoo; [[ $A == *"foo" ]] && run a', ["run", "a"]),
        ("A=foo B='f*'; [[ $A == $B ]] && run a; [[ $A == \"$B\" ]] && run b", ["run", "a"]),
        ("IFS=,; unset IFS; L='a b'; run $L", ["run", "a", "b"]),
        ("ls | xargs -I{} run data/{}", ["ls"]),
        ("D=x; unset D; run ${D-m}", ["run", "m"]),
        ("A=(1 2); A=0; run ${A[@]}", ["run", "0", "2"]),
        ("D=w; f() { local D=s; g; }; g() { D=z; }; f; run $D", ["run", "w"]),
        ("run $'t\\tb'", ["run", "t\tb"]),
    ],
)
def test_less_common_syntax(text, expected):
    found = read_commands(text)[0 if "until" in text else -1]
    assert [word.text for word in found] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Commands in undecided branches are marked with what decides.
        ("srun bash -c 'if [ $X = 1 ]; then run a; else run b; fi' | cat", [["$X"], ["$X"]]),
        ("if [ $X = 1 ]; then run; elif [ -f a ]; then run; fi; run", [["$X"], ["$X", "`[ -f a ]`"], []]),
        ("[ $X = 1 ] && run; [[ $Y == a ]] || run", [["$X"], ["$Y"]]),
        ("M=$1; case $M in a) run ;; b) run ;; esac", [["$1"], ["$1"]]),
        ("if ((N > 2)); then run; fi", [["$N"]]),
        ("f() { run; }; if [ $X ]; then f; fi", [["$X"]]),
        # A check that ends the script, a function or a round is expected to pass.
        ("if [ $# -lt 2 ]; then run usage; exit 1; fi; run", [["$#"], []]),
        ("[ -z $X ] && exit 1; run", [[]]),
        ("if [ -f a ]; then run; else exit 1; fi; run", [[], []]),
        ("f() { [ $X ] || return 1; run; }; f", [[]]),
        ("for i in 1 2; do [ $X ] || continue; run; done", [[], []]),
        ("case $X in a) ;; *) exit 1 ;; esac; run", [[]]),
        ("[[ a == [^b] ]] && run; case a in [[:alpha:]]) run ;; esac", [["`[ a == [^b] ]`"], ["`case a`"]]),
        (
            "[[ '*a' == '*'* ]] && run; [[ 'ba' == '*'* ]] && run; [[ '[a' == '['* ]] && run",
            [[], ["`[ [a == [[]* ]`"]],
        ),
        # A variable with a default in the script is not set.
        ('if [ -z "$X" ]; then X=1; run; else run no; fi', [[]]),
        ("[[ -n $X ]] || X=1; if [ $X = 1 ]; then run; fi", [[]]),
        # Loops run.
        ("for i in $X; do run; done; while [ $X ]; do run; done", [[], []]),
        ('is_a() { [ $1 = a ]; }; if is_a a; then run; fi; if is_a "$X"; then run; fi', [[], ["$X"]]),
    ],
)
def test_commands_under_an_undecided_condition(text, expected):
    conditions = [
        command.conditions for command in read_shell(text).commands if command.words[0].text == "run"
    ]
    assert [[reason for reasons in found for reason in reasons] for found in conditions] == expected


@pytest.mark.parametrize(
    ("text", "word", "reasons"),
    [
        ("if [ $X = 1 ]; then A=1; else A=2; fi; run $A", "$A", "$X"),
        ("if [ $X = 1 ]; then A=1; else A=1; fi; run $A", "1", None),
        (
            "if [ $X = 1 ]; then A=1; else A=2; fi; if [ $X = 1 ]; then B=1; else B=2; fi; run $A$B",
            "$A$B",
            "$X",
        ),
        ("A=0; if [ $X ]; then A=1; elif [ $Y ]; then A=2; fi; run $A", "$A", "$X and $Y"),
        ("A=0; if [ $X ]; then A=1; fi; if [ $A = 1 ]; then B=1; fi; run $B", "$B", "$X"),
        ("A=0; if [ -d d ]; then A=1; fi; run $A", "$A", "`[ -d d ]`"),
        ("A=0; [ $X ] && A=1; run ${A}", "$A", "$X"),
        ("A=0; for i in $X; do A=1; done; run $A", "$A", "$X"),
        ("A=0; while read B; do A=$B; done; run $A", "$A", "`read`"),
        ("A=0; f() { [ $X ] && return; A=1; }; f; run $A", "$A", "$X"),
        ("A=0; for i in 1 2; do [ $X ] && break; A=$i; done; run $A", "$A", "$X"),
        ("f() { A=1; }; if [ $X ]; then f() { A=2; }; fi; f; run $A", "$A", "`f`"),
        ("A=0; if [ $X ]; then A=1; exit; fi; run $A", "0", None),
        ("A=0; if [ $X ]; then shift; fi; run $1", "$1", "$1"),
        ("if [ $X ]; then A=a; fi; run ${A:-b}", "${A:-b}", "$X"),
        ("if [ $X ]; then A=a; fi; run ${A:+b}", "${A:+b}", "$X"),
        ("A=1; if [ $X ]; then A=2; fi; run $((A * 2))", "$((A * 2))", "$X"),
        (
            "if [ $X ]; then A=2; else A=3; fi; run $(bash -c 'echo')",
            "$(bash -c 'echo')",
            "$(bash -c 'echo')",
        ),
    ],
)
def test_what_the_branches_of_an_undecided_condition_set_differently_is_unknown(text, word, reasons):
    last = read_shell(text, parameters=["a", "b"] if "shift" in text else None).commands[-1].words[-1]
    assert (last.text, " and ".join(dict.fromkeys(last.unknown)) or None) == (word, reasons)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("f() { return 1; }; S=1; f || S=2; run $S", "`f`"),
        ("f() { if [ 1 = 1 ]; then return 1; fi; }; S=1; f || S=2; run $S", "`f`"),
        ("S=1; (exit 1) || S=2; run $S", "`exit`"),
        ("S=1; command -v tool || S=2; run $S", "`command -v tool`"),
        ("S=1; if grep -q gpu hosts; then S=2; fi; run $S", "`grep -q gpu hosts`"),
        ("S=0; case a in a) S=1 ;;& [ab]) S=2 ;; esac; run $S", "`;&` in `case`"),
        ("S=0; case a in a) S=1 ;& b) S=2 ;; esac; run $S", "`;&` in `case`"),
    ],
)
def test_an_exit_status_that_only_running_tells_decides_nothing(text, reason):
    assert read_commands(text)[-1][-1].unknown == (reason,)


@pytest.mark.parametrize(
    ("text", "words", "choices"),
    [
        ("A=(-a 1); [ $X ] && A+=(-b 2); A+=(-c); run ${A[@]}", "run -a 1 ${A[@]} -c", [["-b", "2"], []]),
        ("A='-a 1'; [ $X ] && A+=' -b'; A+=' -c'; run $A", "run -a 1 $A -c", [["-b"], []]),
        ("A=' -a 1'; [ $X ] && A=\"$A -b \"; run $A", "run -a 1 $A", [["-b"], []]),
        ('if [ $X ]; then A=(-a); else A=(-b); fi; run "${A[@]}"', "run $A", [["-a"], ["-b"]]),
        ("if [ $X ]; then A=-a; elif [ $Y ]; then A=-b; fi; run $A", "run $A", [["-a"], ["-b"], []]),
        ('[ $X ] && A=-a; bash -c "run $A"', "run $A", [["-a"], []]),
    ],
)
def test_the_words_that_alternatives_have_in_common_are_known(text, words, choices):
    command = [command for command in read_shell(text).commands if command.words[0].text == "run"][-1]
    assert " ".join(word.text for word in command.words) == words
    (unknown,) = (word for word in command.words if word.unknown)
    assert [[word.text for word in choice] for choice in unknown.choices()] == choices


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("set -u\nGBS=1\nrun $GSB", ((3, "GSB", "GBS"),)),
        ("#!/bin/bash -eu\nSEQ_LEN=1\nrun ${SEQ_LNE}", ((3, "SEQ_LNE", "SEQ_LEN"),)),
        ("set -euo pipefail; run $BTACH; BATCH=1", ((1, "BTACH", "BATCH"),)),
        (
            "set -o nounset; read ABC <<< x; for XYZ in 1; do run $ACB $XZY; done",
            ((1, "ACB", "ABC"), (1, "XZY", "XYZ")),
        ),
        ("GBS=1; run $GSB", ()),
        ("set -u; set +u; GBS=1; run $GSB", ()),
        ("set -u; GBS=1; run ${GSB:-1} ${GSB-} ${GSB:+x}", ()),
        ("set -u; GBS=1; run $OTHER", ()),
        ("set -u; N1=1; RANK0=1; AB=1; run $N2 $RANK1 $BA", ()),
        ("set -u; USERS=1; NODES=1; SLURM_NODE_ID=1; run $USER $NNODES $SLURM_NODEID", ()),
        ("set -u; GBS=1; if [ $X ]; then run $GSB; fi; Y=$(run $GSB)", ()),
        ("set -u; source other.sh; GBS=1; run $GSB", ()),
    ],
)
def test_a_name_with_a_typing_mistake_is_a_problem_under_set_u(text, problems):
    assert read_shell(text).problems == problems


def test_the_current_directory_is_followed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    directories = {
        command.words[1].text: command.directory
        for command in read_shell("run a; cd x/..; (cd /usr; run b); cd $X; run c; cd /etc; run d").commands
    }
    assert directories == {"a": str(tmp_path), "b": "/usr", "c": None, "d": "/etc"}
    assert words_of("cd $X; run $PWD $(pwd) $HOME") == [["run", "$PWD", "$(pwd)", os.path.expanduser("~")]]
    given = read_shell("run $PWD $HOME ~/x $(pwd) $SLURM_SUBMIT_DIR", variables={"PWD": "/a", "HOME": "/b"})
    assert [word.text for word in given.commands[0].words[1:5]] == ["/a", "/b", "/b/x", "/a"]


@pytest.mark.parametrize("wrapper", ["ssh host bash -c", "docker run x bash -c", "srun --chdir /x bash -c"])
def test_the_directory_and_home_of_another_machine_are_unknown(wrapper):
    assert words_of(f"{wrapper} 'run $PWD $HOME'")[0][-2:] == ["$PWD", "$HOME"]


def test_a_script_for_a_scheduler_knows_the_directory_of_its_submission_but_not_its_own(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    text = "#!/bin/bash\n#SBATCH -J x\nrun $SLURM_SUBMIT_DIR $PWD $0 $(dirname ${BASH_SOURCE[0]})"
    (command,) = read_shell(text, path="x.sh").commands
    texts = [word.text for word in command.words]
    assert texts == ["run", str(tmp_path), str(tmp_path), "$0", "$(dirname ${BASH_SOURCE[0]})"]
    text = text.replace("-J x", "--chdir=/x")
    assert [word.text for word in read_shell(text, path="x.sh").commands[0].words][1:3] == [
        str(tmp_path),
        "$PWD",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "cd /usr; if [ $X ]; then cd lib; fi; run $PWD",
        "cd /usr; if [ $X ]; then pushd lib; fi; popd; run $PWD",
        "cd /usr; for i in $X; do cd lib; done; run $PWD",
        "cd /usr; f() { [ $X ] && return; cd lib; }; f; run $PWD",
        "cd /usr; popd; run $PWD",
        "cd $X; cd lib; run $PWD",
        "cd /usr lib; run $PWD",
        "CDPATH=/etc; cd usr; run $PWD",
    ],
)
def test_a_directory_that_may_differ_is_unknown(text):
    command = read_shell(text).commands[-1]
    assert (command.directory, command.words[1].text) == (None, "$PWD")
