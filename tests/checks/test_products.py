"""Each kind of product has one class, which answers or refuses what the commands ask."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import get_args

import pytest

from support import bad_exports, bad_products
from tokshard.checks.inspect.options import InspectOptions
from tokshard.checks.products import PRODUCTS, open_product
from tokshard.checks.trace.options import TraceOptions
from tokshard.checks.verify.context import CountingRunner, VerifyContext
from tokshard.dataset.products import Kind
from tokshard.errors import InputError

SAMPLE_TOKENIZER = Path(__file__).parents[2] / "sample_data/tokenizer.json"
SOURCES = {"dataset", "index"}
CHILDREN = {"index": {"dataset"}, "cache": {"index"}, "blend": SOURCES, "plan": SOURCES, "rank": SOURCES}
REFUSED = {
    "dataset": {"compare"},
    "cache": {"check"},
    "export": {"summary", "sections", "streams", "compare"},
    "tokenizer": {"check", "streams", "compare"},
}


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    directory = tmp_path_factory.mktemp("products")
    plan = bad_products.sound_plan(directory)
    index = bad_products.sound_cache(directory / "indexed")
    return {
        "dataset": f"{directory}/data/web",
        "index": index,
        "cache": os.path.dirname(index),
        "blend": f"{directory}/mix",
        "plan": plan,
        "rank": f"{plan}/rank-00001.json",
        "export": bad_exports.sound_export(directory / "export"),
        "tokenizer": shutil.copy(SAMPLE_TOKENIZER, directory),
    }


def test_each_kind_has_one_class():
    assert {*PRODUCTS} == {*get_args(Kind)}
    assert len({*PRODUCTS.values()}) == len(PRODUCTS)


@pytest.mark.parametrize("kind", get_args(Kind))
def test_product_answers_what_its_kind_does_not_refuse(paths, kind, monkeypatch):
    monkeypatch.chdir(Path(paths["dataset"]).parents[1] / "indexed")  # where the index finds its dataset
    product = open_product(paths[kind])
    assert type(product) is PRODUCTS[kind]
    assert {child.kind for child in product.children()} == CHILDREN.get(kind, set())
    context = VerifyContext("digest", CountingRunner(1))
    assert (product.expected_bytes(context) > 0) == (kind in {"dataset", "index", "export"})
    options = InspectOptions(path=paths[kind])
    tracing = TraceOptions(path=paths[kind], items=("a:1",))
    questions = {
        "summary": lambda: product.summary(options).to_json()["schema"],
        "sections": lambda: product.sections(options),
        "check": lambda: product.check(context).sound,
        "streams": lambda: product.streams(tracing).datasets,
        "compare": lambda: product.compare(product, None).reads_same,
    }
    for name, answer in questions.items():
        if name in REFUSED.get(kind, set()):
            with pytest.raises(InputError, match=f"^cannot .* {paths[kind]}: it is an? {product.noun}(\n|$)"):
                answer()
        else:
            assert answer(), name
