"""The files of datatrove: ``.ds`` with their indexes and metadata.

``000_NAME.ds`` holds the tokens of whole documents, uint16 or uint32, little endian, without a header.
``000_NAME.ds.index`` holds the end of each document in tokens, uint64, empty documents included.
``000_NAME.ds.metadata`` has three lines without a final line break: the tokenizer and the bytes of a token,
the number of tokens, and this number for people. ``NAME.ds.metadata`` has the same about all shards. The
names and the sizes of shards are those of datatrove's merger without shuffling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.dataset.source import InputFile
from tokshard.errors import IntegrityError
from tokshard.exchange.format import Format, ShardRange, Stage
from tokshard.exchange.manifest import ExportParameters
from tokshard.exchange.options import ExportOptions
from tokshard.exchange.reading import LocalFile, Metadata, Rows, TokenReader
from tokshard.exchange.records import Records
from tokshard.storage import fs
from tokshard.storage.reading import open_file

if TYPE_CHECKING:
    from tokshard.exchange.source import OpenSource

_TOKENS_SUFFIX = ".ds"
_INDEX_SUFFIX = ".ds.index"
_METADATA_SUFFIX = ".ds.metadata"

_UNKNOWN_TOKENIZER = "Unknown Tokenizer"
_PREFIXES = ("", "k", "M", "G", "T", "P", "E")
_METADATA_BYTES = 1 << 16
_MOST_DIGITS = 18  # fewer than 2**63 tokens
_SHOWN_CHARACTERS = 60
_CHUNK_ENTRIES = 1 << 16
_HIGHEST = 2**63 - 1


class _DatatroveReader(TokenReader):
    MASKS_SUFFIX = ".loss"
    MISSING = "no {} and no metadata"

    def _metadata(self, source: LocalFile) -> Metadata | None:
        name = source.path.removesuffix(_TOKENS_SUFFIX) + _METADATA_SUFFIX
        if not fs.isfile(name):
            return None
        with open_file(name) as file:
            lines = file.read(_METADATA_BYTES).decode("utf-8", "replace").split("\n")
        size = lines[0].rpartition("|")[2]
        tokens = lines[1] if len(lines) > 1 else ""
        is_number = tokens.isascii() and tokens.isdigit() and len(tokens) <= _MOST_DIGITS
        if size not in {"2", "4"} or not is_number:
            shown = [line[:_SHOWN_CHARACTERS] for line in lines[:2]]
            raise IntegrityError(
                f"{name} must have the lines NAME|2 or NAME|4, and the number of tokens, got {shown}",
                path=name,
                hint="copy the file again, or remove it: the conversion does not need it",
            )
        return int(size), int(tokens)

    def rows(self, path: str, tokens: int) -> Rows:  # noqa: ARG002
        """Yield the ends of documents in an index.

        Raises:
            IntegrityError: Its size is not a multiple of 8 bytes.
        """
        index = InputFile(path)
        if index.size_bytes % 8:
            raise IntegrityError(
                f"{path} must have 8 bytes for each document, got {index.size_bytes} bytes",
                path=path,
                offset=index.size_bytes // 8 * 8,
                hint="copy the file again: it is truncated or not an index of datatrove",
            )
        for offset in range(0, index.size_bytes, 8 * _CHUNK_ENTRIES):
            entries = np.empty((min(_CHUNK_ENTRIES, (index.size_bytes - offset) // 8), 1), "<u8")
            content = entries.data.cast("B")
            index.read_into(content, offset)
            yield content, np.minimum(entries, np.uint64(_HIGHEST)).astype(np.int64)


class DatatroveFormat(Format):
    """Writer of datatrove's files: a shard ends with the document that reaches the limit.

    The limit is the merger's default.
    """

    DTYPES = ("uint16", "uint32")
    SUFFIXES = (_TOKENS_SUFFIX, _INDEX_SUFFIX, _METADATA_SUFFIX)
    SHARD_TOKENS = 100_000_000_000
    RULE = "reaches"
    READER = _DatatroveReader("datatrove", DTYPES, SUFFIXES[:2])

    def __init__(self, records: Records, parameters: ExportParameters) -> None:
        super().__init__(records, parameters)
        self._tokenizer = parameters.tokenizer_name

    @staticmethod
    def added_parameters(options: ExportOptions, source: OpenSource, dtype: np.dtype[Any]) -> dict[str, Any]:  # noqa: ARG004
        """Return the name of the tokenizer: that of the option, or its path if that can be a name."""
        name = options.tokenizer_name
        path = source.tokenizer_path
        # The metadata has one line per field, and readers cut the first at the bar.
        if name is None and path and path.isprintable() and "|" not in path:
            name = path
        return {"tokenizer_name": name}

    def count_files(self) -> int:
        """Return the number of files."""
        return super().count_files() + 1

    def export(self, stage: Stage) -> int:
        """Write all files, last the metadata of all shards together."""
        super().export(stage)
        self._write_metadata(self._name, self._records.tokens, stage)
        return 0

    def write(self, shard: ShardRange, stage: Stage) -> None:
        """Write the tokens, the index and the metadata of a shard."""
        name = f"{shard.number:03d}_{self._name}"
        self._write_tokens(name + _TOKENS_SUFFIX, shard, stage)
        with stage.file(name + _INDEX_SUFFIX) as file:
            for _, edges in self._records.edges(shard.first, shard.stop):
                file.write((edges[1:] - shard.begin).astype("<u8").data)
        self._write_metadata(name, shard.tokens, stage)

    def _write_metadata(self, name: str, tokens: int, stage: Stage) -> None:
        with stage.file(name + _METADATA_SUFFIX) as file:
            file.write(metadata_text(self._tokenizer, self._dtype.itemsize, tokens).encode())


def metadata_text(tokenizer: str | None, token_bytes: int, tokens: int) -> str:
    r"""Return the content of a metadata file.

    Datatrove writes the bytes of a token twice if it does not know the tokenizer.

    Example:
        >>> metadata_text("gpt2", 2, 1234567)
        'gpt2|2\n1234567\n1.23 MT'
        >>> metadata_text(None, 4, 0)
        'Unknown Tokenizer|4|4\n0\n0.00 T'
    """
    name = tokenizer or f"{_UNKNOWN_TOKENIZER}|{token_bytes}"
    return f"{name}|{token_bytes}\n{tokens}\n{_short(tokens)}T"


def _short(tokens: int) -> str:
    # Three significant digits and a metric prefix. What rounds up to one more digit has that digit: 10.0 k.
    magnitude = len(str(tokens)) - 1
    scaled = tokens / 10 ** (magnitude // 3 * 3)
    if round(scaled, 2 - magnitude % 3) >= 10 ** (magnitude % 3 + 1):
        magnitude += 1
        scaled = tokens / 10 ** (magnitude // 3 * 3)
    return f"{scaled:.{2 - magnitude % 3}f} {_PREFIXES[magnitude // 3]}"


FORMAT = DatatroveFormat
