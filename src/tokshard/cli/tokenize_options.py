"""Options of ``tokenize`` that select the tokenizer and the encoder."""

from __future__ import annotations

from typing import Annotated, Literal

from tokshard.cli.declarations import choice, integer, switch, text

TOKENIZER = "Tokenizer"

EncoderName = Literal["auto", "fast", "reference"]
DtypeName = Literal["auto", "uint16", "int32"]
PatternVersion = Literal["v1", "v2"]

TokenizerPath = Annotated[
    str | None,
    text(
        "--tokenizer",
        metavar="PATH",
        help="Use this tokenizer file (tokenizer.json, SentencePiece, tiktoken), a directory "
        "with one, its URL, or hf:ORG/NAME. null:N reads text that is token ids below N.",
        default="built-in bytes",
        group=TOKENIZER,
    ),
]
VocabFile = Annotated[
    str | None,
    text(
        "--vocab-file",
        metavar="PATH",
        help="Use this vocab.json of a GPT-2 tokenizer, with --merge-file, instead of --tokenizer.",
        group=TOKENIZER,
    ),
]
MergeFile = Annotated[
    str | None,
    text("--merge-file", metavar="PATH", help="Use this merges.txt with --vocab-file.", group=TOKENIZER),
]
TiktokenPattern = Annotated[
    PatternVersion | None,
    choice(
        PatternVersion,
        "--tiktoken-pattern",
        help="For the file of a Megatron TikTokenizer: split text with this pattern of Megatron.",
        default="v2",
        group=TOKENIZER,
    ),
]
TiktokenNumSpecialTokens = Annotated[
    int | None,
    integer(
        "--tiktoken-num-special-tokens",
        help="For the file of a Megatron TikTokenizer: reserve N ids for special tokens.",
        default="1000",
        group=TOKENIZER,
    ),
]
TiktokenSpecialTokens = Annotated[
    list[str] | None,
    text(
        "--tiktoken-special-tokens",
        metavar="TOKEN",
        help="For the file of a Megatron TikTokenizer: name its first special tokens.",
        default="Megatron's",
        group=TOKENIZER,
    ),
]
VocabSize = Annotated[
    int | None,
    integer(
        "--vocab-size",
        help="For the file of a Megatron TikTokenizer: use N tokens, special tokens included.",
        default="131072",
        group=TOKENIZER,
    ),
]
FilesBeside = Annotated[
    bool,
    switch(
        "--files-beside/--no-files-beside",
        help="Also read the settings in the tokenizer's directory, such as tokenizer_config.json.",
        group=TOKENIZER,
    ),
]
Eod = Annotated[
    str | None,
    text(
        "--eod",
        metavar="TOKEN",
        help="Use this token, or token id, as the EOD token.",
        default="the tokenizer's EOS token",
        group=TOKENIZER,
    ),
]
Encoder = Annotated[
    EncoderName,
    choice(
        EncoderName,
        "--encoder",
        help="Choose the encoder; both write the same tokens.",
        group=TOKENIZER,
    ),
]
Dtype = Annotated[
    DtypeName,
    choice(
        DtypeName,
        "--dtype",
        help="Store tokens as this type; auto is Megatron's choice, by the size of the vocabulary.",
        group=TOKENIZER,
    ),
]
Transformers = Annotated[
    str | None,
    text(
        "--transformers",
        metavar="PYTHON",
        help="Read a tokenizer directory whose settings change ids with the transformers of this Python, for "
        "example /envs/train/bin/python or 'docker run -i IMAGE python'; by default with the transformers "
        "that is installed here.",
        group=TOKENIZER,
    ),
]
