"""Options of inspect."""

from __future__ import annotations

import os
from dataclasses import dataclass

from tokshard.errors import UsageError
from tokshard.samples.index.splits import TRAIN


@dataclass(frozen=True)
class InspectOptions:
    """Options of :func:`tokshard.inspect`.

    Attributes:
        path: The path prefix of a dataset; an index cache, one of its files, or ``CACHE/HASH``; a blend, a
            plan or the manifest of a rank; a tokenizer.
        document: The number of one document of a dataset; negative numbers count from the end.
        tokenizer: The tokenizer to decode tokens with; by default the one that the dataset was made with,
            if its file is still where it was.
        multimodal: Whether the dataset has modes.
        rank: A rank of the whole job that reads a plan.
        step: A step of that rank.
        index: The n-th sample that the rank reads.
        sample: The id of a sample of a plan: the global index.
        dataset_sample: ``"D:N"``: sample N of dataset D of a plan.
        epoch: The epoch in which ``sample`` or ``dataset_sample`` is looked for; None for the first one that
            is read.
        stream: The stream of a plan.

    Raises:
        UsageError: Options exclude each other, or are invalid.
    """

    path: str | os.PathLike[str]
    document: int | None = None
    tokenizer: str | None = None
    multimodal: bool = False
    rank: int | None = None
    step: int | None = None
    index: int | None = None
    sample: int | None = None
    dataset_sample: str | None = None
    epoch: int | None = None
    stream: str = TRAIN

    def __post_init__(self) -> None:
        asked = [name for name in self.questions if name in {"step", "index", "sample", "dataset-sample"}]
        if len(asked) > 1:
            raise UsageError(
                f"--{asked[0]} and --{asked[1]} exclude each other", hint=f"leave out --{asked[1]}"
            )
        if self.rank is not None and asked and asked[0] in {"sample", "dataset-sample"}:
            raise UsageError(
                f"--rank and --{asked[0]} exclude each other: --{asked[0]} shows the rank that reads it",
                hint="leave out --rank",
            )
        if self.epoch is not None and self.sample is None and self.dataset_sample is None:
            raise UsageError("--epoch requires --sample or --dataset-sample")
        if self.dataset_sample is not None:
            self.dataset_sample_numbers()

    @property
    def questions(self) -> list[str]:
        """The options that show a part and not the whole, as the command line names them."""
        names = ("document", "rank", "step", "index", "sample", "dataset_sample", "epoch", "stream")
        return [
            name.replace("_", "-") for name in names if getattr(self, name) != getattr(InspectOptions, name)
        ]

    def dataset_sample_numbers(self) -> tuple[int, int]:
        """Return the number of the dataset and of the sample that ``dataset_sample`` names.

        Raises:
            UsageError: It is not ``"D:N"``.
        """
        dataset, colon, sample = (self.dataset_sample or "").partition(":")
        if not (colon and dataset.isdecimal() and sample.isdecimal()):
            raise UsageError(
                f"--dataset-sample must be D:N, got {self.dataset_sample!r}",
                hint="for example, pass --dataset-sample 0:1234",
            )
        return int(dataset), int(sample)
