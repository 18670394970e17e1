"""Lines of shell that would write a file or run a program if a shell executed them."""

from __future__ import annotations

import os
from pathlib import Path

# A file of this name, or an entry in the log of the programs, means that something was executed.
CANARY = "canary"

_PROGRAMS = """
touch cat tee cp ln mkdir mkfifo dd sed awk find xargs env nohup timeout nice install python python3 perl bash
sh srun sbatch mpirun docker apptainer torchrun ssh sudo git curl make date hostname nvidia-smi scontrol
readlink realpath dirname basename seq tr cut wc ls
"""

_COMMANDS = r"""
touch canary
$(touch canary)
`touch canary`
run "$(touch canary)"
X=$(touch canary)
export X=`touch canary`
declare "X=$(touch canary)"
declare -a A=([$(touch canary)]=1)
A=($(touch canary))
A[$(touch canary)]=1
A+=("`touch canary`")
eval touch canary
eval "$(echo touch canary)"
X='touch canary'; eval eval "$X"
X='$(touch canary)'; eval "echo $X"
X='touch canary'; $X
set -- touch canary; "$@"
exec touch canary
command touch canary
builtin eval 'touch canary'
time touch canary
! touch canary
touch canary &
(touch canary)
{ touch canary; }
coproc touch canary
f() { touch canary; }; f
function f { touch canary; }; f
f() { touch canary; }; X=$(f)
true && touch canary
false || touch canary
true | touch canary
if touch canary; then :; fi
while touch canary; do break; done
until touch canary; do :; done
for X in $(touch canary); do :; done
for ((I = $(touch canary; echo 0); I < 1; I++)); do :; done
case $(touch canary) in *) ;; esac
case x in $(touch canary)) ;; x) touch canary ;; esac
select X in a; do touch canary; break; done <<< 1
[ "$(touch canary)" ]
[[ $(touch canary) ]]
[[ -v 'A[$(touch canary)]' ]]
echo ${X:-$(touch canary)}
echo ${X:=$(touch canary)}
X=1; echo ${X:+$(touch canary)}
echo "${X:?$(touch canary)}"
X=a; echo ${X/a/$(touch canary)}
X=a; echo ${X//a/$(touch canary)}
X=a; echo ${X#$(touch canary)}
X=a; echo ${X:$(touch canary; echo 0):1}
X='$(touch canary)'; echo "${X@P}"
X='A[$(touch canary)]'; echo ${!X}
echo $((A[$(touch canary)]))
P='A[$(touch canary)]'; echo $((P))
P='A[$(touch canary)]'; ((P))
P='A[$(touch canary)]'; let P
P='A[$(touch canary)]'; [[ $P -eq 1 ]]
printf -v 'A[$(touch canary)]' x
printf "$(touch canary)"
read 'A[$(touch canary)]' <<< x
read X <<< "$(touch canary)"
read -ra A < <(touch canary)
mapfile -t A < <(touch canary)
mapfile -C 'touch canary #' -c 1 A <<< x
A=(1); unset 'A[$(touch canary)]'
cat <(touch canary)
echo x > >(touch canary)
> canary
: > canary
echo x >> canary
echo x >| canary
echo x &> canary
exec 3> canary
exec > canary
{ echo x; } > canary
cat > canary <<< x
cd "$(touch canary)" && pwd
X="$(cd "$(dirname "$0")" && touch canary && pwd)"
X=$(readlink -f "$(touch canary)")
X=$(basename "`touch canary`")
X=$(printf %s "$(touch canary)")
X=$(seq 1 3; touch canary)
X=$(<canary); X=$(touch canary)
source ./program
. ./program
source <(echo touch canary)
source /dev/stdin <<< 'touch canary'
./program
bash ./program
bash -c 'touch canary'
bash <<< 'touch canary'
echo 'touch canary' | bash
BASH_ENV=./program bash -c :
sh -c 'touch canary'
env touch canary
nohup ./program
timeout 9 ./program
python -c 'open("canary", "w")'
perl -e 'open(F, ">canary")'
awk 'BEGIN { print > "canary" }'
sed -n 'w canary' program
find . -exec touch canary \;
xargs touch <<< canary
tee canary < program
cp program canary
ln -s program canary
mkdir canary
mkfifo canary
dd of=canary < program
srun bash -c 'touch canary'
sbatch --wrap 'touch canary'
sbatch ./program
docker run image bash -c 'touch canary'
torchrun ./program
ssh localhost touch canary
git -c core.pager='touch canary' log
make -f program
hostname > canary
trap 'touch canary' EXIT
trap 'touch canary' DEBUG; :
trap 'touch canary' ERR; false
f() { :; }; set -T; trap 'touch canary' RETURN; f
PS4='$(touch canary)'; set -x; :
alias run='touch canary'; eval touch canary
command_not_found_handle() { touch canary; }; no-such-program
"""

LINES = tuple(_COMMANDS.strip().splitlines())


def write_programs(directory: Path) -> Path:
    """Write programs that log their calls, and a script ``program`` that writes the canary.

    Returns:
        The log. Set ``PATH`` to ``directory / "bin"`` to reach no other program.
    """
    log = directory / "log"
    log.touch()
    programs = directory / "bin"
    programs.mkdir()
    for name in _PROGRAMS.split():
        program = programs / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >> {log}\n')
        program.chmod(0o755)
    work = directory / "work"
    work.mkdir()
    script = work / "program"
    script.write_text(f"#!/bin/sh\n: > {CANARY}\n")
    script.chmod(0o755)
    return log


def traces(directory: Path) -> list[str]:
    """Return the signs that something was executed: new files, and calls of programs."""
    expected = {"program", "launch.sh"}
    created = [name for name in sorted(os.listdir(directory / "work")) if name not in expected]
    return created + (directory / "log").read_text().splitlines()
