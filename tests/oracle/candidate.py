"""The same configuration given to tokshard."""

from __future__ import annotations

import os

from oracle.configurations import SPLITS, Configuration
from support.blends import build_blend
from tokshard import IndexedDataset
from tokshard.samples.blend.options import BuilderConfig
from tokshard.samples.blend.recipe import BlendRecipe, Mixture, Source
from tokshard.samples.index.build import plan_indexes
from tokshard.samples.index.description import GPTDatasetDescription, default_directory
from tokshard.samples.index.entry import CacheEntry
from tokshard.samples.index.epochs import plan_epochs
from tokshard.samples.index.index import GPTDatasetIndex
from tokshard.samples.index.options import IndexRequest
from tokshard.samples.index.samples import GPTSamples
from tokshard.samples.index.sizes import Sizes
from tokshard.samples.index.splits import parse_split

OWN_SUFFIXES = ("-tokshard.json", "-tokshard.lock")


def build(configuration: Configuration, cache_directory: str | None) -> None:
    """Build all files that a training job with this configuration looks for."""
    if configuration.name.startswith("single"):
        planned = plan_indexes(index_requests(configuration), cache_directory=cache_directory, workers=1)
        planned.build()
    else:
        recipe, config = blend_recipe(configuration), builder_config(configuration)
        build_blend(recipe, config, "mix", cache_directory=cache_directory, workers=1)


def index_requests(configuration: Configuration) -> list[IndexRequest]:
    """Return what is asked of a single dataset, one request for each split."""
    (prefix,) = configuration.blend[0]
    return [
        IndexRequest(
            prefix=local_path(configuration, prefix),
            training_path=prefix,
            split_name=name,
            split=parse_split(configuration.split),
            num_samples=size,
            sequence_length=configuration.sequence_length,
            seed=configuration.seed,
            tokenizer=configuration.tokenizer,
            extra_token=configuration.extra_token,
            drop_last_partial=configuration.drop_last_partial,
        )
        for name, size in zip(SPLITS, configuration.sizes, strict=True)
    ]


def local_path(configuration: Configuration, prefix: str) -> str:
    """Return the prefix as it is named here: now and then another name than in training."""
    return os.path.abspath(prefix) if configuration.seed % 2 else prefix


def megatron_files(files: dict[str, bytes]) -> dict[str, bytes]:
    """Return the files without those of our own that lie beside Megatron's."""
    return {name: data for name, data in files.items() if not name.endswith(OWN_SUFFIXES)}


def samples(configuration: Configuration, dataset, cache_directory: str | None) -> GPTSamples:
    """Return our reader of the files of one of Megatron's datasets, which it finds by its description."""
    description = GPTDatasetDescription.from_text(dataset.unique_description)
    directory = cache_directory or default_directory(description.dataset_path)
    arrays = CacheEntry.of(description, directory).load()
    indexed = IndexedDataset(local_path(configuration, description.dataset_path))
    lengths = indexed.sequence_lengths[dataset.indices]
    plan = plan_epochs(
        sequences=len(lengths),
        tokens_per_epoch=int(lengths.sum()),
        sequence_length=configuration.sequence_length,
        num_samples=description.num_samples,
        extra_token=configuration.extra_token,
        drop_last_partial=configuration.drop_last_partial or description.index_split != "valid",
    )
    return GPTSamples(indexed, GPTDatasetIndex(**arrays, plan=plan), pad_id=dataset._pad_token_id)


def blend_recipe(configuration: Configuration) -> BlendRecipe:
    """Return the configuration's mixtures."""

    def mixture(blend) -> Mixture | None:
        if blend is None:
            return None
        prefixes, weights = blend
        weights = weights or (None,) * len(prefixes)
        return Mixture(
            tuple(
                Source(local_path(configuration, prefix), weight=weight)
                for prefix, weight in zip(prefixes, weights, strict=True)
            ),
            unit="samples",
            temperature=1.0,
        )

    if configuration.blend is not None:
        return BlendRecipe((mixture(configuration.blend),), multiple_validation_sets=False)
    mixtures = tuple(map(mixture, configuration.blend_per_split))
    return BlendRecipe(mixtures, configuration.multiple_validation_sets)


def builder_config(configuration: Configuration) -> BuilderConfig:
    """Return the configuration's other parameters."""
    prefixes = [source.prefix for source in configuration.sources]
    return BuilderConfig(
        sequence_length=configuration.sequence_length,
        sizes=Sizes(*configuration.sizes),
        split=configuration.split or "1",
        seed=configuration.seed,
        surplus=configuration.surplus,
        tokenizer=configuration.tokenizer,
        path_as=tuple((local_path(configuration, prefix), prefix) for prefix in prefixes),
        extra_token=configuration.extra_token,
        drop_last_partial=configuration.drop_last_partial,
    )
