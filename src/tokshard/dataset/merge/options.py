"""Options of merge."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from tokshard.errors import UsageError
from tokshard.storage.lock import LockMode, check_lock_mode
from tokshard.storage.paths import check_output_prefix, is_remote


@dataclass(frozen=True)
class MergeOptions:
    """Options of :func:`tokshard.merge`.

    Attributes:
        inputs: Path prefixes of datasets (or one of their files), or globs of these, in order. The
            matches of a glob are in natural order: ``part-2`` before ``part-10``.
        output: Path prefix of the output.
        multimodal: Whether the inputs have modes.
        allow_tokenizer_mismatch: Whether datasets of different tokenizers may be merged.
        resume: Whether an unfinished merge is resumed.
        force: Whether an existing output is replaced.
        lock: The mode of the writer lock: ``"none"`` for a file system without ``flock``, if only one run
            writes the output at a time.

    Raises:
        UsageError: The output is invalid, or there are no inputs.
    """

    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
    output: str | os.PathLike[str]
    multimodal: bool = False
    allow_tokenizer_mismatch: bool = False
    resume: bool = True
    force: bool = False
    lock: LockMode = "flock"

    def __post_init__(self) -> None:
        check_lock_mode(self.lock)
        prefix = self.output_prefix
        if is_remote(prefix):
            raise UsageError(
                f"merge writes to a file system, got the URL {prefix}",
                hint="merge into a local --output, and upload its files, the manifest last",
            )
        if not self.input_names:
            raise UsageError(
                "at least one input is required",
                hint="pass the datasets to merge: path prefixes, or quoted globs",
            )

    @property
    def input_names(self) -> tuple[str, ...]:
        """The inputs as the user named them."""
        inputs = [self.inputs] if isinstance(self.inputs, str | os.PathLike) else self.inputs
        return tuple(os.fspath(name) for name in inputs)

    @property
    def output_prefix(self) -> str:
        """The checked path prefix of the output."""
        return check_output_prefix(os.fspath(self.output))
