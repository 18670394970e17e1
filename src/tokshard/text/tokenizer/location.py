"""Location of tokenizer files: on a disk, on the Hugging Face Hub, or in an object store."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tokshard.core.formatting import visible
from tokshard.dataset.products import MERGES_NAME, TOKENIZER_FILES, VOCABULARY_NAME
from tokshard.errors import InputError, MissingExtraError, MissingFileError, StorageError, TokenizerError
from tokshard.storage import fs, paths, syscalls
from tokshard.storage.files import AtomicFile
from tokshard.storage.paths import is_remote
from tokshard.storage.remote import hub, objects
from tokshard.text.tokenizer.files import ACCEPTED_FILES, MAX_DEFINITION_BYTES, read_file, read_object
from tokshard.text.tokenizer.settings import SETTINGS_FILES

_OTHERS = (MERGES_NAME, "target.spm", "tiktoken.model", "tekken.json")
_CACHE_NAME = "tokenizers"
# The name of a repository on the Hub, with or without a revision.
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?(@[\w./-]+)?")
_FILE_NAME = re.compile(r"\.(json|model|tiktoken|txt)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Location:
    """Local files of a tokenizer.

    Attributes:
        beside: The existing files in the same directory that tell how transformers reads it.
        merges: The ``merges.txt`` of a ``vocab.json``; None for other definitions.
        directory: The directory, URL or repository that the user named; None if it was a file.
        fetch: Returns the local path of a file of the directory by its name, or None if there is none.
    """

    definition: str
    beside: tuple[str, ...]
    merges: str | None = None
    directory: str | None = None
    fetch: Callable[[str], str | None] = field(default=lambda _name: None, repr=False)

    @property
    def is_json(self) -> bool:
        """Whether the definition is a ``tokenizer.json``, under this or another name."""
        return self.definition.endswith(".json") and self.merges is None

    def settings(self) -> dict[str, dict[str, Any]]:
        """Return the JSON objects in the files ``beside``, by name; raise TokenizerError if one has none."""
        return {os.path.basename(path): read_object(path) for path in self.beside}

    def files(self, further: Iterable[str] = ()) -> dict[str, bytes]:
        """Return the contents of all files that transformers may read, and of ``further`` ones, by name.

        Raises:
            TokenizerError: A file cannot be read.
        """
        names = dict.fromkeys((*SETTINGS_FILES, *TOKENIZER_FILES, *_OTHERS, *further))
        paths_by_name = {name: path for name in names if (path := self.fetch(name)) is not None}
        return {name: read_file(path) for name, path in paths_by_name.items()}


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


def _location(fetch: Callable[[str], str | None], name: str | None, directory: str | None) -> Location | None:
    """Return the files of a definition; None if there is none.

    Args:
        fetch: Returns the local path of a file by its name, or None if there is none.
        name: The definition; None for the first that exists.
        directory: See :class:`Location`.
    """
    # The first that exists is used.
    for candidate in TOKENIZER_FILES if name is None else (name,):
        definition = fetch(candidate)
        if definition is None:
            continue
        merges = None
        if candidate.endswith(VOCABULARY_NAME):
            merges = fetch(candidate.removesuffix(VOCABULARY_NAME) + MERGES_NAME)
            if merges is None and name is None:
                continue
        found = [fetch(other) for other in SETTINGS_FILES if other != candidate]
        beside = tuple(path for path in found if path is not None)
        return Location(definition, beside, merges, directory, fetch)
    return None


def _from_disk(argument: str) -> Location:
    is_directory = os.path.isdir(argument)
    directory, name = (argument, None) if is_directory else os.path.split(argument)
    if not is_directory and not fs.lexists(argument):
        raise TokenizerError(
            f"tokenizer not found: {visible(argument)}", hint=_hint_for_missing(argument, directory)
        )

    def fetch(file: str) -> str | None:
        path = argument if file == name else os.path.join(directory, file)
        return path if fs.lexists(path) else None

    found = _location(fetch, name, argument if is_directory else None)
    if found is None:
        # Names such as gpt2-vocab.json and gpt2-merges.txt
        names = [each for each in sorted(os.listdir(directory)) if each.endswith("-" + VOCABULARY_NAME)]
        pairs = [pair for each in names if (pair := _location(fetch, each, argument)) and pair.merges]
        found = pairs[0] if len(pairs) == 1 else None
    if found is None:
        raise TokenizerError(
            f"tokenizer.json not found in the directory {argument}", hint=f"pass {ACCEPTED_FILES}"
        )
    return found


def _hint_for_missing(argument: str, directory: str) -> str:
    if _HUB_NAME.fullmatch(argument) and not _FILE_NAME.search(argument) and not os.path.isdir(directory):
        return f"pass hf:{argument} to load the tokenizer from the Hugging Face Hub"
    return f"pass {ACCEPTED_FILES}"


def _from_store(url: str) -> Location:
    is_directory = objects.is_directory(url)
    base, _, name = (url.rstrip("/"), "", None) if is_directory else url.rpartition("/")

    def fetch(file: str) -> str | None:
        try:
            return _copy(f"{base}/{file}")
        except MissingFileError:
            return None

    found = _location(fetch, name, url if is_directory else None)
    if found is None:
        raise TokenizerError(
            f"tokenizer not found: {url}",
            hint="pass the URL of a tokenizer.json, of another tokenizer file, or of its directory",
        )
    return found


def _copy(url: str) -> str:
    # Each version of an object has its own copy.
    status = objects.status(url)
    digest = hashlib.sha256(f"{url} {status.size_bytes} {status.version}".encode()).hexdigest()[:24]
    directory = os.path.join(paths.user_cache_directory(), _CACHE_NAME, digest)
    path = os.path.join(directory, os.path.basename(url))
    if not fs.exists(path):
        syscalls.make_directory(directory)
        with AtomicFile(path) as copy:
            copy.write(objects.read_whole(url, status))
    return path


def _from_hub(name: str) -> Location:
    """Return the files of a model at one commit; if it cannot be read, those in the library's cache."""
    try:
        import huggingface_hub
    except ImportError as error:
        raise MissingExtraError(f"the tokenizer hf:{name}", "hub") from error
    hint = "download tokenizer.json and pass its path"
    if not _HUB_NAME.fullmatch(name):
        raise TokenizerError(
            f"cannot download the tokenizer hf:{name}: its name must be ORG/NAME or ORG/NAME@REVISION",
            hint=f"check the name, or {hint}",
        )
    repository, _, revision = name.partition("@")

    def download(file: str) -> str | None:
        url = commit.url(file)
        try:
            if objects.status(url).size_bytes > MAX_DEFINITION_BYTES:
                raise InputError(f"{file} has more than {MAX_DEFINITION_BYTES} bytes")
            return _copy(url)
        except MissingFileError:
            return None

    def cached(file: str) -> str | None:
        path = huggingface_hub.try_to_load_from_cache(repository, file, revision=revision or None)
        return path if isinstance(path, str) else None

    failure: InputError | StorageError = InputError(f"it has no {' or '.join(TOKENIZER_FILES)}")
    try:
        commit = hub.resolve("models", repository, revision or None, f"hf:{name}")
        found = _location(download, None, f"hf:{name}")
    except (InputError, StorageError) as error:
        failure, found = error, _location(cached, None, f"hf:{name}")
    if found is None:
        raise TokenizerError(
            f"cannot download the tokenizer hf:{name}: {failure.message}",
            hint=f"{failure.hint or 'check the name'}, or {hint}",
        ) from failure
    return found
