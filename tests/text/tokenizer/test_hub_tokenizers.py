"""Tokenizers of the Hugging Face Hub (``hf:ID``), from a stand-in with its protocol."""

from __future__ import annotations

import shutil

import pytest

from support.command_line import SAMPLE, failure, installed
from support.hub_server import Fault, git_id, hub_server
from tokshard.errors import TokenizerError
from tokshard.text.tokenizer.definition import load_tokenizer
from tokshard.text.tokenizer.files import MAX_DEFINITION_BYTES

pytest.importorskip("huggingface_hub")

FILES = {name: (SAMPLE / name).read_bytes() for name in ("tokenizer.json", "tokenizer_config.json")}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOKSHARD_REMOTE_RETRIES", "1")
    monkeypatch.setenv("TOKSHARD_CACHE_DIR", str(tmp_path / "cache"))
    with hub_server(tmp_path / "home") as server:
        server.dataset("acme/tiny", {**FILES, "README.md": "#"})
        yield server


def refused(name, message, hint):
    with pytest.raises(TokenizerError) as error:
        load_tokenizer(name)
    assert str(error.value) == f"cannot download the tokenizer {name}: {message}"
    assert error.value.hint == f"{hint}, or download tokenizer.json and pass its path"


def test_a_tokenizer_is_read_at_one_commit(hub):
    repository = hub.datasets["acme/tiny"]
    first = repository.refs["main"]
    assert load_tokenizer("hf:acme/tiny").identity == load_tokenizer(str(SAMPLE)).identity
    # One request for the commit, one for the list of files, and those for the two files.
    assert hub.count("/api/") == hub.count("/revision/main?") + hub.count(f"/tree/{first}?") == 2
    assert hub.count(f"/resolve/{first}/") == 2
    repository.commit({"README.md": "#"})
    load_tokenizer(f"hf:acme/tiny@{first}")
    assert hub.count("/resolve/") == 2
    refused(
        "hf:acme/tiny",
        "it has no tokenizer.json or vocab.json or tokenizer.model or vocab.txt or spiece.model or "
        "sentencepiece.bpe.model or source.spm",
        "check the name",
    )
    refused(
        "hf:acme/tiny@v9",
        "revision not found: v9 of acme/tiny",
        "pass a branch, tag or commit of the model, for example main",
    )
    refused("hf:a/b/c", "its name must be ORG/NAME or ORG/NAME@REVISION", "check the name")


def test_access_to_a_tokenizer_is_explained(hub):
    hub.dataset("acme/gated", FILES).gated = True
    page = f"{hub.url}/acme/gated"
    refused(
        "hf:acme/gated",
        f"cannot read hf://acme/gated@{hub.datasets['acme/gated'].refs['main']}/tokenizer.json: access to "
        "acme/gated is restricted, and your account is not on its list",
        f"accept the conditions on the page of the model ({page}); then log in with `hf auth login`, or set "
        "HF_TOKEN",
    )
    refused(
        "hf:acme/absent",
        "model not found on the Hugging Face Hub: acme/absent",
        "check the spelling; if the model is private, log in with `hf auth login`, or set HF_TOKEN",
    )


def test_a_tokenizer_of_impossible_size_is_not_downloaded(hub):
    large = {"type": "file", "path": "tokenizer.json", "size": MAX_DEFINITION_BYTES + 1, "oid": git_id(b"")}
    hub.hostile["/tree/"] = lambda handler: handler.answer_json([large])
    refused("hf:acme/tiny", f"tokenizer.json has more than {MAX_DEFINITION_BYTES} bytes", "check the name")
    assert hub.count("/resolve/") == 0


def test_the_cache_of_the_library_is_used_without_the_hub(hub, tmp_path, monkeypatch):
    snapshot = tmp_path / "home/hub/models--acme--tiny/snapshots" / ("1" * 40)
    snapshot.mkdir(parents=True)
    for name in FILES:
        shutil.copy(SAMPLE / name, snapshot)
    refs = snapshot.parents[1] / "refs"
    refs.mkdir()
    (refs / "main").write_text("1" * 40)
    for faults in ([Fault("/api/", 503, times=9)], [Fault("/api/", 403, times=9)]):
        hub.faults = faults
        assert load_tokenizer("hf:acme/tiny").path == str(snapshot / "tokenizer.json")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    hub.requests.clear()
    assert load_tokenizer(f"hf:acme/tiny@{'1' * 40}").path == str(snapshot / "tokenizer.json")
    assert hub.requests == []


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set"),
        ({"HF_ENDPOINT": "http://127.0.0.1:1"}, "the Hugging Face Hub cannot be reached: "),
    ],
)
def test_the_command_without_a_connection_ends_in_3_seconds(hub, environment, reason):
    done = installed(
        "inspect", "hf:acme/tiny", env={"TOKSHARD_REMOTE_RETRIES": "10"} | environment, seconds=3
    )
    code, error, hint = failure(done)
    assert code == 3
    assert error.startswith(f"cannot download the tokenizer hf:acme/tiny: cannot read hf:acme/tiny: {reason}")
    assert "(`hf download acme/tiny --repo-type model --local-dir DIR`), or download tokenizer.json" in hint


def test_the_command_limits_the_body_of_a_tokenizer(hub):
    def endless(handler):
        handler.close_connection = True
        handler.send_response(206)
        handler.end_headers()
        try:
            while True:
                handler.wfile.write(b" " * (1 << 16))
        except OSError:
            return

    hub.hostile["/resolve/"] = endless
    code, error, _ = failure(installed("inspect", "hf:acme/tiny"))
    assert code == 3
    assert "failed 2 times, most recently with: got more than" in error
