"""SentencePiece models: their tokens, and the changes by the files beside one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tokshard.errors import MissingExtraError, TokenizerError
from tokshard.text.tokenizer.files import token_text
from tokshard.text.tokenizer.vocabulary import Vocabulary

# The classes of transformers that encode a text as the model does, and add BOS. Others change ids.
_LLAMA_CLASSES: Final = ("LlamaTokenizer", "LlamaTokenizerFast")
_LLAMA_MODELS: Final = ("llama", "mistral", "mixtral")


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


def sentencepiece_vocabulary(
    definition: bytes, path: str, files: Mapping[str, Mapping[str, Any]]
) -> Vocabulary:
    """Return the vocabulary of a SentencePiece model.

    Args:
        definition: The content of its file.
        path: The file, for messages.
        files: The JSON objects in the files next to it. The first file that has a field counts.
    """
    settings: dict[str, Any] = {}
    for file in files.values():
        settings = {**file, **{key: value for key, value in settings.items() if value is not None}}
    processor = sentencepiece_processor(definition, path)
    ids = {processor.id_to_piece(index): index for index in range(processor.vocab_size())}
    eos = processor.eos_id()
    declared = token_text(settings.get("eos_token"))
    if declared not in ids:
        declared = processor.id_to_piece(eos) if eos >= 0 else None
    prefix, suffix = _template(processor, ids, settings) or (None, None)
    unknown = processor.unk_id()
    # The library refuses models that have some pieces for bytes, but not all.
    has_bytes = any(processor.is_byte(index) for index in range(processor.vocab_size()))
    has_unknown = unknown >= 0 and not has_bytes
    return Vocabulary(
        "sentencepiece",
        definition,
        ids,
        (),
        processor.vocab_size(),
        declared_eod=declared,
        prefix_ids=prefix,
        suffix_ids=suffix,
        unknown_id=unknown if has_unknown else None,
    )


def _template(
    processor: Any, ids: Mapping[str, int], settings: Mapping[str, Any]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    # The defaults are those of LlamaTokenizer of transformers 4.
    if not _is_like_llama(settings):
        return None
    sides: list[tuple[int, ...]] = []
    for switch, default, name, own in (
        ("add_bos_token", True, "bos_token", processor.bos_id()),
        ("add_eos_token", False, "eos_token", processor.eos_id()),
    ):
        adds = settings.get(switch)
        if not (default if adds is None else adds):
            sides.append(())
            continue
        index = ids.get(token_text(settings.get(name)) or "", own)
        if index < 0:
            return None
        sides.append((index,))
    return sides[0], sides[1]


def _is_like_llama(settings: Mapping[str, Any]) -> bool:
    """Return whether the tokenizer class or model type is one of Llama's; also if the settings name none."""
    if settings.get("auto_map"):
        return False
    if (name := settings.get("tokenizer_class")) is not None:
        return name in _LLAMA_CLASSES
    return settings.get("model_type") in (None, *_LLAMA_MODELS)
