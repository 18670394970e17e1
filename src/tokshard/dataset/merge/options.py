"""Options of merge."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated

from tokshard.core.codec import Count
from tokshard.core.memory import available_bytes
from tokshard.core.options import RUN, Force, Option, Options, StrPath, StrPaths, parse_bytes, several
from tokshard.errors import UsageError
from tokshard.storage.lock import Lock
from tokshard.storage.paths import check_output_prefix, is_remote

DEFAULT_MEMORY_BYTES = 1 << 30
MIN_MEMORY_BYTES = 16 << 20
_DEFAULT_PART = 3


@dataclass(frozen=True, kw_only=True)
class MergeOptions(Options):
    """Options of :func:`tokshard.merge`.

    Raises:
        UsageError: An option is invalid, or there are no inputs.
    """

    inputs: Annotated[
        StrPaths,
        Option(
            "Path prefixes of datasets, in order, or quoted globs of these.",
            is_argument=True,
            metavar="INPUT...",
        ),
    ]
    output: Annotated[
        StrPath,
        Option("Write PREFIX.bin, PREFIX.idx and PREFIX.tokshard/.", aliases=("-o",), metavar="PREFIX"),
    ]
    multimodal: Annotated[bool, Option("Merge multimodal datasets, whose sequences have modes.")] = False
    allow_tokenizer_mismatch: Annotated[
        bool, Option("Allow datasets with different tokenizers, and record the mismatch.")
    ] = False
    shuffle: Annotated[
        Count | None,
        Option(
            "Shuffle the documents of all inputs, in an order given by SEED and their number.",
            metavar="SEED",
            default="concatenate the inputs",
        ),
    ] = None
    memory: Annotated[
        int | None,
        Option(
            "Shuffle in SIZE of memory: in one pass if tokens and index fit into it, else in two. The order "
            "does not depend on it.",
            metavar="SIZE",
            parse=parse_bytes,
            default="1/3 of the available memory, at least 1GiB",
            group=RUN,
            requires="shuffle",
        ),
    ] = None
    force: Force = False
    lock: Lock = "flock"

    def _validate(self) -> None:
        if self.memory is not None and self.memory < MIN_MEMORY_BYTES:
            raise UsageError(f"--memory must be at least {MIN_MEMORY_BYTES:,} bytes, got {self.memory:,}")
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
        return several(self.inputs)

    @property
    def shuffle_memory_bytes(self) -> int:
        """The memory of a shuffle."""
        if self.memory is not None:
            return self.memory
        return max(DEFAULT_MEMORY_BYTES, (available_bytes() or 0) // _DEFAULT_PART)

    @property
    def output_prefix(self) -> str:
        """The checked path prefix of the output."""
        return check_output_prefix(os.fspath(self.output))
