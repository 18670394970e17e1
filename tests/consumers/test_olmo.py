"""P62: OLMo-core reads the exported samples of a blend in their order, and resumes by its states."""

import numpy as np
import pytest

from support.consumers import RANKS, STOPS, blocks, check, commands, needed, run, trained

needed("torch", "olmo_core.data")
pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("rank", range(RANKS))
def test_the_block_of_the_page_reads_and_resumes(workdir, samples, rank):
    (export,) = commands(blocks("OLMo-core", "sh")[0])
    # Several files: OLMo-core drops what does not fill a sample at the end of each.
    run(f"{export} --shard-tokens 6400", workdir)
    assert len(list((workdir / "olmo").glob("*.npy"))) > 2
    (code,) = blocks("OLMo-core")
    code = code.replace("dp_rank=0", f"dp_rank={rank}")
    # In a batch of 8 samples, a rank has every second one.
    tokens = np.array([sample[:-1] for sample in samples])
    expected = [tokens[first : first + 8][rank::RANKS] for first in range(0, len(tokens), 8)]
    check([trained(code, stop) for stop in STOPS], expected)


def test_with_the_last_label_the_labels_are_megatrons(workdir, samples):
    from olmo_core.data import NumpyFSLDataset
    from olmo_core.data.utils import get_labels

    run("tokshard export mix --samples --last-label --to olmo -o olmo", workdir)
    (path,) = (workdir / "olmo").glob("*.npy")
    options = {"sequence_length": 65, "pad_token_id": 0, "eos_token_id": 0, "vocab_size": 4096}
    dataset = NumpyFSLDataset(str(path), **options)
    assert len(dataset) == len(samples)
    for number in range(0, len(samples), 7):
        item = dataset[number]["input_ids"]
        labels = get_labels({"input_ids": item[None]})[0]
        assert item[:-1].tolist() == samples[number][:-1]
        assert labels[:-1].tolist() == samples[number][1:]
        assert labels[-1] == -100
