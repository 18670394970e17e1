"""What is said of a dataset that is replaced at any moment meanwhile: of the old, of the new, or nothing."""

import os
import shutil
from dataclasses import replace

import pytest

from support.interleaving import interleaved
from support.tokenize_runs import run_tokenize
from tokshard.checks.inspect.datasets import inspect_dataset
from tokshard.checks.trace.queries import trace_document
from tokshard.checks.trace.traced_data import open_dataset
from tokshard.dataset.merge.inputs import read_input
from tokshard.errors import InputError

WORK = {
    "inspect": inspect_dataset,
    "trace": lambda prefix: trace_document(open_dataset(prefix), 3),
    # Without the times of its files.
    "merge": lambda prefix: replace(read_input(prefix, multimodal=False), states=()),
}

INSIDE = {
    "inspect": "checks/inspect/datasets.py",
    "trace": "checks/trace/contents.py",
    "merge": "merge/inputs.py",
}


def said(work, prefix):
    try:
        found = work(prefix)
    except InputError as error:
        return error.message.replace(prefix, "")
    return repr(found).replace(prefix, "")


@pytest.mark.parametrize("name", WORK)
@pytest.mark.parametrize("lines", [(["one two", "three"] * 4, ["x"] * 5), (["a", "b"] * 3, ["b", "a"] * 3)])
def test_old_or_new_or_nothing(tmp_path, name, lines):
    sets = []
    for number, texts in enumerate(lines):
        corpus = tmp_path / f"{number}.jsonl"
        corpus.write_text("".join(f'{{"text": "{text}"}}\n' for text in texts))
        sets.append(str(tmp_path / f"{number}/x"))
        run_tokenize(str(corpus), sets[-1], workers=1)
    prefix = str(tmp_path / "live/x")
    os.makedirs(f"{prefix}.tokshard")

    def publish(source):
        """Replace the dataset in the order in which tokenize does."""
        for file in (".tokshard/manifest.json", ".idx"):
            if os.path.exists(prefix + file):
                os.unlink(prefix + file)
        for file in (
            ".bin",
            ".idx",
            *(f".tokshard/{sidecar}" for sidecar in os.listdir(f"{source}.tokshard")),
        ):
            shutil.copy(source + file, tmp_path / "copy")
            os.rename(tmp_path / "copy", prefix + file)

    whole = []
    for source in sets:
        publish(source)
        whole.append(said(WORK[name], prefix))
    found = [
        *interleaved(
            lambda: said(WORK[name], prefix),
            lambda: publish(sets[1]),
            inside=("reader.py", INSIDE[name]),
            prepare=lambda: publish(sets[0]),
        )
    ]
    assert set(found) == {whole[1], " changed while it was read"}
    assert len(found) > 30
