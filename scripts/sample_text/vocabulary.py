"""A small byte-level BPE, trained on the two sources."""

from __future__ import annotations

import json
from collections.abc import Iterable

VOCABULARY_SIZE = 4096
EOD = "<|endoftext|>"
PAD = "<|pad|>"


def train_tokenizer(texts: Iterable[str]) -> str:
    """Return the tokenizer.json of a BPE of 4,096 tokens with the pre-tokenizer of GPT-2.

    The merges are a function of the texts: the trainer prefers the more frequent pair, and of equally
    frequent ones that with the smaller ids.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=[EOD, PAD],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    # Written by the standard library, so that the layout does not depend on the version of tokenizers.
    return json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, indent=1) + "\n"


def tokenizer_configuration() -> str:
    """Return the tokenizer_config.json that names the special tokens."""
    configuration = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": EOD,
        "pad_token": PAD,
        "clean_up_tokenization_spaces": False,
    }
    return json.dumps(configuration, indent=2) + "\n"
