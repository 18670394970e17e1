"""Options of ``tokenize`` that select what is read of datasets of the Hugging Face Hub."""

from __future__ import annotations

from typing import Annotated

from tokshard.cli.declarations import text

TEXT = "Text"

DatasetConfigName = Annotated[
    str | None,
    text(
        "--config",
        metavar="NAME",
        help="Read this config of a dataset of the Hugging Face Hub named without a path.",
        default="the only one",
        group=TEXT,
    ),
]
DatasetSplit = Annotated[
    str | None,
    text(
        "--split",
        metavar="NAME",
        help="Read this split of the dataset, or of a directory that save_to_disk wrote.",
        default="the only one",
        group=TEXT,
    ),
]
