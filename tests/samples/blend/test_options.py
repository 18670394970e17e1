import pytest

from support.blends import write_sources
from tokshard.errors import UsageError
from tokshard.samples.blend.emission import emit_megatron
from tokshard.samples.blend.options import BlendOptions
from tokshard.samples.blend.recipe_files import parse_words
from tokshard.samples.index.description import GPTDatasetDescription
from tokshard.samples.index.options import NamingOptions
from tokshard.samples.index.sizes import Sizes, TrainingOptions


@pytest.fixture
def like(tmp_path):
    """The description of a job with a seed of its own."""
    description = GPTDatasetDescription("data/web", 10, "train", 4321, 64, "9,1", None, {"class": "a.B"})
    (tmp_path / "x-description.txt").write_text(description.text())
    return NamingOptions(like=tmp_path / "x-description.txt")


def test_the_seed_is_that_of_an_option_of_the_recipe_or_of_like(like, tmp_path):
    (tmp_path / "recipe.toml").write_text("seed = 9\n[[source]]\nprefix = 'data/web'\n")
    sources = (str(tmp_path / "recipe.toml"),)
    assert BlendOptions(sources=("data/web",), seq_length=8).resolve()[1].seed == 1234
    assert BlendOptions(sources=("data/web",), naming=like).resolve()[1].seed == 4321
    assert BlendOptions(sources=sources, naming=like).resolve()[1].seed == 9
    assert BlendOptions(sources=sources, naming=like, seed=7).resolve()[1].seed == 7


def test_what_no_option_gives_is_that_of_like(like):
    config = BlendOptions(sources=("data/web",), naming=like).resolve()[1]
    assert (config.sequence_length, config.seed, config.split) == (64, 4321, "9,1")
    assert config.tokenizer == {"class": "a.B"}
    changed = BlendOptions(sources=("data/web",), naming=like, seq_length=8, split="1").resolve()[1]
    assert (changed.sequence_length, changed.split) == (8, "1")


def test_a_weight_that_is_a_number_is_refused():
    with pytest.raises(UsageError, match=r"^PREFIX must be a string, got 0\.7$"):
        BlendOptions(sources=(0.7, "data/web"))


def test_sizes_are_given_in_one_way(tmp_path):
    training = TrainingOptions(train_iters=3, global_batch_size=4, eval_interval=2)
    (tmp_path / "recipe.toml").write_text("num_samples = 9\n[[source]]\nprefix = 'data/web'\n")
    recipe = BlendOptions(sources=(str(tmp_path / "recipe.toml"),), seq_length=8, training=training)
    assert recipe.resolve()[1].sizes.train == 12
    assert BlendOptions(sources=("a",), seq_length=8, training=training).resolve()[1].sizes.train == 12
    with pytest.raises(UsageError, match="--num-samples cannot be used with --train-iters"):
        BlendOptions(sources=("a",), num_samples=Sizes(1, 0, 0), training=training)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "a mixture is required"),
        ({"sources": ("a",), "train": "b"}, "the arguments cannot be used with --train"),
        ({"sources": ("a",), "recipe": parse_words(["b"])}, "the arguments cannot be used with recipe"),
    ],
)
def test_the_mixture_is_given_in_one_way(given, message):
    with pytest.raises(UsageError, match=message):
        BlendOptions(**given)


def test_the_files_are_those_of_the_public_api(tmp_path, monkeypatch):
    import tokshard

    monkeypatch.chdir(tmp_path)
    sources = write_sources(tmp_path)
    options = BlendOptions(
        sources=("2", sources[0], "1", sources[1]),
        output="mix",
        seq_length=16,
        num_samples=Sizes(30, 0, 0),
        split="1",
        naming=NamingOptions(tokenizer_identifiers={"class": "a.B"}),
    )
    planned = tokshard.blend(options, dry_run=True)
    report = tokshard.blend(options)
    (split,) = planned.splits
    drawn = [source.draws for source in report.blend.splits["train"].sources]
    assert [source.draws for source in split.sources] == drawn == [20, 10]
    assert emit_megatron(report, options).endswith("--data-cache-path mix/cache")
