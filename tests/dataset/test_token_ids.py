"""Token ids that cannot be; samples of ids: small datasets are read whole, large ones in bounded blocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.command_line import failure, installed, json_of, tokshard
from support.plain_datasets import Plain
from tokshard.dataset import token_ids
from tokshard.dataset.token_ids import TokenBeyond, find_beyond


@given(
    st.sampled_from(["uint8", "uint16", "int32", "int64"]),
    st.lists(st.lists(st.lists(st.integers(0, 120), max_size=5), max_size=3), max_size=6),
    st.integers(1, 130),
)
def test_a_small_dataset_is_read_whole(tmp_path_factory, dtype, documents, size):
    prefix = str(tmp_path_factory.mktemp("plain") / "data")
    plain = Plain(dtype, documents)
    plain.write(prefix)
    expected = next(
        (
            TokenBeyond(token, sequence, offset)
            for sequence, tokens in enumerate(plain.sequences)
            for offset, token in enumerate(tokens)
            if token >= size
        ),
        None,
    )
    assert find_beyond(prefix, size) == expected


def test_a_large_dataset_is_read_in_blocks_over_all_of_it(tmp_path, monkeypatch):
    monkeypatch.setattr(token_ids, "BLOCK_BYTES", 64)
    prefix = str(tmp_path / "data")
    Plain("uint16", [[list(range(1000))], [list(range(9000))]]).write(prefix)
    starts = list(token_ids._block_starts(10_000, 32, 8))
    assert [start // 1250 for start in starts] == list(range(8))
    assert all(start + 32 <= 10_000 for start in starts)
    assert starts == list(token_ids._block_starts(10_000, 32, 8))
    found = find_beyond(prefix, 5000, blocks=8)
    assert (found.sequence, found.token_id) == (1, found.offset)
    assert found.offset + 1000 in {start for start in starts if start >= 6000} | {6000}


@pytest.mark.parametrize("tokens", [0, 1, 31, 32, 33, 255, 256, 257, 300])
def test_blocks_stay_inside(tokens):
    for start in token_ids._block_starts(tokens, 32, 8):
        assert 0 <= start < tokens


NEGATIVE = "must not be negative, got -100 (token 1 of sequence 1)"
NEGATIVE_HINT = "tokenize the text again: an id such as -100 masks labels, and is no token"
FLOAT_HINT = "tokenize the text again: the files have numbers of another kind"
INDEX = ["--seq-length", "2", "--num-samples", "2", "--split", "1,0,0"]


def masked(directory, dtype="int16"):
    """A dataset of another program with -100 among its ids."""
    prefix = directory / "masked"
    Plain(dtype, [[[5, 6, 7, 8]], [[9, -100, 4]]]).write(prefix)
    return prefix


def fractional(directory):
    prefix = directory / "float"
    Plain("float32", [[[0.5, 1.0, 2.0]], [[3.0, 4.0]]]).write(prefix)
    return prefix


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_verify_reports_negative_ids_without_a_tokenizer(tmp_path, dtype):
    prefix = masked(tmp_path, dtype)
    done = tokshard("verify", prefix, "--level", "deep", "--json")
    (finding,) = (one for one in json_of(done)["products"][0]["findings"] if one["severity"] == "error")
    assert done.returncode == 1
    assert finding["code"] == "token-range"
    assert f"{prefix}.bin at byte" in finding["message"]
    assert "token -100 must not be negative (of all tokens, 1 are not)" in finding["message"]
    assert finding["hint"] == "tokenize again with the job's tokenizer"


def test_verify_reports_floating_point_tokens(tmp_path):
    prefix = fractional(tmp_path)
    done = installed("verify", prefix, "--level", "deep")
    assert done.returncode == 1
    assert f"error: token-dtype: the tokens of {prefix} must be integers, got float32" in done.stdout
    assert "Traceback" not in done.stderr


def test_verify_of_the_installed_command_finds_a_negative_id(tmp_path):
    done = installed("verify", masked(tmp_path), "--level", "deep")
    assert done.returncode == 1
    assert "error: token-range: " in done.stdout
    assert "token -100 must not be negative" in done.stdout


def test_verify_does_not_adopt_negative_ids(tmp_path):
    prefix = masked(tmp_path)
    done = tokshard("verify", prefix, "--adopt")
    assert done.returncode == 1
    assert "token -100 must not be negative" in done.stdout
    assert not (tmp_path / "masked.tokshard/manifest.json").exists()


@pytest.mark.parametrize("run", [installed, tokshard])
@pytest.mark.parametrize("make", [masked, fractional])
def test_builders_refuse_impossible_ids(tmp_path, run, make):
    prefix = make(tmp_path)
    if make is masked:
        expected = 3, f"the token ids of {prefix} {NEGATIVE}", NEGATIVE_HINT
    else:
        expected = 3, f"the tokens of {prefix} must be integers, got float32", FLOAT_HINT
    commands = [
        ["blend", "1", prefix, "-o", tmp_path / "mix", *INDEX],
        ["build-indices", prefix, "--cache-dir", tmp_path / "cache", *INDEX],
    ]
    if run is tokshard:
        commands = [
            [*commands[0], "--dry-run"],
            ["merge", prefix, "-o", tmp_path / "merged"],
            ["shard-plan", "--documents", prefix, "--data-parallel", "1", "-o", tmp_path / "plan"],
        ]
    for command in commands:
        done = run(*command)
        # Before it, there is a warning about the job's tokenizer with a hint.
        done.stderr = done.stderr[done.stderr.index("error: ") :]
        assert failure(done) == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{prefix.name}.bin", f"{prefix.name}.idx"]


def test_merge_refuses_negative_ids_of_another_program_with_modes(tmp_path):
    prefix = tmp_path / "masked"
    Plain("int16", [[[5, 6, 7, 8]], [[9, -100, 4]]], modes=[1, 0]).write(prefix)
    done = installed("merge", prefix, "-o", tmp_path / "merged", "--multimodal")
    assert failure(done) == (3, f"the token ids of {prefix} {NEGATIVE}", NEGATIVE_HINT)


def test_export_refuses_impossible_ids(tmp_path):
    done = tokshard("export", fractional(tmp_path), "--to", "olmo", "-o", tmp_path / "out")
    assert failure(done) == (3, f"the tokens of {tmp_path}/float must be integers, got float32", FLOAT_HINT)
    code, error, _ = failure(tokshard("export", masked(tmp_path), "--to", "olmo", "-o", tmp_path / "out"))
    assert code == 3
    assert "has the token id -100; ids must not be negative" in error


def test_inspect_describes_a_dataset_of_floating_point_numbers(tmp_path):
    assert "(float32)" in tokshard("inspect", fractional(tmp_path)).stdout
