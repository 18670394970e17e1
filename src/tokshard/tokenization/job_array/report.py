"""What a task of a job array says it has done, as plain values."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from tokshard.tokenization.report import TokenizeReport

ARRAY_SCHEMA = "tokshard.tokenize-array/1"

ArrayState = Literal["encoded", "published", "elsewhere", "up-to-date"]


@dataclass(frozen=True, slots=True)
class ArrayReport:
    """What :func:`tokshard.tokenization.job_array.job.tokenize_share` has done.

    Attributes:
        task: Which task, from 0.
        tasks: How many there are.
        state: ``"encoded"``: its share is done, and others' is not, or somebody else publishes;
            ``"published"``: so is everybody's, and it has put the output together; ``"elsewhere"``:
            nothing was done, because another process does the rest; ``"up-to-date"``: the output was there.
        holder: With ``"elsewhere"``: which process.
        units: Units of its share that it has encoded.
        units_resumed: Units of its share that had been finished before.
        documents: Documents that it has encoded.
        tokens: Tokens that it has made of them.
        result: The output, with ``"published"`` and ``"up-to-date"``; else None.
        seconds: How long it took.
    """

    task: int
    tasks: int
    state: ArrayState
    holder: str | None
    units: int
    units_resumed: int
    documents: int
    tokens: int
    result: TokenizeReport | None
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object with a ``schema`` field."""
        result = self.result.to_json() if self.result is not None else None
        return {"schema": ARRAY_SCHEMA, **asdict(self), "result": result}
