"""Small datasets, indexes and blends for tests of plans, and sources that no files stand behind."""

from support import assignments
from support.mixture_data import run, write_mixture
from tokshard.dataset.fingerprint import DatasetFingerprint, FileFingerprint
from tokshard.ranks.discovery import RequestedSamples, open_sources
from tokshard.ranks.sources import DatasetReference, SampleSource
from tokshard.samples.index.entry import CachedArrays
from tokshard.samples.index.epochs import plan_epochs
from tokshard.samples.index.npy import BLEND_ARRAYS, GPT_ARRAYS

FINGERPRINT = FileFingerprint(0, "0" * 64)

UNKNOWN = DatasetFingerprint(bin_bytes=0, idx_bytes=0)


def blend_directory(directory):
    """Write two datasets and a blend of them: 60 samples for training, 9 for validation, 5 for testing."""
    write_mixture(directory)
    done = run(
        *("blend", "0.7", directory / "data/web", "0.3", directory / "data/code"),
        *("--seq-length", 8, "--num-samples", "60,8,4", "--split", "80,15,5", "-o", directory / "mix"),
    )
    assert done.returncode == 0, done.stderr
    return directory / "mix"


def blend_sources(directory, **requested):
    return open_sources([str(blend_directory(directory))], RequestedSamples(**requested))


def document_source(sizes, *, name="train", firsts=None):
    """Return documents of datasets that are not there."""
    firsts = firsts or [0] * len(sizes)
    references = tuple(
        DatasetReference(f"/data/shard-{number}", first, size, False, FINGERPRINT, FINGERPRINT, UNKNOWN)
        for number, (first, size) in enumerate(zip(firsts, sizes, strict=True))
    )
    return SampleSource("documents", name, sum(sizes), references)


def index_source(samples, *, sequence_length=4096, datasets=1, blended=False, name="train"):
    """Return samples of indexes that are not there; with ``blended`` those of a blend of them."""
    epochs = plan_epochs(
        sequences=1000,
        tokens_per_epoch=samples * sequence_length + 1,
        sequence_length=sequence_length,
        num_samples=samples,
    )
    index = CachedArrays(f"/cache/{'a' * 32}-GPTDataset-train", dict.fromkeys(GPT_ARRAYS, FINGERPRINT))
    references = tuple(
        DatasetReference(
            f"/data/set-{number}", 0, samples, False, FINGERPRINT, FINGERPRINT, UNKNOWN, index, epochs
        )
        for number in range(datasets)
    )
    if not blended:
        return SampleSource("index", name, samples * datasets, references)
    order = CachedArrays(f"/cache/{'b' * 32}-BlendedDataset-train", dict.fromkeys(BLEND_ARRAYS, FINGERPRINT))
    return SampleSource("blend", name, samples * datasets, references, order)


def everything(stream, key_of=None):
    """Return what all data-parallel ranks read: int64 of shape (ranks, samples of a rank)."""
    return assignments.everything(stream.order, key_of)
