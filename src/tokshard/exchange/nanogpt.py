"""The files of modded-nanogpt, of llm.c, and of NeMo Automodel's NanoGPT dataset.

``NAME_train_000001.bin`` is a header of 256 int32 and the tokens, all little endian. There are two headers:

=============  =========  =======  ======  ==========  ==============
name           magic      version  tokens  item bytes  dtypes
=============  =========  =======  ======  ==========  ==============
``fineweb``    20240520   1        count   0           uint16
``automodel``  278895051  1        count   2 or 4      uint16, uint32
=============  =========  =======  ======  ==========  ==============

The stream of tokens has a BOS token before each document, and no EOD token after it: an EOD token that ends a
document is left out. The stream is cut into shards of equal size, in the middle of documents; the first one
is named ``val``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.core.formatting import counted
from tokshard.dataset.source import Tokens
from tokshard.errors import InputError, IntegrityError, UsageError
from tokshard.exchange.format import Format, Stage
from tokshard.exchange.manifest import ExportParameters
from tokshard.exchange.options import ExportOptions, HeaderName
from tokshard.exchange.reading import COPY_HINT, LocalFile, TokenFile, TokenReader, damaged
from tokshard.exchange.records import CHUNK_RECORDS, Records
from tokshard.storage import fs, paths

if TYPE_CHECKING:
    from tokshard.exchange.source import OpenSource

HEADER_BYTES = 1024
_MOST_SHARD_TOKENS = 2**31 - 1  # the count in the header is an int32

_MAGICS: dict[HeaderName, int] = {"fineweb": 20240520, "automodel": 278895051}
# Llama 3 in llm.c: tokens of 32 bits.
_LLAMA_MAGIC = 20240801
_VERSION = 1
_NO_HEADER_HINT = (
    "copy the file again, or if it has no header, as train.bin of nanoGPT, pass --from olmo --source-dtype "
    "uint16 --eod-id ID (50256 for GPT-2)"
)
_LLAMA_HINT = (
    f"cut off its header (tail -c +{HEADER_BYTES + 1} FILE > tokens.npy), and convert the rest with --from "
    "olmo --source-dtype uint32 --eod-id ID"
)
# The number is that of a series which validation and training files share.
_SPLIT_WORD = re.compile(r"(?:^|(?<=_))(train|val)_(?=\d+\.bin$)")
_BLOCK_TOKENS = 1 << 19


def header(kind: HeaderName, tokens: int, dtype: np.dtype[Any]) -> bytes:
    """Return the 1,024 bytes of the header of a file with so many tokens.

    Example:
        >>> content = header("fineweb", 3, np.dtype("<u2"))
        >>> np.frombuffer(content, "<i4")[:4].tolist(), len(content)
        ([20240520, 1, 3, 0], 1024)
    """
    values = np.zeros(HEADER_BYTES // 4, "<i4")
    values[:3] = _MAGICS[kind], _VERSION, tokens
    if kind == "automodel":
        values[3] = dtype.itemsize
    return values.tobytes()


class _NanogptReader(TokenReader):
    HAS_HEADER = True
    BEGINS_WITH_BOS = True

    def chosen(self, directory: str, files: list[str], split: str) -> list[str]:
        """Return the files of a split; all files if no name has the word ``train`` or ``val``.

        Raises:
            InputError: Only other splits have files.
        """
        words = [_SPLIT_WORD.search(os.path.basename(path)) for path in files]
        if split == "all" or not any(words):
            return files
        found = [path for path, word in zip(files, words, strict=True) if word and word[1] == split]
        if not found:
            other = next(word[1] for word in words if word)
            raise InputError(
                f"no {split} file of nanogpt in {directory}",
                hint=f"pass --split {other} or --split all, or the files themselves",
            )
        return found

    def _is_token_file(self, path: str) -> bool:
        # The .bin of an indexed dataset, such as an earlier output, is none.
        return not fs.lexists(paths.idx_path(path.removesuffix(self.suffix)))

    def _order(self, path: str) -> Any:
        directory, name = os.path.split(path)
        return paths.natural_key(os.path.join(directory, _SPLIT_WORD.sub("", name)))

    def _opened(self, sources: Sequence[LocalFile], source_dtype: object) -> tuple[TokenFile, ...]:  # noqa: ARG002
        return tuple(map(_with_header, sources))


def _with_header(source: LocalFile) -> TokenFile:
    path = source.path
    prefix = path.removesuffix(".bin")
    if fs.lexists(paths.idx_path(prefix)):
        raise InputError(
            f"{path} is the .bin of an indexed dataset, not a file of nanogpt",
            hint=f"use the dataset {prefix} as it is: convert writes such datasets",
        )
    content = source.head(HEADER_BYTES)
    magic, version, tokens, item_bytes = np.frombuffer(content.ljust(HEADER_BYTES, b"\0"), "<i4", 4).tolist()
    if len(content) < HEADER_BYTES:
        text = f" must have a header of {HEADER_BYTES} bytes, got {len(content)}"
        raise _wrong_header(path, None, text, _NO_HEADER_HINT)
    if magic == _LLAMA_MAGIC:
        raise _wrong_header(path, "magic", " is a file of llm.c for Llama 3", _LLAMA_HINT)
    if magic not in _MAGICS.values():
        magics = " or ".join(map(str, _MAGICS.values()))
        text = f" must begin with the magic number {magics}, got {magic}"
        raise _wrong_header(path, "magic", text, _NO_HEADER_HINT)
    if version != _VERSION:
        raise _wrong_header(path, "version", f": version must be {_VERSION}, got {version}")
    if tokens < 0:
        raise _wrong_header(path, "tokens", f": tokens must not be negative, got {tokens}")
    is_wide = magic == _MAGICS["automodel"]
    if is_wide and item_bytes not in {2, 4}:
        raise _wrong_header(path, "item bytes", f": item bytes must be 2 or 4, got {item_bytes}")
    dtype = "uint32" if is_wide and item_bytes == 4 else "uint16"
    expected = HEADER_BYTES + tokens * np.dtype(dtype).itemsize
    if expected != source.size_bytes:
        raise damaged(
            path,
            f"must have {expected} bytes by its header ({counted(tokens, 'token')} of {dtype}), "
            f"got {source.size_bytes}",
            offset=min(expected, source.size_bytes),
        )
    return TokenFile(source, dtype, HEADER_BYTES, tokens)


def _wrong_header(path: str, field: str | None, text: str, hint: str = COPY_HINT) -> IntegrityError:
    return IntegrityError(path + text, path=path, field=field, hint=hint)


class NanogptFormat(Format):
    """Writer of nanogpt's files.

    The limit is the default of the script that writes FineWeb for modded-nanogpt.

    Raises:
        UsageError: The parameters do not fit each other or the dtype.
    """

    DTYPES = ("uint16", "uint32")
    SUFFIXES = (".bin",)
    SHARD_TOKENS = 100_000_000
    NO_SAMPLES = "its readers cut the tokens at BOS tokens or at their own positions"
    READER = _NanogptReader("nanogpt", DTYPES, SUFFIXES)

    def __init__(self, records: Records, parameters: ExportParameters) -> None:
        super().__init__(records, parameters)
        self._eod_id = -1 if parameters.eod_id is None else parameters.eod_id
        self._bos_id = parameters.bos_id or 0
        self._val_shards = parameters.val_shards or 0
        self._header = parameters.header or "fineweb"
        if self._limit > _MOST_SHARD_TOKENS:
            raise UsageError(f"--shard-tokens must be at most {_MOST_SHARD_TOKENS:,}, got {self._limit:,}")
        if self._bos_id > int(np.iinfo(self._dtype).max):
            raise UsageError(f"--bos-id must fit {self._dtype.name}, got {self._bos_id}")
        if self._header == "fineweb" and self._dtype.itemsize != 2:
            raise UsageError(
                f"--header fineweb requires uint16 tokens, got {self._dtype.name}",
                hint="pass --header automodel",
            )

    @staticmethod
    def added_parameters(options: ExportOptions, source: OpenSource, dtype: np.dtype[Any]) -> dict[str, Any]:
        """Return the tokens at the begin and the end of documents, the header and the validation shards.

        Raises:
            UsageError: No option and no tokenizer tells the BOS token.
        """
        tokenizer = source.tokenizer
        recorded = tokenizer.eod_id
        if recorded is None and tokenizer.identity is not None:
            recorded = tokenizer.identity.eod_id
        given = (options.bos_id, options.eod_id, recorded)
        bos_id = next((value for value in given if value is not None), None)
        if bos_id is None:
            raise UsageError(
                f"--bos-id is required: the EOD token of {os.fspath(options.source)} is unknown",
                hint="pass the id of the token that ends documents with --eod-id, or --bos-id",
            )
        eod_id = options.eod_id
        if eod_id is None and tokenizer.append_eod is not False:
            eod_id = bos_id if recorded is None else recorded
        return {
            "eod_id": eod_id,
            "bos_id": bos_id,
            "val_shards": 1 if options.val_shards is None else options.val_shards,
            "header": options.header or ("fineweb" if dtype.itemsize == 2 else "automodel"),
        }

    def warning(self, shards: int, tokens: int) -> str | None:
        """Return a warning if there is no shard for training."""
        if not 0 < shards <= self._val_shards:
            return None
        return (
            f"all {counted(tokens, 'token')} are in validation shards: lower --shard-tokens, or pass "
            "--val-shards 0"
        )

    def count_files(self) -> int:
        """Return the number of files if all documents end with the EOD token."""
        return -(-self._records.tokens // self._limit)

    def export(self, stage: Stage) -> int:
        """Write all files; return the number of BOS tokens."""
        records = self._records
        blocks = self._blocks(0, 0)
        block = np.array([self._bos_id], self._dtype)
        record = 0
        begin = 0
        # Tokens of the stream without the first BOS token and with one after the last document: as many.
        read = 0
        written = 0
        total = None
        for number in count():
            # Documents do not become shorter. What is left for the last shard is read twice to count it.
            if total is None and written + self._limit > read + records.tokens - begin:
                total = read + sum(len(tokens) for tokens, _, _ in self._blocks(record, begin))
            left = self._limit if total is None else min(self._limit, total - written)
            if not left:
                break
            written += left
            split = "val" if number < self._val_shards else "train"
            with stage.file(f"{self._name}_{split}_{number:06d}.bin", tokens=left) as file:
                file.write(header(self._header, left, self._dtype))
                while left:
                    if not len(block):
                        block, record, begin = next(blocks)
                        read += len(block)
                    file.write(block[:left].data)
                    size = min(left, len(block))
                    block = block[size:]
                    left -= size
        return records.count

    def _blocks(self, record: int, begin: int) -> Iterator[tuple[Tokens, int, int]]:
        """Yield blocks of the stream, in which each document ends with the BOS token of the next one.

        This token takes the place of the EOD token, or is inserted if the document ends with another one. The
        first block begins with the token ``begin``, which is in the document ``record``. With each block come
        the document and the token with which the next block begins; it is valid until then.
        """
        records = self._records
        room = np.empty(_BLOCK_TOKENS, self._dtype)
        while record < records.count:
            end = min(begin + _BLOCK_TOKENS, records.tokens)
            stop = records.first_end_above(end, first=record)
            if stop > record + CHUNK_RECORDS:
                stop = record + CHUNK_RECORDS
                end = records.begin(stop)
            tokens = room[: end - begin]
            records.fill(tokens, begin)
            ends = records.ends(record, stop)
            has_eod = np.diff(ends, prepend=records.begin(record)) > 0
            has_eod[has_eod] = tokens[ends[has_eod] - begin - 1] == self._eod_id
            tokens[ends[has_eod] - begin - 1] = self._bos_id
            if not has_eod.all():
                tokens = np.insert(tokens, ends[~has_eod] - begin, self._bos_id)
            record = stop
            begin = end
            yield tokens, record, begin


FORMAT = NanogptFormat
