"""``tokshard verify``: options, one call, one rendering."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tokshard
from tokshard import VerifyOptions
from tokshard.cli import rendering
from tokshard.cli.command_run import CommandRun
from tokshard.core.formatting import count, counted, duration, size

if TYPE_CHECKING:
    from tokshard.checks.verify.report import VerifiedProduct, VerifyReport

_LABEL_CELLS = 12
_ROLES = {
    "eod": "EOD",
    "prefix": "added before texts",
    "suffix": "added after texts",
    "unknown": "unknown characters",
}


def verify(options: VerifyOptions, run: CommandRun) -> None:
    """Verify a dataset, index cache, blend, plan or export against its recorded digests.

    All findings are listed. The exit code is 1 if there are errors or warnings.

    Examples:
        tokshard verify out/web
        tokshard verify out/web --level structure
        tokshard verify out/web --level deep --tokenizer tokenizer.json
        tokshard verify --recursive /data/v1
    """
    report = tokshard.verify(options, progress=run.progress)
    run.show(report, lambda report: _show(report, options))
    if not report.sound:
        run.found_problems()


def _show(report: VerifyReport, options: VerifyOptions) -> None:
    for product in report.products:
        _show_product(product)
    problems = sum(finding.is_problem for finding in report.findings)
    found = counted(problems, "finding") if problems else "no problems found"
    part = "" if report.subset_percent is None else f" of {report.subset_percent:g}% of the pieces"
    rendering.line(
        f"{found}: level {report.level}{part}, {counted(len(report.products), 'product')} verified, "
        f"{size(report.bytes_read)} read in {duration(report.seconds)}"
    )
    if not options.recursive and {product.kind for product in report.products} == {"plan"}:
        rendering.line(f"next: tokshard verify --recursive {options.path} (also its indexes and datasets)")


def _show_product(product: VerifiedProduct) -> None:
    verdict = "sound" if product.sound else "NOT SOUND"
    rendering.line(f"{product.kind:<{_LABEL_CELLS}} {product.path}: {verdict}")
    counts = [f"{count(value)} {_noun(name, value)}" for name, value in product.counts.items()]
    if counts:
        rendering.line(f"{'':<{_LABEL_CELLS}} {', '.join(counts)}")
    _show_special_tokens(product)
    rendering.findings(product.findings, "  ")


def _show_special_tokens(product: VerifiedProduct) -> None:
    audit = product.special_tokens
    if audit is None:
        return
    documents = audit.documents
    rendering.line(f"{'':<{_LABEL_CELLS}} special tokens in {counted(documents, 'non-empty document')}:")
    for found in audit.tokens:
        text = f"{found.token} ({found.id})" if found.token is not None else str(found.id)
        roles = "".join(f", {_ROLES[role]}" for role in found.roles)
        first = f" (first in document {found.first_elsewhere})" if found.elsewhere else ""
        rendering.line(
            f"{'':<{_LABEL_CELLS}}   {text}{roles}: begins {_share(found.starts, documents)}, "
            f"ends {_share(found.ends, documents)}, elsewhere {count(found.elsewhere)}{first}"
        )


def _share(number: int, documents: int) -> str:
    # Rounded towards the middle: 100% is all, and 0% is none.
    if number in {0, documents}:
        return count(number) if not number else f"{count(number)} (100%)"
    tenths = min(max(round(1000 * number / documents), 1), 999)
    return f"{count(number)} ({tenths / 10:g}%)"


def _noun(name: str, number: int) -> str:
    # Of names such as "inputs_compared".
    words = name.split("_")
    return " ".join(words if number != 1 else [word.removesuffix("s") for word in words])
