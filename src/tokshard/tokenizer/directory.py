"""The tokenizer that transformers makes of a directory: ``tokenizer.json`` with the files beside it.

AutoTokenizer changes what ``tokenizer.json`` says by ``tokenizer_config.json``, ``special_tokens_map.json``,
``added_tokens.json`` and the class that is named there or follows from ``config.json``; versions 4 and 5
differ. Megatron's HuggingFaceTokenizer then adds its BOS, EOS, CLS and SEP tokens once more, without flags.

:func:`read_directory` repeats these steps for the parsed files. The result is a definition in the form of
``tokenizer.json`` with which the plain library gives the same ids. :func:`choose_reading` chooses the
version.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tokshard.tokenizer import canonical
from tokshard.tokenizer.added_tokens import text_of
from tokshard.tokenizer.directory_reader import Directory, DirectoryReader, Reading
from tokshard.tokenizer.huggingface import SPLITS_SPECIAL_TOKENS
from tokshard.tokenizer.transformers4_reader import Transformers4Reader
from tokshard.tokenizer.transformers5_reader import Transformers5Reader
from tokshard.tokenizer.transformers_classes import Family, UnloadableError

_READERS: Final[dict[Family, type[DirectoryReader]]] = {"4": Transformers4Reader, "5": Transformers5Reader}


def read_directory(files: Directory, version: Family) -> Reading:
    """Return what a version of transformers makes of a directory.

    Example:
        >>> model = {"type": "BPE", "vocab": {"a": 0, "<end>": 1}, "merges": []}
        >>> files = Directory({"model": model, "added_tokens": []}, False, {"eos_token": "<end>"})
        >>> read_directory(files, "5").eos_token
        '<end>'
    """
    try:
        return _READERS[version](files).read()
    except UnloadableError as error:
        declared = _declared_eos(files)
        return Reading(version, files.definition, declared, unfollowed=(str(error),), is_loadable=False)


def _declared_eos(files: Directory) -> str | None:
    for parsed in (files.special_tokens_map, files.config):
        if parsed and parsed.get("eos_token") is not None:
            return text_of(parsed["eos_token"])
    return None


@dataclass(frozen=True, slots=True)
class ReadingProblem:
    """Something that a user must know of a directory: a sentence, and what to do.

    Attributes:
        is_fatal: Whether transformers cannot load the directory.
    """

    message: str
    hint: str
    is_fatal: bool = False


def choose_reading(
    files: Directory, wanted: Family | None, place: str, *, special_tokens: bool
) -> tuple[Reading, ReadingProblem | None]:
    """Return the reading that a job follows, and the reason why its ids may not be those of the training job.

    That is version 5 where the versions differ and none is wanted.

    Args:
        files: The directory.
        wanted: The version of transformers that the user names.
        place: The tokenizer, for messages.
        special_tokens: Whether the post-processor applies.
    """
    if wanted is not None:
        reading = read_directory(files, wanted)
        return reading, _unfollowed(reading, place)
    newest, other = read_directory(files, "5"), read_directory(files, "4")
    if not other.is_loadable:
        return newest, _unfollowed(newest, place)
    if not newest.is_loadable:
        return other, _unfollowed(other, place)
    if newest.unfollowed and other.unfollowed:
        return newest, _unfollowed(newest, place)
    found = differences(newest, other, special_tokens=special_tokens)
    found += [setting for reading in (newest, other) for setting in reading.unfollowed]
    if not found:
        return newest, None
    message = f"transformers 4 and 5 read the directory of the tokenizer {place} differently"
    return newest, ReadingProblem(
        f"{message}: {', '.join(found)}",
        "pass --transformers 4 or --transformers 5, the version of the training job",
    )


def _unfollowed(reading: Reading, place: str) -> ReadingProblem | None:
    if not reading.unfollowed:
        return None
    settings = "; ".join(reading.unfollowed)
    if not reading.is_loadable:
        return ReadingProblem(
            f"transformers {reading.version} cannot load the directory of the tokenizer {place}: {settings}",
            "pass --transformers with the version that loads it, or the tokenizer.json in a directory of its "
            "own",
            is_fatal=True,
        )
    return ReadingProblem(
        f"tokshard does not follow a setting in the directory of the tokenizer {place}, which transformers "
        f"{reading.version} follows: {settings}",
        "save what AutoTokenizer loads with the program in docs/reference/tokenizers.md "
        "(backend_tokenizer.save loses flags of tokens), and pass the file in a directory of its own",
    )


def differences(first: Reading, second: Reading, *, special_tokens: bool) -> list[str]:
    """Return in which respects two readings of a directory differ, as words for a message.

    ``special_tokens``: whether the post-processor applies.
    """
    parts = canonical.behavior(first.definition), canonical.behavior(second.definition)
    names = {
        "model": "the model",
        "added_tokens": "the added tokens",
        "normalizer": "the normalizer",
        "pre_tokenizer": "the pre-tokenizer",
        "post_processor": "the post-processor",
        SPLITS_SPECIAL_TOKENS: "split_special_tokens",
    }
    if not special_tokens:
        del names["post_processor"]
    found = [words for key, words in names.items() if parts[0].get(key) != parts[1].get(key)]
    return found + (["the EOS token"] if first.eos_token != second.eos_token else [])
