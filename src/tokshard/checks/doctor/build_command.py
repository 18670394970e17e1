"""The command that builds the indexes of the job of a launch script."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from itertools import count

from tokshard.checks.doctor.launch.launch import Launch
from tokshard.checks.doctor.launch.source import script_call
from tokshard.checks.doctor.lookups import TokenizerNames
from tokshard.checks.doctor.options import DoctorOptions
from tokshard.core.options import declared_options
from tokshard.dataset.products import BLEND_NAME
from tokshard.samples.index.packing import Packing

_OUTPUT = "mix"


@dataclass(frozen=True, slots=True)
class BuildCommand:
    """A command that builds the indexes of one launch command.

    Attributes:
        launch: The value of ``--from-launch``.
        options: Other options of doctor, as they were passed.
        has_names: Whether these options specify the tokenizer's identifiers.
        output: The directory of a blend.
    """

    launch: str = "LAUNCH"
    options: tuple[str, ...] = ()
    has_names: bool = False
    output: str = _OUTPUT

    @classmethod
    def of(cls, options: DoctorOptions, launch: Launch, *, is_only: bool = True) -> BuildCommand:
        """Return the command that builds the indexes of one launch command."""
        words = []
        for name, option in declared_options(DoctorOptions).items():
            if name != "launch" and options.is_given(name):
                value = getattr(options, name)
                words += option.words("FILE.json" if isinstance(value, dict) else value)
        launch_word = _launch_word(options, launch, is_only=is_only)
        return cls(launch_word, tuple(words), options.naming.are_given, _free_output())

    def text(
        self,
        *,
        is_blend: bool,
        names: TokenizerNames,
        is_named: bool,
        rebuild: bool = False,
        packing: Packing | None = None,
    ) -> str:
        """Return the command in back quotes, followed by the meaning of its placeholder.

        Args:
            is_blend: Whether the job has more than one dataset in a split, or weights.
            names: The source of the tokenizer's identifiers.
            is_named: Whether the identifiers are certain.
            rebuild: Whether existing files have to be replaced.
            packing: The packing of the job's existing indexes, or None.
        """
        words = ["tokshard", "blend" if is_blend else "build-indices", "--from-launch", self.launch]
        words += self.options
        explanation = ""
        if not self.has_names and not is_named:
            if names.source == "megatron":
                words += ["--megatron", "VERSION"]
                explanation = ", with the Megatron Core version of the job for VERSION"
            else:
                words += ["--tokenizer-identifiers", "FILE.json"]
                explanation = (
                    ", with the output of `python -m tokshard.dump_tokenizer_identifiers` in the job's "
                    "environment as FILE.json"
                )
        words += [] if packing is None else packing.options()
        if is_blend:
            words += ["-o", self.output]
        words += ["--rebuild"] if rebuild else []
        return f"`{shlex.join(words)}`{explanation}"


def _launch_word(options: DoctorOptions, launch: Launch, *, is_only: bool) -> str:
    if not is_only and launch.command:
        return launch.command
    words = options.launch_words
    if (call := script_call(words)) is not None:
        return shlex.join(call)
    if len(words) != 1:
        return launch.command
    return words[0] if "\n" not in words[0] else launch.command or "-"


def _free_output() -> str:
    # An existing blend is not replaced.
    names = (_OUTPUT if number == 1 else f"{_OUTPUT}-{number}" for number in count(1))
    return next(name for name in names if not os.path.lexists(os.path.join(name, BLEND_NAME)))
