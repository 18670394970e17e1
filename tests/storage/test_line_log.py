import os

import pytest

from tokshard.errors import OutputExistsError, StorageError
from tokshard.storage import syscalls
from tokshard.storage.line_log import LineLog

BEGINNING = b'{"a"'


def test_lines_of_several_writers_are_appended_whole(tmp_path):
    path = str(tmp_path / "log")
    first, second = LineLog(path, BEGINNING), None
    first.write('{"a": 1}')
    second = LineLog(path, BEGINNING)
    second.write('{"a": 2}')
    first.write('{"a": 3}')
    first.close()
    second.close()
    assert (first.is_open, second.is_open) == (False, False)
    assert (tmp_path / "log").read_text() == '{"a": 1}\n{"a": 2}\n{"a": 3}\n'


def test_a_line_that_a_killed_writer_left_is_ended(tmp_path):
    (tmp_path / "log").write_text('{"a": 1}\n{"a"')
    log = LineLog(str(tmp_path / "log"), BEGINNING)
    log.write('{"a": 2}')
    log.close()
    assert (tmp_path / "log").read_text() == '{"a": 1}\n{"a"\n{"a": 2}\n'


def test_another_file_stays_as_it_is(tmp_path):
    (tmp_path / "data").write_text("not a log\n")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OutputExistsError):
        LineLog(str(tmp_path / "data"), BEGINNING)
    assert (tmp_path / "data").read_text() == "not a log\n"
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_failed_write_is_an_error(tmp_path, monkeypatch):
    log = LineLog(str(tmp_path / "log"), BEGINNING)

    def fail(descriptor, content, path):
        raise StorageError("write", path, OSError(28, "No space left on device"))

    monkeypatch.setattr(syscalls, "write", fail)
    with pytest.raises(StorageError):
        log.write("{}")
    log.close()
