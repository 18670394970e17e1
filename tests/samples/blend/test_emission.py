import itertools
import shlex

import pytest

from support.blends import config_for, recipe_of, write_sources
from tokshard.errors import UsageError
from tokshard.samples.blend.emission import emit_megatron
from tokshard.samples.blend.options import BlendOptions
from tokshard.samples.blend.plan import plan_blend
from tokshard.samples.blend.recipe import Source
from tokshard.samples.blend.recipe_files import parse_words
from tokshard.samples.index.sizes import TrainingOptions


def emit(plan, form="megatron-args", **options):
    return emit_megatron(plan, BlendOptions(recipe=plan.recipe, **options), form)


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    return write_sources(tmp_path_factory.mktemp("sources"))


def test_the_arguments_that_sizes_come_from_are_emitted_as_they_are(sources):
    plan = plan_blend(parse_words(["1", sources[0], "2", sources[1]]), config_for(80, 24, 8))
    training = TrainingOptions(train_iters=10, global_batch_size=8, eval_interval=5)
    words = shlex.split(emit(plan, training=training))
    assert words[-6:] == ["--train-iters", "10", "--global-batch-size", "8", "--eval-interval", "5"]
    assert "--train-samples" not in words


def test_arguments_and_json_of_a_plan_are_read_back_as_the_same_plan(sources):
    weights = zip(sources, (0.7, 0.2, 0.1), strict=True)
    recipe = recipe_of(*(Source(prefix, weight, max_epochs=2) for prefix, weight in weights))
    plan = plan_blend(recipe, config_for(200, 8, 8))
    words = shlex.split(emit(plan, cache_dir="/cache"))
    begin, end = words.index("--data-path") + 1, words.index("--split")
    assert dict(itertools.pairwise(words))["--train-samples"] == "200"
    again = plan_blend(parse_words(words[begin:end]), config_for(200, 8, 8))
    assert [split.description() for split in again.splits] == [split.description() for split in plan.splits]
    assert parse_words(emit(plan, "megatron-words").split()) == again.recipe
    with pytest.raises(UsageError, match="requires sources for each split"):
        emit(plan, "megatron-json")


def test_splits_of_their_own_are_emitted_as_such(sources, tmp_path):
    from tokshard.samples.blend.recipe_files import read_per_split

    recipe = parse_words(["1", sources[0], "2", sources[1]], [sources[2]], None)
    plan = plan_blend(recipe, config_for(30, None))
    (tmp_path / "splits.json").write_text(emit(plan, "megatron-json"))
    assert read_per_split(str(tmp_path / "splits.json")) == recipe
    with pytest.raises(UsageError, match="sources for each split"):
        emit(plan, "megatron-words")
    words = shlex.split(emit(plan))
    assert "--full-validation" in words
    assert words[: words.index("--full-validation")] == [
        "--train-data-path", "1", sources[0], "2", sources[1], "--valid-data-path", sources[2],
    ]  # fmt: skip


@pytest.mark.parametrize("training", ["-x/source0", "7"])
def test_prefixes_that_megatron_would_misread_are_not_emitted(sources, training):
    plan = plan_blend(parse_words(sources[:1]), config_for(30, path_as=((sources[0], training),)))
    with pytest.raises(UsageError, match=training):
        emit(plan)


def test_a_file_of_words_has_no_prefix_that_megatron_would_cut(sources):
    plan = plan_blend(parse_words(sources[:1]), config_for(30, path_as=((sources[0], "data/a b"),)))
    assert "data/a b" in shlex.split(emit(plan))
    with pytest.raises(UsageError, match="'data/a b': it contains white space"):
        emit(plan, "megatron-words")
