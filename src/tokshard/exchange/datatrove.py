"""The files of datatrove: ``.ds`` with their indexes and metadata.

``000_NAME.ds`` holds the tokens of whole documents, uint16 or uint32, little endian, without a header.
``000_NAME.ds.index`` holds the end of each document in tokens, uint64, empty documents included.
``000_NAME.ds.metadata`` has three lines without a final line break: the tokenizer and the bytes of a token,
the number of tokens, and this number for people. ``NAME.ds.metadata`` has the same about all shards. The
names and the sizes of shards are those of datatrove's merger without shuffling.

Offered to readers of the format: :func:`boundary_path`, :data:`TOKENS_SUFFIX`, :data:`METADATA_SUFFIX`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokshard.exchange.formats import Format, Stage
from tokshard.exchange.manifest import ExportParameters
from tokshard.exchange.records import Records, boundaries
from tokshard.exchange.shards import Position, ShardRange, WrittenShard, next_shard

TOKENS_SUFFIX = ".ds"
INDEX_SUFFIX = ".ds.index"
METADATA_SUFFIX = ".ds.metadata"

_UNKNOWN_TOKENIZER = "Unknown Tokenizer"
_PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def boundary_path(tokens: str) -> str:
    """Return the name of the index of a file of tokens.

    Example:
        >>> boundary_path("data/000_web.ds")
        'data/000_web.ds.index'
    """
    return tokens.removesuffix(TOKENS_SUFFIX) + INDEX_SUFFIX


class DatatroveFormat(Format):
    """Writer of datatrove's files: a shard ends with the document that reaches the limit.

    The limit is the merger's default.
    """

    DTYPES = ("uint16", "uint32")
    SUFFIXES = (TOKENS_SUFFIX, INDEX_SUFFIX, METADATA_SUFFIX)
    SHARD_TOKENS = 100_000_000_000

    def __init__(self, records: Records, parameters: ExportParameters) -> None:
        super().__init__(records, parameters)
        self._tokenizer = parameters.tokenizer_name

    def next_shard(self, number: int, position: Position) -> ShardRange | None:
        """Return the shard that begins at a position; without any document there is one empty shard."""
        if not self._records.count:
            return ShardRange(0, 0, 0, 0, 0) if number == 0 else None
        return next_shard(self._records, number, position.record, self._limit, "reaches")

    def count_files(self) -> int:
        """Return the number of files."""
        return 3 * self.count_shards() + 1

    def write(self, shard: ShardRange, position: Position, stage: Stage) -> WrittenShard:  # noqa: ARG002
        """Write the tokens, the index and the metadata of a shard."""
        name = f"{shard.number:03d}_{self._name}"
        with stage.file(name + TOKENS_SUFFIX, tokens=shard.tokens) as file:
            for block in self._conversion.blocks(shard.begin, shard.end):
                file.write(block.data)
        with stage.file(name + INDEX_SUFFIX) as file:
            for _, edges in boundaries(self._records, shard.first, shard.stop):
                file.write((edges[1:] - shard.begin).astype("<u8").data)
        self._write_metadata(name, shard.tokens, stage)
        return WrittenShard(stage.take(), Position(shard.stop, 0), 0)

    def finish(self, written: Sequence[WrittenShard], stage: Stage) -> None:
        """Write the metadata of all shards together."""
        self._write_metadata(self._name, sum(shard.tokens for shard in written), stage)

    def _write_metadata(self, name: str, tokens: int, stage: Stage) -> None:
        with stage.file(name + METADATA_SUFFIX) as file:
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
