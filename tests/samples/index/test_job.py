import hashlib
import json
import os

from support.index_caches import LENGTHS, build_requests, request_for, write_dataset
from tokshard.core.codec import encode


def test_reports_are_json_with_everything_that_is_printed(tmp_path):
    prefix = write_dataset(str(tmp_path / "web"))
    (report,) = build_requests([request_for(prefix)], cache_directory=str(tmp_path / "cache"))
    value = json.loads(json.dumps(encode(report)))
    text = json.dumps(value["description"], indent=4)
    assert value["hash"] == hashlib.md5(text.encode()).hexdigest()
    assert (value["condition"], value["action"], value["warnings"]) == ("missing", "built", [])
    assert all(os.path.isfile(path) for path in value["files"])
    plan = value["plan"]
    tokens = sum(LENGTHS[: plan["sequences"]])
    assert (plan["tokens_per_epoch"], value["documents"]) == (tokens, plan["epochs"] * plan["sequences"])
    assert plan["samples"] == (plan["epochs"] * tokens - 1) // 8


def test_a_warning_of_the_plan_reaches_the_report(tmp_path):
    prefix = write_dataset(str(tmp_path / "web"))
    request = request_for(prefix, sequence_length=500, num_samples=2)
    (report,) = build_requests([request], cache_directory=str(tmp_path / "cache"))
    assert "sequences repeat within samples" in report.warnings[0]
