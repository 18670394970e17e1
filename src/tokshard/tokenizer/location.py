"""Location of tokenizer files: on a disk, on the Hugging Face Hub, or in an object store."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass

from tokshard.core.formatting import visible
from tokshard.errors import MissingExtraError, MissingFileError, TokenizerError
from tokshard.storage import paths, syscalls
from tokshard.storage.paths import is_remote
from tokshard.storage.remote import objects

_DEFINITION = "tokenizer.json"
_BESIDE = ("tokenizer_config.json", "special_tokens_map.json")
_CACHE_NAME = "tokenizers"
# The name of a repository on the Hub, with or without a revision.
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?(@[\w./-]+)?")
_FILE_NAME = re.compile(r"\.(json|model|tiktoken|txt)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Location:
    """Local files of a tokenizer.

    Attributes:
        beside: The existing files in the same directory that may name its special tokens.
    """

    definition: str
    beside: tuple[str, ...]


def locate_tokenizer(argument: str) -> Location:
    """Return the local files of a tokenizer; remote files are downloaded.

    Raises:
        TokenizerError: The tokenizer is not found.
        StorageError: A store does not answer.
        MissingExtraError: The library for the download is not installed.
    """
    if argument.startswith("hf:"):
        return _from_hub(argument[3:])
    return _from_store(argument) if is_remote(argument) else _from_disk(argument)


def _from_disk(argument: str) -> Location:
    directory = argument if os.path.isdir(argument) else os.path.dirname(argument)
    path = argument
    if os.path.isdir(argument):
        path = os.path.join(argument, _DEFINITION)
        if not os.path.exists(path):
            raise TokenizerError(
                f"tokenizer.json not found in the directory {argument}",
                hint="pass the file of the tokenizer: tokenizer.json, NAME.tiktoken or NAME.model",
            )
    elif not os.path.lexists(argument):
        raise TokenizerError(
            f"tokenizer not found: {visible(argument)}", hint=_hint_for_missing(argument, directory)
        )
    beside = (os.path.join(directory, name) for name in _BESIDE)
    return Location(path, tuple(file for file in beside if os.path.exists(file)))


def _hint_for_missing(argument: str, directory: str) -> str:
    if _HUB_NAME.fullmatch(argument) and not _FILE_NAME.search(argument) and not os.path.isdir(directory):
        return f"pass hf:{argument} to load the tokenizer from the Hugging Face Hub"
    return "pass a tokenizer.json, its directory, NAME.tiktoken, NAME.model or hf:ORGANIZATION/NAME"


def _from_store(url: str) -> Location:
    if objects.is_directory(url):
        url = f"{url.rstrip('/')}/{_DEFINITION}"
    base, _, name = url.rpartition("/")
    try:
        definition = _copy(url)
    except MissingFileError as error:
        raise TokenizerError(
            f"tokenizer not found: {url}",
            hint="pass the URL of a tokenizer.json or of its directory",
        ) from error
    beside = []
    for other in _BESIDE if name == _DEFINITION else ():
        try:
            beside.append(_copy(f"{base}/{other}"))
        except MissingFileError:
            continue
    return Location(definition, tuple(beside))


def _copy(url: str) -> str:
    # Each version of an object has its own copy.
    status = objects.status(url)
    digest = hashlib.sha256(f"{url} {status.size_bytes} {status.version}".encode()).hexdigest()[:24]
    directory = os.path.join(paths.user_cache_directory(), _CACHE_NAME, digest)
    path = os.path.join(directory, os.path.basename(url))
    if not os.path.exists(path):
        syscalls.make_directory(directory)
        objects.download(url, path, known=status)
    return path


def _from_hub(name: str) -> Location:
    try:
        import huggingface_hub
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
    except ImportError as error:
        raise MissingExtraError(f"the tokenizer hf:{name}", "hub") from error
    repository, _, revision = name.partition("@")

    def fetch(file: str) -> str:
        return huggingface_hub.hf_hub_download(repository, file, revision=revision or None)

    try:
        definition = fetch(_DEFINITION)
        beside = []
        for file in _BESIDE:
            try:
                beside.append(fetch(file))
            except EntryNotFoundError as error:
                # A file that is not in the cache may still exist on the Hub, except in offline mode.
                local = isinstance(error, LocalEntryNotFoundError)
                if local and not huggingface_hub.constants.HF_HUB_OFFLINE:
                    raise
    except (OSError, ValueError) as error:
        reason = str(error).strip().split("\n", 1)[0]
        raise TokenizerError(
            f"cannot download the tokenizer hf:{name}: {reason}",
            hint="check the name and the access rights, or download tokenizer.json and pass its path",
        ) from error
    return Location(definition, tuple(beside))
