"""tokshard: data preparation for LLM pre-training, from raw text to the batches of each rank.

Public names are imported on first use. Type checkers read the same table in ``__init__.pyi``.
"""

from tokshard.version import __version__

_TOPICS = {
    "Make and read datasets": {
        "tokenize": "tokshard.text.tokenize.run",
        "TokenizeOptions": "tokshard.text.tokenize.options",
        "TokenizeReport": "tokshard.text.tokenize.report",
        "tokenize_sources": "tokshard.text.tokenize.sources",
        "RayOptions": "tokshard.text.tokenize.workers.ray_cluster",
        "tokenize_array_task": "tokshard.text.tokenize.array",
        "ArrayTask": "tokshard.text.tokenize.options",
        "finish_tokenize": "tokshard.text.tokenize.array",
        "merge": "tokshard.dataset.merge.job",
        "MergeOptions": "tokshard.dataset.merge.options",
        "MergeReport": "tokshard.dataset.merge.job",
        "convert": "tokshard.exchange.convert",
        "ConvertOptions": "tokshard.exchange.options",
        "ConvertReport": "tokshard.exchange.convert",
        "IndexedDatasetBuilder": "tokshard.dataset.builder",
        "IndexedDataset": "tokshard.dataset.reader",
        "DType": "tokshard.dataset.layout",
    },
    "Build indexes and blends": {
        "build_indices": "tokshard.samples.index.job",
        "BuildIndicesOptions": "tokshard.samples.index.options",
        "BuildIndicesReport": "tokshard.samples.index.job",
        "blend": "tokshard.samples.blend.job",
        "BlendOptions": "tokshard.samples.blend.options",
        "BlendReport": "tokshard.samples.blend.job",
        "NamingOptions": "tokshard.samples.index.options",
        "TrainingOptions": "tokshard.samples.index.sizes",
        "Sizes": "tokshard.samples.index.sizes",
    },
    "Shard samples over ranks": {
        "shard_plan": "tokshard.ranks.planning",
        "ShardPlanOptions": "tokshard.ranks.options",
        "ShardPlanReport": "tokshard.ranks.planning",
        "replan": "tokshard.ranks.replan",
        "ReplanOptions": "tokshard.ranks.options",
        "read_plan": "tokshard.ranks.plan",
        "Plan": "tokshard.ranks.plan",
    },
    "Export to other trainers": {
        "export": "tokshard.exchange.export",
        "ExportOptions": "tokshard.exchange.options",
        "ExportReport": "tokshard.exchange.export",
    },
    "Inspect and check": {
        "inspect": "tokshard.checks.commands.inspect",
        "InspectOptions": "tokshard.checks.inspect.options",
        "verify": "tokshard.checks.commands.verify",
        "VerifyOptions": "tokshard.checks.verify.options",
        "trace": "tokshard.checks.commands.trace",
        "TraceOptions": "tokshard.checks.trace.options",
        "diff": "tokshard.checks.commands.diff",
        "DiffOptions": "tokshard.checks.diff.options",
        "doctor": "tokshard.checks.doctor.job",
        "DoctorOptions": "tokshard.checks.doctor.options",
    },
}
"""The home of each public name, in the order of docs/reference/api.md."""

_HOMES = {name: home for names in _TOPICS.values() for name, home in names.items()}

__all__ = ["__version__", *_HOMES]  # noqa: PLE0604 - its keys are strings


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'tokshard' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
