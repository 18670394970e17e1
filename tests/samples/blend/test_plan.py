import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from support.blends import config_for, greedy, mixture_of, recipe_of, write_dataset, write_sources
from tokshard.errors import InputError, UsageError
from tokshard.samples.blend.plan import _Planner, plan_blend, plan_requests
from tokshard.samples.blend.recipe import BlendRecipe, Source
from tokshard.samples.blend.recipe_files import parse_words
from tokshard.samples.index.sizes import Sizes


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    return write_sources(tmp_path_factory.mktemp("sources"))


def weighted(sources, weights, **changes):
    return recipe_of(*map(Source, sources, weights), **changes)


def kinds(plan):
    return [
        (split.name, split.kind, split.samples, [source.draws for source in split.sources])
        for split in plan.splits
    ]


def test_one_prefix_is_a_plain_dataset_and_with_a_weight_a_blend_of_one(sources):
    plan = plan_blend(parse_words(sources[:1]), config_for(20))
    assert [(split.kind, split.description()) for split in plan.splits] == [("single", None)] * 3
    assert [source.plan.num_samples for source in plan.splits[0].sources] == [20]
    plan = plan_blend(parse_words(["3", sources[0]]), config_for(20))
    assert [split.kind for split in plan.splits] == ["weighted"] * 3
    assert plan.splits[0].sources[0].plan.num_samples == 21
    assert any("blend of 1 source" in warning for warning in plan.warnings)


def test_one_prefix_of_one_split_is_plain_even_with_a_weight(sources):
    plan = plan_blend(parse_words(["3", sources[0]], None, sources[1:]), config_for(20, 0, None))
    assert [(split.name, split.kind, split.size) for split in plan.splits] == [
        ("train", "single", None),
        ("test", "exhaustive", None),
    ]
    assert all(request.description().split_matrix is None for request in plan.splits[1].requests)


def test_no_weights_are_in_proportion_or_all(sources):
    plan = plan_blend(parse_words(sources), config_for(50, None, 10_000, split="60,20,20"))
    train, valid, test = plan.splits
    counts = [source.plan.samples for source in train.sources]
    assert (train.kind, train.samples, sum(source.draws for source in train.sources)) == (
        "proportional",
        50,
        50,
    )
    assert train.weights == tuple((np.array(counts) / sum(counts)).tolist())
    assert (valid.kind, valid.size, valid.weights) == (
        "exhaustive",
        None,
        tuple(source.draws for source in valid.sources),
    )
    assert (test.kind, test.size) == ("proportional", sum(source.plan.samples for source in test.sources))
    (warning,) = plan.warnings
    assert warning.startswith(
        f"test has {test.size:,} of the 10,000 samples requested: a blend without weights"
    )


def test_weights_make_megatrons_sizes(sources):
    plan = plan_blend(parse_words(["1", sources[0], "2", sources[1], "4", sources[2]]), config_for(100))
    train = plan.splits[0]
    shares = [1 / 7, 2 / 7, 4 / 7]
    assert train.size == train.samples == sum(math.ceil(100 * share) for share in shares) == 102
    assert [source.plan.num_samples for source in train.sources] == [16, 30, 59]
    drawn = greedy(list(train.weights), 102)[0]
    assert [source.draws for source in train.sources] == [drawn.count(place) for place in range(3)]


def test_the_outline_needs_no_data(sources):
    words = ["0.7", "no/web", "0.3", "no/code"]
    train = plan_requests(parse_words(words), config_for(100))[0]
    assert [request.num_samples for request in train.requests] == [71, 31]
    real = ["0.7", sources[0], "0.3", sources[1]]
    plan = plan_blend(parse_words(real), config_for(100))
    splits = plan_requests(parse_words(real), config_for(100))
    assert [split.description().text() for split in splits] == [
        split.description().text() for split in plan.splits
    ]
    assert [request for split in splits for request in split.requests] == list(plan.requests)


def test_several_validation_sets_stay_apart(sources):
    recipe = parse_words(
        [sources[0]], ["1", sources[1], "5", sources[2]], None, multiple_validation_sets=True
    )
    plan = plan_blend(recipe, config_for(20, 7))
    assert [(split.name, split.split, split.kind) for split in plan.splits] == [
        ("train", "train", "single"), ("valid.0", "valid", "single"), ("valid.1", "valid", "single"),
    ]  # fmt: skip
    assert [split.sources[0].plan.num_samples for split in plan.splits] == [20, 7, 7]
    assert any("no effect" in warning for warning in plan.warnings)
    recipe = parse_words([sources[0]], sources[1:], None, multiple_validation_sets=True)
    full = plan_blend(recipe, config_for(20, None)).splits[1:]
    assert [split.samples for split in full] == [split.sources[0].plan.samples for split in full]
    capped = mixture_of(Source("a", max_epochs=1), Source("b"))
    recipe = BlendRecipe((None, capped, None), multiple_validation_sets=True)
    with pytest.raises(UsageError, match="separate validation sets"):
        plan_blend(recipe, config_for(20, 7))


def test_validation_data_read_more_than_twice_is_a_warning(tmp_path):
    data = write_dataset(
        str(tmp_path / "data"), [16] * 60 + [1]
    )  # 60 samples an epoch, without the last label
    recipe = parse_words([data], [data], [data])
    assert plan_blend(recipe, config_for(2000, 120, 120)).warnings == ()
    (warning,) = plan_blend(recipe, config_for(2000, 120, 150)).warnings
    assert warning == (
        f"test reads {data} 2.50 times: its loss counts samples more than once; request fewer samples for "
        "test, or add data"
    )


@pytest.mark.parametrize("sizes", [(None, 0, 0), (10, None, 0), (10, 0, None)])
def test_weights_need_every_size_even_of_splits_without_a_share(sources, sizes):
    with pytest.raises(UsageError, match="number of samples"):
        plan_blend(parse_words(["1", sources[0], "2", sources[1]]), config_for(*sizes, split="100"))


def test_a_dataset_named_twice_is_refused(sources, tmp_path):
    other = f"{sources[0][: -len('source0')]}./source0"
    for words in ([sources[0], sources[0]], ["1", sources[0], "2", other], [sources[1], sources[0], other]):
        with pytest.raises(UsageError, match="twice"):
            plan_blend(parse_words(words), config_for(20))


def test_an_overrun_is_refused_with_the_smallest_surplus_that_works(tmp_path):
    # Fifty small sources are rounded up to a sample each, which makes the blend longer, and most of what
    # is added falls to the large source: more than the 90 samples of its epoch, which were counted on.
    large = write_dataset(str(tmp_path / "large"), [8 * 90 + 1])
    small = [write_dataset(str(tmp_path / f"small{number}"), [50]) for number in range(50)]
    words = ["0.9", large, *(word for prefix in small for word in ("0.002", prefix))]

    def plan(surplus):
        return plan_blend(
            parse_words(words), config_for(100, split="100", sequence_length=8, surplus=surplus)
        )

    with pytest.raises(UsageError, match=r"would draw 125 samples of .*large', whose index has 90") as caught:
        plan(0.0)
    needed = float(caught.value.hint.split()[2].rstrip(","))
    assert plan(needed).splits[0].sources[0].plan.epochs == 2
    with pytest.raises(UsageError, match="would draw"):
        plan(needed - 1e-6)


def test_an_overrun_in_proportion_is_refused_with_the_largest_size_that_works():
    # In exact arithmetic there is none: these sources have fewer samples than their weights are made of.
    recipe, config = parse_words(["a", "b"]), config_for(20, split="100")
    split = replace(plan_requests(recipe, config)[0], weights=(0.75, 0.25), size=20)

    def draws(split, *samples):
        epochs = [SimpleNamespace(samples=count) for count in samples]
        return _Planner(recipe, config, None, None)._draws(split, epochs)

    assert draws(split, 15, 5) == [15, 5]
    with pytest.raises(UsageError, match="would draw 5 samples of 'b', whose index has 2") as caught:
        draws(split, 15, 2)
    most = int(caught.value.hint.split()[3])
    assert sum(draws(replace(split, size=most), 15, 2)) == most
    with pytest.raises(UsageError, match="would draw 3 samples of 'b', whose index has 2"):
        draws(replace(split, size=most + 1), 15, 2)


def test_an_empty_split_is_refused_with_its_name(sources):
    with pytest.raises(InputError, match=r"source0, test: "):
        plan_blend(parse_words(sources), config_for(20, 0, 0, split="1000,1000,1"))


def test_a_source_without_tokens_has_no_share_to_be_worked_out(sources, tmp_path):
    empty = write_dataset(str(tmp_path / "empty"), [0, 0, 0])
    recipe = recipe_of(Source(sources[0]), Source(empty), temperature=2.0)
    with pytest.raises(InputError, match=r"empty, train: .*no token"):
        plan_blend(recipe, config_for(20, split="100"))


def test_paths_of_the_training_run_enter_the_hash(sources):
    folder = sources[0].rsplit("/", 1)[0]
    plan = plan_blend(
        parse_words(sources), config_for(20, path_as=((folder, "/data/v1"), (sources[2], "/other")))
    )
    assert [request.training_path for request in plan.splits[0].requests] == [
        "/data/v1/source0", "/data/v1/source1", "/other",
    ]  # fmt: skip


@pytest.mark.parametrize("epochs", [(1, 1, 1), (2, 1, 3), (1.5, 0.5, 4)])
def test_epochs_are_reached_within_two_samples(sources, epochs):
    recipe = recipe_of(*(Source(prefix, epochs=count) for prefix, count in zip(sources, epochs, strict=True)))
    plan = plan_blend(recipe, config_for(None, split="100"))
    for source, wanted in zip(plan.splits[0].sources, epochs, strict=True):
        most = math.floor(wanted * source.plan.tokens_per_epoch - 1) // 16
        assert abs(source.draws - most) <= 2
    assert plan.builder.sizes.train == plan.resolved[0].size
    with pytest.raises(UsageError, match="by the epochs of the recipe"):
        plan_blend(recipe, config_for(7, split="100"))


def test_amounts_of_tokens_decide_the_size_unless_it_is_given(sources):
    recipe = weighted(sources, (800, 1600, 3200), unit="tokens")
    plan = plan_blend(recipe, config_for(None, split="100"))
    assert plan.builder.sizes == Sizes(350, 0, 0)
    assert plan.resolved[0].weights == (800, 1600, 3200)
    plan = plan_blend(recipe, config_for(70, split="100"))
    assert plan.builder.sizes.train == 70


def test_temperature_flattens_weights_or_the_sizes_of_the_sources(sources):
    plan = plan_blend(weighted(sources, (1, 4, 16), temperature=2.0), config_for(70, split="100"))
    assert np.array(plan.splits[0].weights) == pytest.approx(np.array([1, 2, 4]) / 7)
    recipe = recipe_of(*map(Source, sources), temperature=1e9)
    plan = plan_blend(recipe, config_for(70, split="100"))
    assert np.array(plan.splits[0].weights) == pytest.approx(np.full(3, 1 / 3))
    with pytest.raises(UsageError, match="number of samples"):
        plan_blend(recipe, config_for(None, split="100"))


def test_caps_that_hold_too_little_are_refused_with_the_numbers(sources):
    recipe = recipe_of(*(Source(prefix, 1, max_epochs=1) for prefix in sources))
    with pytest.raises(UsageError, match="cannot have 5,000 samples"):
        plan_blend(recipe, config_for(5000, split="100"))


def test_a_temperature_that_leaves_nothing_of_a_source_is_refused(sources):
    recipe = weighted(sources, (1, 4, 16), temperature=0.001)
    with pytest.raises(UsageError, match=r"with temperature 0\.001, the weight of"):
        plan_blend(recipe, config_for(70, split="100"))
