"""Write the files that datatrove and NeMo Curator make of some documents, with their own writers.

    pip install datatrove pyarrow orjson        # in one environment
    python tests/golden/curation/record.py datatrove
    pip install nemo-curator                    # in another one; its writers need no GPU
    python tests/golden/curation/record.py nemo_curator

``versions.json`` records the versions. The documents are those of DOCUMENTS.
"""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
DOCUMENTS = [
    {"id": "<urn:uuid:1>", "text": "The first document.\nIts second line.", "url": "https://example.com/1"},
    {
        "id": "<urn:uuid:2>",
        "text": "Ünïcödé, 漢字, \U0001f600 and a \u2028 separator",
        "url": "https://example.com/2",
    },
    {"id": "a/b c", "text": 'Quotes " and \\ and \t tabs', "url": ""},
    {"id": "4", "text": "word " * 100, "url": "https://example.com/4"},
    {"id": "5", "text": "The last document", "url": "https://example.com/5"},
]


def record_datatrove(target: Path) -> None:
    """Write JSON lines and Parquet with datatrove's default settings."""
    from datatrove.data import Document
    from datatrove.pipeline.writers import JsonlWriter, ParquetWriter

    for kind, writer in (("jsonl", JsonlWriter), ("parquet", ParquetWriter)):
        with writer(str(target / kind)) as opened:
            for document in DOCUMENTS:
                metadata = {"url": document["url"], "score": 0.5}
                opened.write(Document(text=document["text"], id=document["id"], metadata=metadata), rank=0)


def record_nemo_curator(target: Path) -> None:
    """Write JSON lines and Parquet with NeMo Curator's default settings."""
    import pandas as pd
    from nemo_curator.stages.text.io.writer import JsonlWriter, ParquetWriter
    from nemo_curator.tasks import DocumentBatch

    frame = pd.DataFrame(DOCUMENTS)
    frame["score"] = 0.5
    for kind, writer in (("jsonl", JsonlWriter), ("parquet", ParquetWriter)):
        (target / kind).mkdir(parents=True)
        task = DocumentBatch(dataset_name="web", data=frame, _metadata={"source_files": ["web.jsonl"]})
        writer(path=str(target / kind)).process(task)


def main() -> None:
    """Record the files of the package that the command names."""
    package = sys.argv[1]
    target = HERE / package
    shutil.rmtree(target, ignore_errors=True)
    {"datatrove": record_datatrove, "nemo_curator": record_nemo_curator}[package](target)
    versions = HERE / "versions.json"
    known = json.loads(versions.read_text()) if versions.exists() else {}
    known[package] = importlib.metadata.version(package.replace("_", "-"))
    versions.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
