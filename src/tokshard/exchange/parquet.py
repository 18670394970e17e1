"""Parquet files with one row per document or sample.

``NAME-00000-of-00003.parquet`` has two columns: ``input_ids``, a list of the token ids, and ``document_id``
(its number in the dataset) or, for samples, ``sample`` (its place in the training order). Documents are not
cut. A row group has at most 65,536 rows and, unless a row alone has more, 4,194,304 tokens.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tokshard.errors import MissingExtraError
from tokshard.exchange.format import Format, ShardRange, Stage
from tokshard.exchange.manifest import ExportParameters
from tokshard.exchange.records import CHUNK_RECORDS, Records

if TYPE_CHECKING:
    from tokshard.storage.files import DigestingWriter

TOKENS_COLUMN = "input_ids"
DOCUMENT_COLUMN = "document_id"
SAMPLE_COLUMN = "sample"
ROW_GROUP_TOKENS = 1 << 22
COMPRESSION: Final = "zstd"


class ParquetFormat(Format):
    """Writer of Parquet files: a file stays within the limit, unless its first row alone has more tokens.

    Raises:
        MissingExtraError: pyarrow is not installed.
    """

    DTYPES = ("int32", "int64")
    SUFFIXES = (".parquet",)
    SHARD_TOKENS = 1 << 27
    DEFAULT_NAME = "train"
    IS_NAMED_AS_SPLIT = True
    RULE = "within"

    def __init__(self, records: Records, parameters: ExportParameters) -> None:
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ImportError as error:
            raise MissingExtraError("Parquet output", "parquet") from error
        self._pa = pa
        self._pq = pq
        super().__init__(records, parameters)
        self._shards = sum(1 for _ in self.shards())
        tokens = (TOKENS_COLUMN, pa.list_(pa.from_numpy_dtype(self._dtype.newbyteorder("="))))
        number_column = SAMPLE_COLUMN if records.NOUN == "sample" else DOCUMENT_COLUMN
        self._schema = pa.schema([tokens, (number_column, pa.int64())])

    def write(self, shard: ShardRange, stage: Stage) -> None:
        """Write a file."""
        name = f"{self._name}-{shard.number:05d}-of-{self._shards:05d}.parquet"
        with (
            stage.file(name, tokens=shard.tokens) as file,
            self._pq.ParquetWriter(
                self._pa.PythonFile(_Sink(file), mode="w"),
                self._schema,
                compression=COMPRESSION,
                use_dictionary=False,
                write_statistics=False,
            ) as writer,
        ):
            for first, stop in self._row_groups(shard):
                writer.write_table(self._table(first, stop), row_group_size=max(1, stop - first))

    def _row_groups(self, shard: ShardRange) -> Iterator[tuple[int, int]]:
        first = shard.first
        while first < shard.stop:
            limit = self._records.begin(first) + ROW_GROUP_TOKENS
            stop = max(first + 1, self._records.first_end_above(limit, first=first))
            stop = min(stop, first + CHUNK_RECORDS, shard.stop)
            yield first, stop
            first = stop

    def _table(self, first: int, stop: int) -> Any:
        pa = self._pa
        begin = self._records.begin(first)
        edges = np.concatenate(([0], self._records.ends(first, stop) - begin))
        tokens = np.empty(int(edges[-1]), self._dtype)
        self._records.fill(tokens, begin)
        lists = pa.ListArray.from_arrays(pa.array(edges.astype(np.int32)), pa.array(tokens))
        return pa.table([lists, pa.array(np.arange(first, stop))], schema=self._schema)


class _Sink(io.RawIOBase):
    """A file as pyarrow writes to it."""

    def __init__(self, file: DigestingWriter) -> None:
        super().__init__()
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        self._file.write(content)
        return memoryview(content).nbytes

    def tell(self) -> int:
        return self._file.size_bytes


FORMAT = ParquetFormat
