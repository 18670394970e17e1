"""Options that no version of Megatron has are errors if they are typing mistakes, else a note."""

from __future__ import annotations

import time

import pytest

from tokshard.checks.doctor.launch.arguments import KINDS, option_of
from tokshard.checks.doctor.launch.option_names import known_options
from tokshard.checks.doctor.launch.text import read_launch_words, read_launches
from tokshard.core.findings import Finding


def problems(options: str) -> list[Finding]:
    (launch,) = read_launches(f"torchrun pretrain_gpt.py --seed 1 {options}")
    return list(launch.arguments.problems)


@pytest.mark.parametrize(
    ("name", "intended"),
    [
        ("seq-lenght", "seq-length"),
        ("train-sample", "train-samples"),
        ("train-iter", "train-iters"),
        ("eval-inter", "eval-interval"),
        ("seq-len", "seq-length"),
        ("data-cache", "data-cache-path"),
        ("micro_batch_sizes", "micro-batch-size"),
        ("spilt", "split"),
        ("no-mmap-bin-file", "no-mmap-bin-files"),
    ],
)
def test_typing_mistake_or_abbreviation_of_an_option_is_an_error(name, intended):
    (problem,) = problems(f"--{name} 8")
    assert (problem.code, problem.severity) == ("unknown-option", "error")
    assert problem.message == f"--{name} is not an option of Megatron; did you mean --{intended}?"
    assert problem.hint == f"write --{intended}"


@pytest.mark.parametrize(
    "options",
    [
        "--bf16 --tokenizer-type HFTokenizer --deepspeed --deepspeed_config x.json",
        "--train-weighted-split-paths-path list.txt --patch-tokenizer-type Qwen2Tokenizer",
        "--data-path a --seq-lenght.json",
        "--save --seq-length 8",
        "--$X-lenght 8",
        "--tokenizer-type $TYPE",
        "--tokenizer-type HuggingFace$X",
        "--optimizer",
    ],
)
def test_options_of_a_version_or_fork_and_unknown_values_are_no_problems(options):
    assert problems(options) == []


def test_words_that_are_no_options_of_the_program_are_not_checked():
    text = "torchrun --nproc-per-nod 8 pretrain_gpt.py --data-path seq-lenght --seed 1"
    (launch,) = read_launches(text)
    assert launch.arguments.problems == ()


def test_other_unknown_options_are_one_note():
    options = "--sglang-dp-size 8 --our-flag --sglang-dp-size 9"
    (problem,) = problems(options)
    assert (problem.code, problem.severity) == ("other-options", "note")
    assert problem.message.endswith("Megatron has --sglang-dp-size, --our-flag")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (
            "--tokenizer-type HuggingfaceTokenizer",
            "--tokenizer-type has no choice 'HuggingfaceTokenizer'; did you mean HuggingFaceTokenizer?",
        ),
        ("--dataloader-type=singel", "--dataloader-type has no choice 'singel'; did you mean single?"),
        ("--optimizer adma", "--optimizer has no choice 'adma'; did you mean adam?"),
        ("--lr-decay-style COSINE", "--lr-decay-style has no choice 'COSINE'; did you mean cosine?"),
        ("--data-impl file", "--data-impl must be one of cached, infer, lazy, mmap, got 'file'"),
    ],
)
def test_value_that_is_no_choice_of_its_option_is_an_error(option, message):
    (problem,) = problems(option)
    assert (problem.code, problem.severity, problem.message) == ("invalid-choice", "error", message)


def test_underscores_are_reported_once_for_all_options():
    (problem,) = problems("--micro_batch_size 1 --lr_decay_style cosine")
    assert (problem.code, problem.severity) == ("reading", "warning")
    assert problem.message.startswith("--micro_batch_size, --lr_decay_style are spelled with underscores")
    assert problem.hint == "write --micro-batch-size, --lr-decay-style"


def test_underscores_of_a_fork_with_such_options_are_a_note():
    (note,) = problems("--wandb_entity me --wandb_logger_of_ours --bf16")
    assert (note.code, note.severity) == ("other-options", "note")
    assert "--wandb_entity, --wandb_logger_of_ours" in note.message
    (note,) = problems("--wandb_entity me --deepspeed --deepspeed_config x.json")
    assert (note.code, note.severity) == ("other-options", "note")
    codes = [problem.code for problem in problems("--micro_batch_size 1 --wandb_logger_of_ours")]
    assert codes == ["reading", "other-options"]


def test_all_options_about_data_are_listed():
    names = {option_of(name)[2:] for name in KINDS}
    assert names <= known_options().choices.keys()
    assert len(known_options().training) > 900


@pytest.mark.parametrize("option", ["--train-sample 9", "--train_samples 9"])
def test_value_of_a_mistyped_option_is_unknown(option):
    (launch,) = read_launches(f"torchrun pretrain_gpt.py --seed 1 {option}")
    written = option.split()[0]
    assert launch.arguments.unknown == (("train_samples", written),)
    reason = f"--train-samples is absent, but {written} may be a typing mistake of it"
    assert launch.arguments.unknown_value("train_samples").reason == reason
    (launch,) = read_launches(f"torchrun pretrain_gpt.py --train-samples 8 {option}")
    assert (launch.arguments.unknown, launch.arguments.train_samples) == ((), 8)


def test_check_of_many_unknown_options_is_fast():
    options = [f"--option-of-our-own-{number}x" for number in range(200_000)]
    start = time.process_time()
    (launch,) = read_launch_words(["--seed", "1", *options])
    (note,) = launch.arguments.problems
    assert "and 991 more" in note.message
    assert time.process_time() - start < 5
