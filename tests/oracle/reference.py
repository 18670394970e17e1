"""Megatron's own builder run on a configuration, in this process, as a job of one rank."""

from __future__ import annotations

import os
import sys
import warnings
from collections import OrderedDict
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from oracle.support import megatron_or_skip


class EndlessError(Exception):
    """Megatron would count epochs without end."""


class Tokenizer:
    """What the datasets ask of a tokenizer."""

    vocab_size = None

    def __init__(self, identifiers: dict, pad: int | None, eod: int) -> None:
        self.unique_identifiers = OrderedDict(identifiers)
        self.eod = eod
        if pad is not None:
            self.pad = pad


@dataclass
class Outcome:
    """What came of a build.

    Attributes:
        splits: What the builder returned for each split.
        failure: The exception, or None.
        files: All that lies below the cache directories: contents by relative path.
        writes: The paths that were opened for writing, created, renamed or removed meanwhile.
    """

    splits: list = field(default_factory=list)
    failure: Exception | None = None
    files: dict[str, bytes] = field(default_factory=dict)
    writes: list[str] = field(default_factory=list)

    @property
    def gpt_datasets(self) -> list:
        """All GPTDataset objects."""
        found = []
        for split in self.splits:
            for dataset in split if isinstance(split, list) else [split]:
                found += getattr(dataset, "datasets", [dataset] if dataset is not None else [])
        return found

    @property
    def blended_datasets(self) -> list:
        """All BlendedDataset objects."""
        return [split for split in self.splits if hasattr(split, "datasets")]


_recorded: list[str] | None = None


def _audit(event: str, arguments: tuple) -> None:
    if _recorded is None:
        return
    if event == "open":
        path, _, flags = arguments
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
            _recorded.append(f"open {path}")
    elif event in {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.link", "os.symlink"}:
        _recorded.append(f"{event} {arguments[0]}")


class Recorder:
    """Collects every write of this process; auditing hooks stay for ever, so there is one."""

    installed = False

    def __enter__(self) -> list[str]:
        global _recorded  # noqa: PLW0603 - the hook has no other way to know
        if not Recorder.installed:
            sys.addaudithook(_audit)
            Recorder.installed = True
        _recorded = []
        return _recorded

    def __exit__(self, *_: object) -> None:
        global _recorded  # noqa: PLW0603
        _recorded = None


class Megatron:
    """The modules of megatron-core, loaded, with a process group of one rank."""

    def __init__(self) -> None:
        megatron_or_skip()
        import torch
        from megatron.core.datasets import helpers
        from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
        from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

        self.torch, self.helpers = torch, helpers
        self.builder, self.dataset, self.config = BlendedMegatronDatasetBuilder, GPTDataset, GPTDatasetConfig
        if not torch.distributed.is_initialized():
            store = torch.distributed.HashStore()
            torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)

    def options(self, configuration, cache_directory: str | None) -> dict:
        """Return the arguments of Megatron's configuration object."""
        blends = configuration.blend_per_split
        return {
            "random_seed": configuration.seed,
            "sequence_length": configuration.sequence_length,
            "blend": _as_lists(configuration.blend),
            "blend_per_split": blends and [_as_lists(blend) for blend in blends],
            "split": configuration.split,
            "multiple_validation_sets": configuration.multiple_validation_sets,
            "full_validation": configuration.full_validation,
            "path_to_cache": cache_directory,
            "tokenizer": Tokenizer(configuration.tokenizer, configuration.pad, configuration.eod),
            "mid_level_dataset_surplus": configuration.surplus,
            "reset_position_ids": False,
            "reset_attention_mask": False,
            "eod_mask_loss": False,
            "create_attention_mask": False,
            "drop_last_partial_validation_sequence": configuration.drop_last_partial,
            "add_extra_token_to_sequence": configuration.extra_token,
        }

    def build(self, configuration, cache_directory: str | None) -> Outcome:
        """Run the builder in the current directory, below which the datasets lie."""
        outcome = Outcome()
        with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch, Recorder() as writes:
            warnings.simplefilter("ignore")
            patch.setattr(self.dataset, "_get_num_epochs", _ending(self.dataset._get_num_epochs))
            try:
                config = self.config(**self.options(configuration, cache_directory))
                builder = self.builder(self.dataset, list(configuration.sizes), lambda: True, config)
                outcome.splits = builder.build()
            except Exception as error:
                outcome.failure = error
            outcome.writes = list(writes)
        outcome.files = cache_files(configuration, cache_directory)
        return outcome


def _as_lists(blend):
    if blend is None:
        return None
    prefixes, weights = blend
    return list(prefixes), weights and list(weights)


def _ending(count_epochs):
    def method(dataset, tokens_per_epoch: int) -> int:
        if dataset.num_samples is not None and tokens_per_epoch == 0:
            wanted = dataset.num_samples * dataset.config.sequence_length
            if wanted + dataset.config.add_extra_token_to_sequence > 0:
                raise EndlessError
        return count_epochs(dataset, tokens_per_epoch)

    return method


def cache_files(configuration, cache_directory: str | None) -> dict[str, bytes]:
    """Return the contents of all files of the cache directory, or of the sources' own, by relative path."""
    if cache_directory is not None:
        return tree(cache_directory)
    return {
        f"{source.prefix}/{name}": data
        for source in configuration.sources
        for name, data in tree(source.prefix).items()
    }


def tree(directory: str) -> dict[str, bytes]:
    """Return the contents of all files below a directory by relative path."""
    found = {}
    for folder, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(folder, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, directory)] = file.read()
    return found


def file_states(directory: str) -> dict[str, tuple[int, int, int]]:
    """Return size, modification time and inode of everything below a directory."""
    found = {}
    for folder, directories, names in os.walk(directory):
        for name in [".", *directories, *names]:
            status = os.stat(os.path.join(folder, name))
            found[os.path.join(folder, name)] = (status.st_size, status.st_mtime_ns, status.st_ino)
    return found


def items(dataset, number: int) -> SimpleNamespace:
    """Return Megatron's sample as numpy arrays.

    The mask of the first sample that a dataset object reads is kept for all later ones and then changed in
    place, up to 0.19 at least: what the first pads, all others mask. So each sample is read as a first one.
    """
    for part in getattr(dataset, "datasets", [dataset]):
        part.masks_and_position_ids_are_cached = False
    names = ("tokens", "labels", "loss_mask", "position_ids")
    item = dataset[number]
    return SimpleNamespace(**{name: item[name].numpy() for name in names})
