"""docs/reference/formats: the ids of plans and blends follow from the files alone, as the pages specify."""

import hashlib
import json
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden/formats"


def digest(value):
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def placeless(value):
    """Return a source without the paths and the fingerprints of its datasets."""
    if isinstance(value, list):
        return [placeless(item) for item in value]
    if not isinstance(value, dict):
        return value
    replaced = {"path_prefix": "", "directory": "", "fingerprint": {"bin_bytes": 0, "idx_bytes": 0}}
    return {name: replaced[name] if name in replaced else placeless(item) for name, item in value.items()}


def test_plan_id():
    plan = json.loads((GOLDEN / "plan-2.json").read_text())
    streams = {
        name: {
            "source": digest(placeless(stream["source"])),
            **{key: stream[key] for key in ("assignment", "sort_key", "document_boundaries")},
        }
        for name, stream in plan["streams"].items()
    }
    identity = {"schema": "tokshard.plan/2", "topology": plan["topology"], "streams": streams}
    assert plan["plan_id"] == digest(identity)


def test_id_of_a_blend():
    blend = json.loads((GOLDEN / "blend-2.json").read_text())
    splits = {
        name: {
            "kind": split["kind"],
            "samples": split["samples"],
            "hash": None if split["order"] is None else split["order"]["index"][:32],
            "sources": [
                {
                    "hash": source["index"][:32],
                    **{key: source[key] for key in ("samples", "draws", "fingerprint")},
                }
                for source in split["sources"]
            ],
        }
        for name, split in blend["splits"].items()
    }
    builder = {key: value for key, value in blend["builder"].items() if key != "path_as"}
    assert blend["id"] == digest({"builder": builder, "splits": splits})
