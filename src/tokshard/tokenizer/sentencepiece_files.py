"""SentencePiece models."""

from __future__ import annotations

from typing import Any

from tokshard.errors import MissingExtraError, TokenizerError
from tokshard.tokenizer.vocabulary import Vocabulary


def sentencepiece_processor(definition: bytes, path: str) -> Any:
    """Return the SentencePiece processor of a model file's content."""
    try:
        import sentencepiece
    except ImportError as error:
        raise MissingExtraError(f"the SentencePiece tokenizer {path}", "sentencepiece") from error
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(definition)
    except RuntimeError as error:
        raise TokenizerError(
            f"{path} is not a SentencePiece model",
            hint="pass a tokenizer.json of the same model; names of tiktoken files must end in .tiktoken",
        ) from error
    return processor


def sentencepiece_vocabulary(definition: bytes, path: str) -> Vocabulary:
    """Return the vocabulary of a SentencePiece model."""
    processor = sentencepiece_processor(definition, path)
    ids = {processor.id_to_piece(index): index for index in range(processor.vocab_size())}
    eos = processor.eos_id()
    declared = processor.id_to_piece(eos) if eos >= 0 else None
    return Vocabulary(ids, (), processor.vocab_size(), declared)
