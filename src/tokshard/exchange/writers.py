"""The writers of all formats."""

from __future__ import annotations

from tokshard.exchange.datatrove import DatatroveFormat
from tokshard.exchange.formats import Format
from tokshard.exchange.nanogpt import NanogptFormat
from tokshard.exchange.olmo import OlmoFormat
from tokshard.exchange.options import FormatName
from tokshard.exchange.parquet import ParquetFormat

FORMATS: dict[FormatName, type[Format]] = {
    "olmo": OlmoFormat,
    "nanogpt": NanogptFormat,
    "datatrove": DatatroveFormat,
    "parquet": ParquetFormat,
}
