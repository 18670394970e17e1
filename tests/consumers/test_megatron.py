"""P62: Megatron finds the indexes of a blend, writes no file, and resumes by its count of samples."""

import importlib
from types import SimpleNamespace

import pytest

from oracle.reference import Megatron, Recorder, file_states
from support.consumers import (
    STOPS,
    blocks,
    check,
    commands,
    content,
    megatron_version,
    needed,
    run,
    trained,
)

needed("torch", "megatron.core.datasets.gpt_dataset")
pytestmark = pytest.mark.oracle


def null_tokenizer():
    """Return the NullTokenizer of the commands, built as Megatron's training script builds it."""
    Megatron()
    options = {"vocab_size": 4096, "null_tokenizer_eod_id": None, "null_tokenizer_pad_id": -1}
    for name in ("megatron.core.tokenizers.utils", "megatron.core.tokenizers.text.utils"):
        try:
            build = importlib.import_module(f"{name}.build_tokenizer").build_tokenizer
        except ImportError:
            continue
        return build(SimpleNamespace(tokenizer_type="NullTokenizer", pad_vocab_size=False, **options))
    raise AssertionError("no builder of tokenizers is known in this version of Megatron")


@pytest.fixture(scope="module")
def tokenizer():
    return null_tokenizer()


def test_the_block_of_the_page_writes_nothing_and_resumes(workdir, prepared, expected, tokenizer):
    needed("megatron.training.datasets.data_samplers")
    (code,) = blocks("Megatron Core")
    before = file_states(prepared)
    for rank in (0, 1):
        check([trained(code, stop, tokenizer=tokenizer) for stop in STOPS], expected[rank])
        code = code.replace("data_parallel_rank=0", "data_parallel_rank=1")
        (workdir / "checkpoint.txt").unlink()
    assert file_states(prepared) == before


def test_the_samples_are_megatrons_own_and_no_file_is_opened_to_write(workdir, samples, tokenizer):
    (code,) = blocks("Megatron Core")
    # What comes before the sampler, for releases that have none to import.
    code = code.replace("from megatron.training", "# from megatron.training").partition("checkpoint = ")[0]
    names = {"tokenizer": tokenizer}
    with Recorder() as writes:
        exec(code, names)
        assert list(writes) == []
    train = names["train"]
    assert len(train) == len(samples)
    for number in range(0, len(train), 5):
        item = {name: values[None] for name, values in train[number].items() if name in {"tokens", "labels"}}
        assert content(item)[0].tolist() == samples[number]


def test_doctor_finds_the_indexes_of_the_launch_command(workdir):
    ((launch,),) = map(commands, blocks("Megatron Core", "sh"))
    run(f"tokshard doctor --megatron {megatron_version()} {launch}", workdir)
