"""Comparison of tokshard's ids, sizes and EOD tokens with those of transformers, directory by directory."""

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from support.tokenizer_definitions import lists_of
from tokshard.errors import TokshardError
from tokshard.tokenizer import definition
from tokshard.tokenizer.encoders import reference_encoder

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(definition.__file__).parents[1] / "encode_with_transformers.py"
SPECIAL = (True, False)
TRANSFORMERS = {"4": "transformers>=4.57,<5", "5": "transformers>=5,<6"}


def environment(name, packages, given=None):
    """Return the Python that is given, or that of the environment .venv-NAME, which is made if necessary."""
    if given:
        return given
    path = ROOT / f".venv-{name}"
    python = path / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(path)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", *packages], check=True)
    return str(python)


def transformers_environment(major, given):
    """Return a Python with a version of transformers; make it if none is given."""
    return environment(
        f"transformers{major}", [TRANSFORMERS[major], "sentencepiece", "protobuf", "tiktoken"], given
    )


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
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return {"error": "the process ended"}
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
    return definition.load_tokenizer(str(path), need_eod=False, transformers=major, strict=strict)


@dataclass
class Reference:
    """What a version of transformers answers for a directory; ``ids`` with and without special tokens."""

    version: str
    error: str = ""
    facts: dict = field(default_factory=dict)
    ids: dict = field(default_factory=dict)


def reference(directory, path, other, *, use_fast=True):
    """Return what transformers answers for a written directory."""
    answer = other.ask(directory=str(path), use_fast=use_fast)
    if "error" in answer:
        return Reference(other.major, answer["error"])
    ids = {}
    for special in SPECIAL:
        encoded = other.ask(texts=directory.texts, special_tokens=special)
        if "error" in encoded:
            return Reference(other.major, encoded["error"])
        ids[special] = encoded["ids"]
    return Reference(other.major, facts=answer["facts"], ids=ids)


def judge(directory, path, expected):
    """Compare tokshard with a reference; return the verdict."""
    verdict = Verdict(directory.family, directory.variant, expected.version, "equal", len(directory.texts))
    refusal = ""
    try:
        tokenizer = loaded(path, expected.version, strict=True)
    except TokshardError as error:
        refusal = str(error)
        try:
            tokenizer = loaded(path, expected.version, strict=False)
        except TokshardError:
            verdict.state, verdict.reason = "refused", refusal
            return verdict
    if expected.error:
        verdict.state = "no reference"
        verdict.reason = expected.error.split("\n")[0][:160] + (f" | refused: {refusal}" if refusal else "")
        return verdict
    found = list(differences(tokenizer, directory.texts, expected, verdict))
    warned = bool(getattr(tokenizer, "warnings", ()))
    if refusal:
        # Without ``strict`` there must be a warning, or no difference.
        verdict.state = "refused" if warned or not found else "DIFFERENT"
        verdict.reason = refusal if verdict.state == "refused" else f"not warned: {'; '.join(found)}"
    elif found:
        verdict.state = "DIFFERENT"
        verdict.reason = "; ".join(found)
    elif warned:
        verdict.state, verdict.reason = "warned", "; ".join(map(str, tokenizer.warnings))
    return verdict


def between(directory, references):
    """Return what differs between two versions of transformers, in words; empty if nothing does."""
    first, second = references
    if first.error or second.error:
        same = bool(first.error) == bool(second.error)
        failing = first if first.error else second
        return (
            [] if same else [f"transformers {failing.version} fails: {failing.error.split(chr(10))[0][:120]}"]
        )
    found = []
    if first.facts["size"] != second.facts["size"]:
        found.append(f"size {first.facts['size']} and {second.facts['size']}")
    if first.facts["eod_id"] != second.facts["eod_id"]:
        found.append(f"EOD {first.facts['eod_id']} and {second.facts['eod_id']}")
    for special in SPECIAL:
        pairs = zip(directory.texts, first.ids[special], second.ids[special], strict=True)
        wrong = [one for one in pairs if one[1] != one[2]]
        if wrong:
            text, before, after = min(wrong, key=lambda one: len(one[0]))
            name = "with" if special else "without"
            found.append(
                f"{len(wrong)} texts {name} special tokens, such as {text!r}: {before[:8]} and {after[:8]}"
            )
    return found


def differences(tokenizer, texts, expected, verdict):
    """Yield what differs from a reference, in words; count the texts in the verdict."""
    facts = expected.facts
    if tokenizer.vocab_size != facts["size"]:
        yield f"size {tokenizer.vocab_size} instead of {facts['size']}"
    # Where tokshard knows none, it asks for --eod; where transformers has none, Megatron cannot append one.
    if None not in {tokenizer.eod_id, facts["eod_id"]} and tokenizer.eod_id != facts["eod_id"]:
        yield f"EOD {tokenizer.eod_token!r} instead of {facts['tokens'].get('eos_token')}"
    for special in expected.ids:
        name = "with" if special else "without"
        try:
            ids = lists_of(reference_encoder(tokenizer, special_tokens=special).encode(texts))
        except TokshardError as error:
            yield f"{name} special tokens: {error}"
            continue
        wrong = [place for place, one in enumerate(ids) if one != expected.ids[special][place]]
        verdict.differing = max(verdict.differing, len(wrong))
        if wrong:
            place = min(wrong, key=lambda index: len(texts[index]))
            yield (
                f"{name} special tokens {len(wrong)} texts, such as {texts[place]!r}: "
                f"{ids[place][:8]} instead of {expected.ids[special][place][:8]}"
            )


def row(verdict):
    """Return the line of the table for one directory and version."""
    count = f"{verdict.texts - verdict.differing}/{verdict.texts}"
    name = f"{verdict.family:16}  {verdict.variant:34}"
    return f"{name}  {verdict.version}  {verdict.state:12}  {count:>7}  {verdict.reason}".rstrip()
