import pytest

from support.index_caches import TOKENIZER, request_for, written
from tokshard.errors import UsageError
from tokshard.samples.index.splits import parse_split, whole_split


def test_the_description_of_a_request_is_megatrons():
    request = request_for("/here/web", split=parse_split("99, 1"), num_samples=7, seed=5)
    assert request.description().text() == written(
        {
            "class": "GPTDataset",
            "dataset_path": "data/süß",
            "num_samples": 7,
            "index_split": "train",
            "random_seed": 5,
            "sequence_length": 8,
            "split": "99, 1",
            "split_matrix": [[0, 0.99], [0.99, 1.0], None],
            "tokenizer": TOKENIZER,
        }
    )


def test_a_split_of_its_own_leaves_split_and_matrix_out_of_the_hash():
    request = request_for("x", split=whole_split("valid"), split_name="valid", num_samples=None)
    description = request.description()
    assert (description.split, description.split_matrix, description.num_samples) == (None, None, None)
    assert request.is_built
    assert request.sequences(12) == range(12)
    other = request_for("x", split=whole_split("valid"), split_name="train")
    assert not other.is_built
    assert other.sequences(12) is None


def test_the_place_of_the_data_and_the_options_do_not_enter_the_hash():
    request = request_for("x")
    for other in (
        request_for("y"),
        request_for("x", extra_token=False),
        request_for("x", drop_last_partial=False),
    ):
        assert other.description() == request.description()


def test_only_validation_keeps_a_partial_sample():
    for name, kept in (("train", True), ("valid", False), ("test", True)):
        assert request_for("x", split_name=name, drop_last_partial=False).drops_last_partial is kept


@pytest.mark.parametrize("changes", [{"split_name": "dev"}, {"seed": -1}, {"seed": 2**32}])
def test_what_cannot_be_is_refused(changes):
    with pytest.raises(UsageError):
        request_for("x", **changes)
