"""Sphinx configuration of the documentation site; scripts/docs builds it.

The source directory is the root of the repository, so a link between two pages, or from a page to a file
outside docs/, is the same on a repository page and on the site.
"""

from typing import Any

NAVIGATION = {
    "Tutorial": ["docs/tutorial"],
    "How-to guides": [
        "docs/how-to/preprocess-data",
        "docs/how-to/tokenize-sources",
        "docs/how-to/bad-records",
        "docs/how-to/subsets",
        "docs/how-to/megatron-blend",
        "docs/how-to/pack-documents",
        "docs/how-to/check-launch",
        "docs/how-to/change-gpus",
        "docs/how-to/train",
        "docs/how-to/export",
        "docs/consumers",
        "docs/how-to/merge",
        "docs/how-to/convert",
        "docs/how-to/find-documents",
        "docs/how-to/inspect",
        "docs/how-to/ci",
        "docs/how-to/clusters",
        "docs/how-to/object-stores",
        "docs/how-to/hub-datasets",
        "docs/how-to/curation",
    ],
    "Reference": [
        "docs/reference/cli",
        "docs/reference/api",
        "docs/reference/tokenizers",
        "docs/reference/exit-codes",
        "docs/reference/bad-records",
        "docs/reference/blends",
        "docs/reference/plans",
        "docs/reference/verify",
        "docs/reference/findings",
        "docs/reference/trace",
        "docs/reference/json",
        "docs/reference/formats/indexed-dataset",
        "docs/reference/formats/manifest",
        "docs/reference/formats/index-cache",
        "docs/reference/formats/blend",
        "docs/reference/formats/plan",
        "docs/reference/formats/exports",
        "docs/reference/formats/work-directory",
        "docs/reference/formats/compatibility",
    ],
    "Explanation": [
        "docs/explanation/exactness",
        "docs/explanation/crash-safety",
        "docs/explanation/reliability",
        "docs/explanation/trust",
        "docs/explanation/scale",
        "docs/explanation/speed",
        "docs/compare",
        "docs/explanation/architecture",
        "docs/explanation/worker-pool",
    ],
    "Project": ["README", "CHANGELOG", "CONTRIBUTING", "sample_data/README"],
}

project = "tokshard"
author = "The tokshard developers"

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
root_doc = "docs/index"
include_patterns = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "sample_data/*.md", "docs/**.md"]
exclude_patterns = [".*", "src", "tests", "scripts", "site", "build", "dist"]
templates_path = ["_templates"]
myst_heading_anchors = 4

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
html_title = "tokshard"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_additional_pages = {"index": "start.html"}


def add_navigation(_app: Any, name: str, source: list[str]) -> None:
    """Append the tables of contents to the start page; Sphinx requires every page to be in one."""
    if name == root_doc:
        for caption, pages in NAVIGATION.items():
            listed = "\n".join(f"/{page}" for page in pages)
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{listed}\n```\n"


def setup(app: Any) -> None:
    """Register the hook."""
    app.connect("source-read", add_navigation)
