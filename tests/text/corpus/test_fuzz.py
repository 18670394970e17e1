"""P27: whatever the bytes, nothing but declared errors comes out, and every record is accounted for."""

import random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.corpus_units import CODECS, COMPRESS, read_documents, read_units, twin, units_of, without_reasons
from tokshard.errors import TokshardError
from tokshard.text.corpus.files import discover
from tokshard.text.corpus.planning import plan_units, stream_units

LINE = b'{"text": "some text \\u00e9 \xc3\xa9", "n": [1, 2.5, null, {"a": "b"}]}\n'
ALPHABET = [
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b":",
    b",",
    b"\\",
    b"u",
    b"d800",
    b"\n",
    b"\0",
    b"\xff",
    b"text",
    b" ",
]


def read_anything(content, directory):
    """Read bytes the way a run does: found, identified, cut and read; return how many records."""
    path = directory / "any"
    path.write_bytes(content)
    try:
        (file,) = discover([str(path)])
        if file.is_stream:
            units = stream_units(0, file, 50, 200, str(directory), skip=lambda index: False, chunk_bytes=64)
        else:
            units = plan_units(0, file, 50)
        for unit in units:
            for batch in read_documents(unit, ["text"], batch_bytes=30, max_document_bytes=200):
                assert batch.records == batch.documents + len(batch.rejected)
                for text in batch.texts[0]:
                    text.encode("utf-8")
    except TokshardError as error:
        assert error.exit_code == 3  # noqa: PT017 - either outcome is right


@settings(max_examples=250, deadline=None)
@given(content=st.binary(max_size=300) | st.lists(st.sampled_from(ALPHABET), max_size=60).map(b"".join))
@example(content=b"\xff\xff\xff\xff\x10\0\0\0" + b"\0" * 20)
@example(content=b"PAR1" + b"\0" * 8 + b"PAR1")
@example(content=b"ARROW1\0\0" + b"\xff" * 30)
def test_any_bytes(content, tmp_path_factory):
    read_anything(content, tmp_path_factory.mktemp("fuzz"))


@settings(max_examples=100, deadline=None)
@given(parts=st.lists(st.sampled_from(ALPHABET), max_size=40).map(b"".join))
def test_any_mixture_of_json_reads_as_the_twin_says(parts, tmp_path_factory):
    directory = tmp_path_factory.mktemp("mix")
    data = b'{"text": "a"}\n' + parts + b'\n{"text": "b"}\n'
    path = directory / "mix.jsonl"
    path.write_bytes(data)
    reading = read_units(units_of(path, "none", directory, unit_bytes=20))
    assert without_reasons(reading) == twin(data)


def test_mutated_compressed_files(tmp_path):
    choose = random.Random(5)
    for codec in CODECS[1:]:
        whole = COMPRESS[codec](LINE * 30) * 2
        for _ in range(150):
            content = bytearray(whole)
            for _ in range(choose.randrange(1, 4)):
                at = choose.randrange(len(content))
                action = choose.randrange(3)
                if action == 0:
                    content[at] ^= 1 << choose.randrange(8)
                elif action == 1:
                    del content[at : at + choose.randrange(1, 9)]
                else:
                    content[at:at] = choose.randbytes(choose.randrange(1, 9))
            read_anything(bytes(content), tmp_path)


def test_mutated_lines(tmp_path):
    choose = random.Random(6)
    for _ in range(400):
        content = bytearray(LINE * 2)
        for _ in range(choose.randrange(1, 4)):
            at = choose.randrange(len(content))
            content[at : at + choose.randrange(2)] = choose.choice(ALPHABET)
        path = tmp_path / "mutated.jsonl"
        path.write_bytes(content)
        reading = read_units(units_of(path, "none", tmp_path, unit_bytes=50))
        assert without_reasons(reading) == twin(bytes(content))
