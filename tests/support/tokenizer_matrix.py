"""Comparison of tokshard's ids, sizes and EOD tokens with those of transformers, directory by directory."""

import inspect
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from support.tokenizer_definitions import lists_of
from tokshard.errors import TokshardError
from tokshard.tokenizer import definition
from tokshard.tokenizer.encoders import reference_encoder

PROGRAM = Path(definition.__file__).parents[1] / "encode_with_transformers.py"
SPECIAL = (True, False)


class Transformers:
    """A Python with transformers that answers requests.

    A process that dies (the libraries abort on some files) is started again for the next request.
    """

    def __init__(self, python):
        self._python = python
        self._process = None
        facts = subprocess.run(
            [python, "-c", "import transformers; print(transformers.__version__)"],
            capture_output=True,
            text=True,
            check=True,
        )
        self.version = facts.stdout.split()[-1]
        self.major = self.version.split(".")[0]

    def ask(self, **request):
        """Return the answer to a request; an ``error`` if the process ends."""
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [self._python, str(PROGRAM)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        return json.loads(line) if line else {"error": "the process ended"}

    def close(self):
        """End the process."""
        if self._process is not None:
            self._process.stdin.close()
            self._process.stdout.close()
            self._process.wait()


@dataclass
class Verdict:
    """The result of one directory with one version of transformers.

    ``state``: "equal", "refused" (with ``strict``), "warned", "DIFFERENT", or "no reference" where
    transformers itself fails.
    """

    family: str
    variant: str
    version: str
    state: str
    texts: int = 0
    differing: int = 0
    reason: str = ""


def loaded(path, major, *, strict):
    """Return what tokshard loads for a version of transformers."""
    wanted = {"transformers": major, "strict": strict}
    # Until load_tokenizer has these arguments.
    known = inspect.signature(definition.load_tokenizer).parameters
    return definition.load_tokenizer(
        str(path), need_eod=False, **{name: value for name, value in wanted.items() if name in known}
    )


def judge(directory, path, other):
    """Compare one written directory; return the verdict."""
    verdict = Verdict(directory.family, directory.variant, other.major, "equal", len(directory.texts))
    answer = other.ask(directory=str(path))
    expected = {}
    if "error" not in answer:
        for special in SPECIAL:
            encoded = other.ask(texts=directory.texts, special_tokens=special)
            if "error" in encoded:
                answer = encoded
                break
            expected[special] = encoded["ids"]
    refusal = ""
    try:
        tokenizer = loaded(path, other.major, strict=True)
    except TokshardError as error:
        refusal = str(error)
        try:
            tokenizer = loaded(path, other.major, strict=False)
        except TokshardError:
            verdict.state, verdict.reason = "refused", refusal
            return verdict
    if "error" in answer:
        verdict.state = "no reference"
        verdict.reason = answer["error"].split("\n")[0][:160] + (f" | refused: {refusal}" if refusal else "")
        return verdict
    differences = list(_differences(tokenizer, directory.texts, expected, answer["facts"], verdict))
    if refusal:
        # Without ``strict`` there must be a warning, or no difference.
        warned = bool(getattr(tokenizer, "warnings", ()))
        verdict.state = "refused" if warned or not differences else "DIFFERENT"
        verdict.reason = refusal if verdict.state == "refused" else f"not warned: {'; '.join(differences)}"
    elif differences:
        verdict.state = "warned" if getattr(tokenizer, "warnings", ()) else "DIFFERENT"
        verdict.reason = "; ".join(differences)
    return verdict


def _differences(tokenizer, texts, expected, facts, verdict):
    if tokenizer.vocab_size != facts["size"]:
        yield f"size {tokenizer.vocab_size} instead of {facts['size']}"
    # Where tokshard knows none, it asks for --eod; where transformers has none, Megatron cannot append one.
    if None not in {tokenizer.eod_id, facts["eod_id"]} and tokenizer.eod_id != facts["eod_id"]:
        yield f"EOD {tokenizer.eod_token!r} instead of {facts['tokens'].get('eos_token')}"
    for special in SPECIAL:
        name = "with" if special else "without"
        try:
            ids = lists_of(reference_encoder(tokenizer, special_tokens=special).encode(texts))
        except TokshardError as error:
            yield f"{name} special tokens: {error}"
            continue
        wrong = [place for place, one in enumerate(ids) if one != expected[special][place]]
        verdict.differing = max(verdict.differing, len(wrong))
        if wrong:
            place = min(wrong, key=lambda index: len(texts[index]))
            yield (
                f"{name} special tokens {len(wrong)} texts, such as {texts[place]!r}: "
                f"{ids[place][:8]} instead of {expected[special][place][:8]}"
            )


def table(verdicts):
    """Return the lines of the table: one for each directory and version."""
    widths = [max(len(getattr(v, key)) for v in verdicts) for key in ("family", "variant", "state")]
    for v in verdicts:
        count = f"{v.texts - v.differing}/{v.texts}"
        cells = (f"{v.family:{widths[0]}}", f"{v.variant:{widths[1]}}", v.version, f"{v.state:{widths[2]}}")
        yield f"{'  '.join(cells)}  {count:>9}  {v.reason}".rstrip()
