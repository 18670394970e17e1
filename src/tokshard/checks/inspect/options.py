"""Options of inspect."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from tokshard.core.options import Option, Options, StrPath, declared_options
from tokshard.dataset.products import Kind
from tokshard.errors import UsageError
from tokshard.ranks.options import MOVED
from tokshard.samples.index.splits import TRAIN

_DATASET = "Datasets"
_PLAN = "Plans"


@dataclass(frozen=True, kw_only=True)
class InspectOptions(Options):
    """Options of :func:`tokshard.inspect`; a negative ``document`` counts from the end.

    Raises:
        UsageError: Options cannot be used together, or are invalid.
    """

    path: Annotated[
        StrPath,
        Option(
            "A dataset (its path prefix), index cache or one of its files, blend, plan, rank manifest or "
            "tokenizer.",
            is_argument=True,
            metavar="PATH",
        ),
    ]
    document: Annotated[int | None, Option("Show the tokens and text of document N.", group=_DATASET)] = None
    tokenizer: Annotated[
        str | None,
        Option(
            "Decode text with this tokenizer.",
            metavar="PATH",
            default="the recorded one, if found",
            group=_DATASET,
        ),
    ] = None
    multimodal: Annotated[
        bool, Option("Read a multimodal dataset, whose sequences have modes.", group=_DATASET)
    ] = False
    rank: Annotated[
        int | None,
        Option(
            "Show the samples that rank N reads.",
            group=_PLAN,
            excludes=("sample", "dataset_sample"),
            reason="the ranks that read it are shown",
        ),
    ] = None
    step: Annotated[
        int | None,
        Option(
            "With --rank: show the samples of step N.",
            group=_PLAN,
            excludes=("index", "sample", "dataset_sample"),
        ),
    ] = None
    index: Annotated[
        int | None,
        Option(
            "With --rank: show its N-th sample, from 0.", group=_PLAN, excludes=("sample", "dataset_sample")
        ),
    ] = None
    sample: Annotated[
        int | None,
        Option("Show which rank reads sample N, and at which step.", group=_PLAN, excludes="dataset_sample"),
    ] = None
    dataset_sample: Annotated[
        str | None,
        Option("Show which rank reads sample N of dataset D.", metavar="D:N", group=_PLAN),
    ] = None
    epoch: Annotated[
        int | None,
        Option(
            "With --sample or --dataset-sample: look in epoch N.",
            default="the first that reads the sample",
            group=_PLAN,
            requires=("sample", "dataset_sample"),
        ),
    ] = None
    stream: Annotated[str, Option("Show this stream: train, valid or test.", metavar="NAME", group=_PLAN)] = (
        TRAIN
    )

    moved: Annotated[tuple[tuple[str, str], ...], replace(MOVED, group=_PLAN, is_rare=True)] = ()

    def _validate(self) -> None:
        if self.dataset_sample is not None:
            self.dataset_sample_numbers()

    @property
    def part_options(self) -> dict[str, Kind]:
        """The given options for one kind of product, with this kind."""
        return {
            found.name: "plan" if found.option.group == _PLAN else "dataset"
            for name, found in declared_options(InspectOptions).items()
            if (name == "document" or found.option.group == _PLAN) and self.is_given(name)
        }

    @property
    def shows_part(self) -> bool:
        """Whether a part of a product is shown; ``--moved`` only tells where its data is."""
        return bool(self.part_options.keys() - {"--moved"})

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
