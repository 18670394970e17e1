"""Findings: what is wrong or worth knowing, with a stable code each."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from tokshard.errors import TokshardError

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found.

    Attributes:
        code: A stable name for it.
        severity: ``"error"``: it will fail, hang or read wrong data. ``"warning"``: it will run, but
            probably not as it was meant. ``"note"``: good to know.
        message: One sentence.
        hint: What can be done, or None.
        path: The file that it is about, or None.
        offset: Where in the file, in bytes, or None.
    """

    code: str
    severity: Severity
    message: str
    hint: str | None = None
    path: str | None = None
    offset: int | None = None

    @property
    def is_problem(self) -> bool:
        """Whether it is more than a note."""
        return self.severity != "note"

    @classmethod
    def of_error(cls, code: str, error: TokshardError) -> Finding:
        """Return the finding that an error of ours is."""
        return cls(code, "error", error.message, error.hint)

    def to_json(self) -> dict[str, Any]:
        """Return the finding as a JSON object."""
        return asdict(self)
