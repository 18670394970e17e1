"""Random scripts are read as real bash executes them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st

from support.real_bash import bash
from tokshard.checks.doctor.shell.interpreter import read_shell
from tokshard.checks.doctor.shell.state import ShellCommand
from tokshard.checks.doctor.shell.values import Word

START = """\
f() { run f "$@"; }
g() { echo "$1"; }
V=B
A='b c'
B=a.b.a
C=
N=3
D=d/e.bin
i=0
export A B C D N i
L=(a 'b c' "")
set -- p '' "q r"
"""
TEXTS = ["a", "b", "B7", "--x", "k=v", "1", "x.y", "a/b"]
CUTS = [f"{sign}{text}" for sign in ("#", "##") for text in ("a", "*.", "*c", "*a")]
CUTS += [f"{sign}{text}" for sign in ("%", "%%") for text in ("b", "b*", ".*", "/*", "a*")]
PATTERNS = ["a", "b*", "*.", ".*", "?", "[ab]", "*c", "/*", "a*"]
NUMBERS = ["0", "1", "2", "N", "$N", "${N}", "$#", "${#L[@]}"]


@dataclass(frozen=True)
class Names:
    """Variables that a script may use."""

    scalars: tuple[str, ...] = ("A", "B", "C", "D")
    unknown: tuple[str, ...] = ()
    split: tuple[str, ...] = ()  # unknown, and used as words of their own only
    is_known: bool = True  # without what the reader leaves unknown


KNOWN = Names()
UNKNOWN = Names(unknown=("U", "V"), split=("W",), is_known=False)


def named(make: Callable[..., st.SearchStrategy[str]]) -> Callable[..., st.SearchStrategy[str]]:
    """Make strategies whose representation is a name: Hypothesis prints that of nested ones."""
    cached = cache(make)

    def drawn(draw: st.DrawFn, *args: object) -> str:
        return draw(cached(*args))

    drawn.__name__ = make.__name__
    return st.composite(drawn)


def sampled(*texts: str) -> st.SearchStrategy[str]:
    return st.sampled_from(texts)


def joined(separator: str, parts: st.SearchStrategy[str], least: int, most: int) -> st.SearchStrategy[str]:
    return st.lists(parts, min_size=least, max_size=most).map(separator.join)


ARITHMETIC = st.recursive(
    sampled(*NUMBERS),
    lambda inner: (
        st.builds("({} {} {})".format, inner, sampled("+", "-", "*", "<", "==", "&&", "||", ">="), inner)
        | st.builds("({} / 2 % 3)".format, inner)
    ),
    max_leaves=4,
)


@named
def expansions(names: Names) -> st.SearchStrategy[str]:
    """What may stand between double quotes, and without them."""
    name = sampled(*names.scalars)
    changes = st.one_of(
        sampled(*CUTS),
        st.builds("{}{}".format, sampled(":-", "-", ":+", "+"), sampled("d", "$N", "${B}", "x y", "'q'")),
    )
    text_changes = sampled("^^", ",,", "/a/x", "//a/${B}", "//b")
    rare = st.one_of(
        st.builds(
            "${{{}{}}}".format,
            name,
            sampled("//?", "/#a/x", "@Q", ":1", ":1:-1", "^", "^^[ab]", "#?", "%[ab]", "##a*"),
        ),
        sampled("$((N << 1))", "$((010))", "{a,{b,c}}", "${L[@]: -1}", "${L[@]:1}", "${@:0:1}", "${!V}"),
        sampled("$((N > 2 || N++))", "$((N, 2 ** 3))", "$((N ? 1 : C))", "${@:2}"),
    )
    return st.one_of(
        name.map("${{{}}}".format),
        st.builds("${{{}{}}}".format, name, changes),
        *[rare] * (not names.is_known),
        name.map("${{#{}}}".format),
        st.builds("${{{}{}}}".format, name, text_changes),
        sampled("$((N++))", "$((N += 2))", "$((-N))"),
        sampled("$((!N))", "$(printf '%s,' a \"$A\" b)"),
        sampled("$(printf '%s=%d\\n' a $N; echo b)", '$(if [ -n "$C" ]; then echo c; fi)', "$(printf %%)"),
        sampled(
            "$(cd /usr/lib/.. && pwd)", "$(cd -- /; builtin cd usr >/dev/null 2>&1 && echo $PWD)", "${PWD}"
        ),
        sampled("$(seq 2 $N)", "$(g a 2>/dev/null)", "$(A=x; echo $A$B)", "$(echo -n 'a ' b; echo c)"),
        ARITHMETIC.map("$(({}))".format),
        sampled("${L[@]}", "${L[1]}", "${#L[@]}", "${L[*]}", "$@", "$#", "${!L[@]}"),
        sampled(
            "$1",
            "${2}",
            "$(echo $A)",
            '$(basename "./$D" .bin)',
            '$(dirname "./$D")',
            "$(expr $N + 1)",
            "`echo b`",
        ),
        *[sampled(*(f"${{{name}}}" for name in names.unknown))] * bool(names.unknown),
    )


@named
def words(names: Names) -> st.SearchStrategy[str]:
    text = sampled(*TEXTS)
    piece = st.one_of(
        text,
        sampled("'a  ${A}'", '"x\\$ y"', "\\ ", "''", '""', "$'t\\n'", "{1,2}"),
        expansions(names),
        joined("", expansions(names) | text | sampled(" "), 1, 3).map('"{}"'.format),
    )
    word = joined("", piece, 1, 3)
    return word | sampled(*(f"${name}" for name in names.split)) if names.split else word


@named
def conditions(names: Names) -> st.SearchStrategy[str]:
    operand = expansions(names).map('"{}"'.format) | sampled(*TEXTS)
    single = operand.filter(lambda text: "@" not in text)
    several = single if names.is_known else operand
    simple = st.one_of(
        st.builds("[ {} {} {} ]".format, several, sampled("=", "!=", "=="), several),
        st.builds("[ {} {} ]".format, sampled("-z", "-n", "! -z"), several),
        st.builds(
            "[ $(({})) {} {} ]".format,
            ARITHMETIC,
            sampled("-eq", "-ne", "-lt", "-gt", "-le", "-ge"),
            sampled("0", "2"),
        ),
        st.builds("[[ {} {} {} ]]".format, operand, sampled("==", "!=", "="), sampled(*PATTERNS) | operand),
        st.builds("[[ {} {} ]]".format, sampled("-z", "-n"), operand),
        ARITHMETIC.map("(({}))".format),
    )
    return st.one_of(
        simple,
        st.builds("[[ -n {} {} {} == {} ]]".format, operand, sampled("&&", "||"), operand, operand),
        *[st.builds("[ -n {} {} {} = {} ]".format, single, sampled("-a", "-o"), single, single)]
        * (not names.is_known),
        st.builds("{} {} {}".format, simple, sampled("&&", "||"), simple),
        simple.map("! {}".format),
    )


@named
def simple_statements(names: Names) -> st.SearchStrategy[str]:
    word, name = words(names), sampled(*names.scalars)
    many = joined(" ", word, 0, 3)
    return st.one_of(
        many.map("run {}".format),
        st.builds("{}{}{}".format, name, sampled("=", "+="), word),
        st.builds("L{}({})".format, sampled("=", "+="), many),
        *[st.builds("L[{}]{}{}".format, sampled("0", "2", "N"), sampled("=", "+="), word)]
        * (not names.is_known),
        st.builds(
            "{} {}={}".format, sampled("export", "declare"), name, expansions(names).map('"{}"'.format)
        ),
        ARITHMETIC.map("N=$(({}))".format),
        sampled("((N++))", "((N += 2))", "let N=N+1", "N=$((N * 2))", "((--N)) || run zero", "let N+=2 N*=2"),
        sampled('read A B <<< "$B c  d "', "IFS=, read -r A B <<< 'a,b c,d'", 'read -ra L <<< "$A $B"'),
        sampled("IFS=. read -ra L <<< $B", 'mapfile -t L <<< "$A\n$B"'),
        sampled("cd /usr", 'cd -- "/usr/lib/../bin"; run $PWD', "pushd / >/dev/null"),
        sampled("(cd /; run $(pwd))", "A=y f z", 'f() { run in $A "$@"; }', "A=x eval 'run $A'"),
        st.builds("set -- {}".format, many),
        sampled("shift", "shift 2", "unset A", "unset L", "export B"),
        st.builds("{} && run {}".format, conditions(names), many),
        st.builds("{} || run {}".format, conditions(names), many),
        st.builds("A=$(cat <<EOF\n{}\n\nEOF\n)".format, joined(" ", expansions(names), 0, 2)),
        st.builds("f {}".format, many),
        joined(" ", expansions(names) | sampled(*TEXTS), 0, 2).map('eval "run {}"'.format),
    )


@st.composite
def blocks(draw: st.DrawFn, names: Names, depth: int = 3) -> str:
    """A few statements, one on a line."""
    found = []
    for _ in range(draw(st.integers(1, 3))):
        is_compound = depth > 0 and draw(st.booleans())
        found.append(draw(compound_statements(names, depth) if is_compound else simple_statements(names)))
    return "\n".join(found)


@named
def compound_statements(names: Names, depth: int) -> st.SearchStrategy[str]:
    body, condition, word = blocks(names, depth - 1), conditions(names), words(names)
    items = joined(" ", word if names.is_known else sampled(*TEXTS), 0, 3)
    inner = body.filter(lambda text: not re.search(r"\bf\b", text))  # no recursion
    finite = body.filter(lambda text: "set --" not in text)
    text = inner.filter(lambda text: not re.search(r"L|END|\\\$|\(g ", text))  # neither L nor g is exported
    documents = text.filter(lambda text: not re.search(r"while|[+]=|[+][+]", text))  # they are expanded once
    loops = [
        st.builds("for A in {}; do\n{}\ndone".format, items, body),
    ]
    loops.append(
        st.builds("for ((i = 0; i < {}; i++)); do\n{}\nrun $i\ndone".format, sampled("2", "1 + 1"), body)
    )
    if names.is_known:
        loops += [
            finite.map("while [ $# -gt 0 ]; do\nrun $1\n{}\nshift\ndone".format),
            st.builds(
                "while (($#)); do case $1 in {}) B=$2; shift 2 || break ;; *) {}\nshift ;; esac; done".format,
                sampled(*PATTERNS),
                finite,
            ),
            body.map("for A; do\n{}\nrun $A\ndone".format),
            st.builds(
                "for A in {}; do\n{} && {}\n{}\ndone".format,
                items,
                condition,
                sampled("break", "continue"),
                body,
            ),
        ]
    return st.one_of(
        st.builds("if {}; then\n{}\nfi".format, condition, body),
        st.builds("if {}; then\n{}\nelse\n{}\nfi".format, condition, body, body),
        st.builds(
            "if {}; then\n{}\nelif {}; then\n{}\nelse\n{}\nfi".format, condition, body, condition, body, body
        ),
        st.builds(
            "case {} in\n{} | {})\n{}\n;;\n*) {}\n;;\nesac".format,
            word,
            sampled(*PATTERNS),
            sampled(*TEXTS),
            body,
            body,
        ),
        *loops,
        body.map("{{\n{}\n}}".format),
        body.map("(\n{}\n)".format),
        st.builds(
            "f() {{\nlocal {}={}\n{}\n{} && return\n{}\n}}\nf {}".format,
            sampled(*names.scalars),
            sampled(*TEXTS),
            inner,
            condition,
            inner,
            joined(" ", word, 0, 2),
        ),
        st.builds("bash -c {} x {}".format, text.map(shlex.quote), joined(" ", word, 0, 2)),
        text.map("bash <<'END'\n{}\nEND".format),
        (documents if names.is_known else expansions(names).map("run {}".format)).map(
            "bash <<END\n{}\nEND".format
        ),
        text.map(lambda text: f"eval {shlex.quote(text)}"),
    )


def commands_of(text: str, parameters: list[str] | None = None) -> list[ShellCommand]:
    reading = read_shell(text, parameters=parameters)
    return [command for command in reading.commands if command.words[0].text == "run"]


def is_instance(words: list[str], pattern: tuple[Word, ...]) -> bool:
    """Whether words are what a command becomes for some values of what is unknown in it."""
    if not pattern:
        return not words
    first, rest = pattern[0], pattern[1:]
    if first.is_open and first.choices():
        return any(is_instance(words, (*choice, *rest)) for choice in first.choices())
    least = 0 if first.is_open else 1
    # With text beside it, a list or a text that is split is one word at least.
    is_split = first.unknown and re.search(r"[@W]|\$\{\w+[:/^,]|\{a,", first.text)
    most = len(words) if first.is_open or is_split else 1
    if not first.unknown and words[:1] != [first.text]:
        return False
    return any(is_instance(words[count:], rest) for count in range(least, min(most, len(words)) + 1))


def is_run(commands: list[list[str]], reading: list[ShellCommand], *, has_returns: bool) -> bool:
    """Whether commands are those of a reading, without some of those under an undecided condition."""
    ends = {0}  # the numbers of commands that the reading so far may have
    for command in reading:
        ran = {end + 1 for end in ends if end < len(commands) and is_instance(commands[end], command.words)}
        ends = ran | (ends if any(command.conditions) or has_returns else set())
    return len(commands) in ends


VALUES = st.text("ab.", max_size=2)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(blocks(UNKNOWN), VALUES, VALUES, VALUES, st.lists(VALUES, max_size=3))
def test_all_that_is_known_of_an_unknown_script_is_what_bash_does(script, one, other, blanks, parameters):
    start = "\n".join(line for line in START.splitlines() if "set --" not in line)
    text = f"{start}\n{script}\nrun end"
    variables = {"U": one, "V": other, "W": f"{blanks} {one}"}
    commands = bash(text, parameters, variables)
    reading = commands_of(text)
    # What follows a return under an undecided condition is not marked.
    assert is_run(commands, reading, has_returns="return" in text), (commands, reading)


@settings(max_examples=100, deadline=None)
@given(blocks(KNOWN))
def test_known_scripts_run_the_commands_of_bash(script):
    text = f"{START}{script}\nrun end"
    found = [[word.text for word in command.words] for command in commands_of(text, [])]
    assert found == bash(text)
