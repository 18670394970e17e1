"""Print the identifiers of a tokenizer as Megatron computes them, for ``--tokenizer-identifiers FILE``.

Run this module in the training environment with the tokenizer options of the training job::

    python -m tokshard.dump_tokenizer_identifiers --tokenizer-type NullTokenizer --vocab-size 512 > ids.json

The names of Megatron's index caches depend on these identifiers. The module imports Megatron and the
standard library only, so it also runs as a single copied file where tokshard is not installed. If
``megatron.training`` is installed, its own parser reads the options, so any option of the job may be
passed; with Megatron Core alone, the tokenizer options are read by the list below.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import json
import os
import sys
import warnings
from typing import Any

BUILDERS = (
    "megatron.core.tokenizers.utils.build_tokenizer",
    "megatron.core.tokenizers.text.utils.build_tokenizer",
    "megatron.training.tokenizer",
)
FLAGS = (
    "trust-remote-code",
    "use-gigatoken",
    "tokenizer-hf-use-fast",
    "tokenizer-hf-include-special-tokens",
    "tokenizer-hf-no-use-fast",
    "tokenizer-hf-no-include-special-tokens",
    "tokenizer-sentencepiece-legacy",
)
NUMBERS: dict[str, int | None] = {
    "vocab-size": None,
    "null-tokenizer-eod-id": None,
    "null-tokenizer-pad-id": -1,
    "tiktoken-num-special-tokens": 1000,
    "vocab-extra-ids": 0,
}
TEXTS = (
    "tokenizer-type",
    "tokenizer-model",
    "tokenizer-metadata",
    "vocab-file",
    "merge-file",
    "tiktoken-pattern",
    "chat-template",
    "sft-tokenizer-prompt-format",
    "tokenizer-prompt-format",
    "image-tag-type",
)


def core_arguments() -> argparse.Namespace:
    """Parse Megatron's tokenizer options by their names and defaults, without ``megatron.training``."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    for name in TEXTS:
        parser.add_argument(f"--{name}")
    for name, default in NUMBERS.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    for name in FLAGS:
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--tokenizer-special-tokens", nargs="+")
    parser.add_argument("--tiktoken-special-tokens", nargs="+")
    arguments, ignored = parser.parse_known_args()
    if ignored:
        print(
            f"note: ignored options, which do not change the identifiers: {' '.join(ignored)}",
            file=sys.stderr,
        )
    # Some versions have other names for the same things.
    arguments.special_tokens = arguments.tokenizer_special_tokens
    arguments.metadata_path = arguments.tokenizer_metadata
    arguments.tokenizer_sentencepiece_ignore_extra_whitespaces = True
    arguments.force_system_message = False
    # The size of the padded vocabulary is computed on the way, and needs to be given or these.
    arguments.pad_vocab_size = True
    arguments.padded_vocab_size = None
    arguments.make_vocab_size_divisible_by = 128
    arguments.tensor_model_parallel_size = 1
    arguments.rank = 0
    return arguments


def training_arguments() -> Any:
    """Parse with Megatron's own parser; return None if it cannot be imported."""
    try:
        from megatron.training.arguments import parse_args
    except ImportError as error:
        print(f"note: megatron.training is not used ({error})", file=sys.stderr)
        return None
    return parse_args(ignore_unknown_args=True)


def build(arguments: Any) -> Any:
    """Build the tokenizer with the builder that the training script of this version uses."""
    wanted = BUILDERS[::-1] if getattr(arguments, "legacy_tokenizer", False) else BUILDERS
    for name in wanted:
        try:
            builder = importlib.import_module(name).build_tokenizer
        except ImportError:
            continue
        print(f"note: built by {builder.__module__}", file=sys.stderr)
        return builder(arguments)
    return None


def main() -> int:
    """Print the identifiers as JSON; return the exit code."""
    warnings.simplefilter("ignore")
    # Tokenizers and Megatron print to stdout as they please; only the result belongs there.
    result, sys.stdout = sys.stdout, sys.stderr
    if importlib.util.find_spec("megatron") is None:
        print(
            "error: Megatron is not installed in this Python environment\n"
            "hint: run this command in the environment of the training job",
            file=sys.stderr,
        )
        return 3
    os.environ.setdefault("RANK", "0")
    os.environ.setdefault("WORLD_SIZE", "1")
    with contextlib.redirect_stdout(sys.stderr):
        arguments = training_arguments() or core_arguments()
        if not arguments.tokenizer_type:
            print(
                "error: --tokenizer-type is required\nhint: pass the tokenizer options of the training job",
                file=sys.stderr,
            )
            return 2
        try:
            tokenizer = build(arguments)
        except Exception as error:  # noqa: BLE001 - whatever Megatron or a tokenizer library raises
            print(f"error: Megatron cannot build this tokenizer: {error}", file=sys.stderr)
            return 3
    if tokenizer is None:
        print("error: no known tokenizer builder in this version of Megatron", file=sys.stderr)
        return 3
    print(json.dumps(tokenizer.unique_identifiers, indent=4), file=result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
