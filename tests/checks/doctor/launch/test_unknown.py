"""Unknown values name what they depend on, and what supplies it."""

from __future__ import annotations

import pytest

from tokshard.checks.doctor.launch.arguments import LaunchArguments
from tokshard.checks.doctor.launch.text import read_launches

LATER = "pass the launch command with this value, or the log of an earlier run of the job"


@pytest.mark.parametrize(
    ("written", "hint", "variables"),
    [
        ("$LENGTH", "pass --set LENGTH=VALUE", ("LENGTH",)),
        ("${A:-} and $B and ${A}", "pass --set A=VALUE --set B=VALUE", ("A", "B")),
        ("$1", "pass the parameters of the script after its name", ()),
        ("$# and $N", "pass --set N=VALUE and the parameters of the script after its name", ("N",)),
        ("$(cat length)", LATER, ()),
        ("1e6", "correct the value", ()),
        ("", "add the value", ()),
    ],
)
def test_unknown_value_names_the_variables_to_set(written, hint, variables):
    unknown = LaunchArguments(unknown=(("seq_length", written),)).unknown_value("seed", "seq_length")
    assert (unknown.hint, unknown.variables) == (hint, variables)
    check = unknown.skipped("sizes")
    assert (check.reason, check.hint, check.variables) == (unknown.reason, hint, variables or None)


@pytest.mark.parametrize(
    ("launcher", "reason", "hint", "variables"),
    [
        ("srun -n $N", "depends on $N", "pass --set N=VALUE", ("N",)),
        (
            "deepspeed",
            "depends on the configuration of deepspeed",
            "pass --set WORLD_SIZE=N",
            ("WORLD_SIZE",),
        ),
        (
            "torchrun --nproc-per-node gpu",
            "depends on --nproc-per-node gpu",
            "pass the launch command with numbers for --nnodes and --nproc-per-node",
            (),
        ),
    ],
)
def test_unknown_number_of_processes_names_what_supplies_it(launcher, reason, hint, variables):
    (launch,) = read_launches(f"{launcher} pretrain_gpt.py --seq-length 8")
    unknown = launch.arguments.unknown_value("world_size")
    assert unknown.reason == f"the number of processes {reason}"
    assert (unknown.hint, unknown.variables) == (hint, variables)


def test_hidden_arguments_name_their_variables_and_parameters():
    hidden = LaunchArguments(unseen=("$@", "$MORE")).hidden_arguments()
    assert hidden.reason == "$@, $MORE may contain more arguments"
    assert (hidden.variables, hidden.has_parameters) == (("MORE",), True)
    assert LaunchArguments().hidden_arguments() is None
