"""Nothing of a script is executed, and no file is written."""

from __future__ import annotations

import os
import stat
import subprocess
import sys

TOUCH = "touch canary"
CONSTRUCTS = [
    f"{TOUCH}",
    f"X=$({TOUCH})",
    f"X=`{TOUCH}`",
    f'X="${{Y:=$({TOUCH})}}"',
    f"echo ${{Y:-$({TOUCH})}} ${{Y:?$({TOUCH})}}",
    f"eval '{TOUCH}'",
    f'eval "$(echo {TOUCH})"',
    f"bash -c '{TOUCH}'",
    f"sh <<END\n{TOUCH}\nEND",
    f"bash <<< '{TOUCH}'",
    f"cat <({TOUCH}) > /dev/null",
    f"echo x > >({TOUCH})",
    "echo x > canary",
    "echo x >> canary",
    ": > canary",
    "> canary",
    "exec 3> canary",
    "echo x &> canary",
    "echo x | tee canary",
    "cat <<END > canary\nx\nEND",
    f"((A[$({TOUCH})]++))",
    f"X='A[$({TOUCH})]'; echo $((X)) $((X + 1))",
    f'X=\'A[$({TOUCH})]\'; [[ $X -eq 1 ]]; [ -v "$X" ]; printf -v "$X" x; unset "$X"; read "$X" <<< x',
    f"let 'A[$({TOUCH})]=1'",
    f"declare -n R='A[$({TOUCH})]'; echo $R; R=1",
    f"X='A[$({TOUCH})]'; echo ${{!X}} ${{X:A[$({TOUCH})]}}",
    f"declare -i N='A[$({TOUCH})]'; declare \"N=$({TOUCH})\"",
    f"X='$({TOUCH})'; echo ${{X@P}}; PS1=$X; PS4=$X; set -x; echo; set +x",
    f"coproc {TOUCH}",
    f"coproc C {{ {TOUCH}; }}",
    f"trap '{TOUCH}' EXIT DEBUG ERR",
    f"PROMPT_COMMAND='{TOUCH}'",
    "BASH_ENV=evil.sh bash -c :",
    f"source evil.sh; . ./evil.sh; bash evil.sh; ./evil.sh; source <({TOUCH})",
    f"f() {{ {TOUCH}; }}; f; f & wait; (f); {{ f; }}; time f; ! f",
    f"alias x='{TOUCH}'; shopt -s expand_aliases\nx",
    f"command {TOUCH}; builtin eval '{TOUCH}'; exec -a x {TOUCH}",
    f"xargs {TOUCH} <<< x; find . -exec {TOUCH} ';'; env {TOUCH}; nohup {TOUCH}; sudo {TOUCH}",
    f"if {TOUCH}; then :; fi; while {TOUCH}; do break; done; for i in $({TOUCH}); do :; done",
    f"case $({TOUCH}) in x) ;; esac; select i in $({TOUCH}); do break; done < /dev/null",
    f"mapfile -C '{TOUCH}' -c 1 A <<< $'a\\nb'; readarray A < <({TOUCH})",
    f"python -c 'open(\"canary\", \"w\")'; perl -e '`{TOUCH}`'; awk 'BEGIN {{ system(\"{TOUCH}\") }}'",
    "mkdir canary; cp evil.sh canary; mv evil.sh canary; ln -s evil.sh canary; dd of=canary; mkfifo canary",
    f"printf '%s' \"$({TOUCH})\" $'$({TOUCH})'; echo \"`{TOUCH}`\" \\$({{ {TOUCH}; }})",
    "cd $(mkdir canary; echo canary); pushd canary; mkdir -p canary && cd canary",
    f"torchrun pretrain_gpt.py --data-path $({TOUCH}) --seed $(( $({TOUCH}) + 1 )) {{a,$({TOUCH})}}",
]


def listing(directory) -> dict[str, tuple[int, int]]:
    """The files of a directory, with their sizes and times."""
    states = {path.name: os.lstat(path) for path in directory.iterdir()}
    return {name: (state.st_size, state.st_mtime_ns) for name, state in states.items()}


def test_no_construct_runs_a_program_or_writes_a_file(tmp_path):
    programs, directory = tmp_path / "programs", tmp_path / "job"
    programs.mkdir()
    directory.mkdir()
    for name in ("touch", "tee", "mkdir", "python", "torchrun", "cat", "find", "env"):
        (programs / name).write_text(f"#!/bin/sh\necho {name} > {directory}/canary\n")
        (programs / name).chmod(stat.S_IRWXU)
    (directory / "evil.sh").write_text(f"{TOUCH}\n")
    (directory / "evil.sh").chmod(stat.S_IRWXU)
    scripts = {f"{number}.sh": text for number, text in enumerate(CONSTRUCTS)}
    for name, text in {**scripts, "all.sh": "\n".join(CONSTRUCTS)}.items():
        (directory / name).write_text(f"{text}\ntorchrun pretrain_gpt.py --mock-data --train-iters 3\n")
    before = listing(directory)
    runner = (
        "import sys\n"
        "from tokshard.checks.doctor.launch.text import read_launches\n"
        "from tokshard.errors import UsageError\n"
        "for name in sys.argv[1:]:\n"
        "    try:\n"
        "        print(name, len(read_launches(open(name).read(), path=name)))\n"
        "    except UsageError as error:\n"
        "        print(name, error)\n"
    )
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONDONTWRITEBYTECODE": "1"}
    for command in (["-c", runner, *scripts], ["-m", "tokshard", "doctor", "all.sh"]):
        done = subprocess.run(
            [sys.executable, *command],
            cwd=directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert "Traceback" not in done.stderr
        assert listing(directory) == before
        if "-c" in command:
            assert len(done.stdout.splitlines()) == len(scripts), done.stderr


def test_the_constructs_are_harmful_in_bash(tmp_path):
    """Most constructs create the file when bash runs them, so that the test above can fail."""
    harmful = 0
    for number, text in enumerate(CONSTRUCTS):
        directory = tmp_path / str(number)
        directory.mkdir()
        (directory / "evil.sh").write_text(f"{TOUCH}\n")
        environment = {"PATH": "/usr/bin:/bin"}
        subprocess.run(
            ["bash", "-c", text],
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=20,
            check=False,
        )
        harmful += (directory / "canary").exists()
    assert harmful >= 0.8 * len(CONSTRUCTS)
