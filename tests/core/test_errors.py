from __future__ import annotations

import errno
import pickle
import re
import tomllib
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tokshard import errors
from tokshard.errors import EXTRA_PACKAGES, MissingExtraError, TokshardError
from tokshard.storage.remote.hub import MissingRevisionError
from tokshard.text.tokenizer.fast import FastEncoderRefusedError

ROOT = Path(__file__).resolve().parents[2]


def test_packages_of_a_missing_extra_are_those_of_pyproject():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = {extra: tuple(re.split("[<>=]", one)[0] for one in extras[extra]) for extra in EXTRA_PACKAGES}
    assert names == EXTRA_PACKAGES
    assert set(extras) - {"test", "docs"} == set(EXTRA_PACKAGES)


def test_the_hint_of_a_missing_extra_installs_its_packages():
    error = MissingExtraError("the URL s3://bucket/x", "remote")
    assert str(error) == "the URL s3://bucket/x requires fsspec and s3fs, which are not installed"
    assert error.hint == "pip install fsspec s3fs"


TEXT = st.text(max_size=9)
HINT = st.none() | TEXT
# How to make those that take more than a message and a hint.
MADE = {
    errors.UnfinishedError: st.builds(
        errors.UnfinishedError,
        TEXT,
        missing=st.tuples(st.fixed_dictionaries({"input": TEXT, "units": st.lists(st.integers())})),
        hint=HINT,
    ),
    errors.MissingExtraError: st.builds(
        errors.MissingExtraError, TEXT, st.sampled_from(sorted(EXTRA_PACKAGES)), hint=HINT
    ),
    errors.InputError: st.builds(errors.InputError, TEXT, hint=HINT, reason=HINT),
    errors.MissingFileError: st.builds(errors.MissingFileError, TEXT, path=TEXT, hint=HINT),
    errors.BadRecordError: st.builds(
        errors.BadRecordError,
        TEXT,
        line=st.none() | st.integers(),
        offset=st.integers(),
        reason=TEXT,
        detail=TEXT,
        excerpt=TEXT,
        hint=HINT,
    ),
    errors.OutputExistsError: st.builds(errors.OutputExistsError, TEXT, differences=st.tuples(TEXT)),
    errors.IntegrityError: st.builds(errors.IntegrityError, TEXT, path=HINT, offset=st.integers(), hint=HINT),
    errors.StorageError: st.builds(
        lambda action, path, number, hint: errors.StorageError(
            action, path, OSError(number, "the disk"), hint=hint
        ),
        TEXT,
        TEXT,
        st.sampled_from([errno.ENOSPC, errno.EIO, errno.EACCES, errno.ENOENT]),
        HINT,
    ),
    errors.Cancelled: st.builds(errors.Cancelled, TEXT, signal_number=st.integers(1, 15)),
}


def kinds_of(kind):
    return {kind}.union(*map(kinds_of, kind.__subclasses__()))


def facts_of(error):
    attributes = ("__notes__", "args", "errno", "exit_code", "filename")
    return [type(error), str(error), vars(error), *(getattr(error, name, None) for name in attributes)]


@given(data=st.data())
def test_errors_of_every_class_survive_the_way_from_a_worker(data):
    every = kinds_of(TokshardError)
    assert every > {MissingRevisionError, FastEncoderRefusedError, errors.WorkerError}
    for kind in sorted(every, key=lambda kind: kind.__name__):
        error = data.draw(MADE.get(kind, st.builds(kind, TEXT, hint=HINT)))
        assert facts_of(pickle.loads(pickle.dumps(error))) == facts_of(error)
