"""Runs are read back for a study; a damaged one is skipped with one line."""

import json

from study.runs import differing, read_runs
from tests.helpers.studies import REPORT, write_run
from training.run_folder import read_json


def test_a_run_is_read_and_one_that_goes_on_is_no_result(tmp_path):
    write_run(tmp_path / "a", 2.0, [(0, 4.0), (50, 3.0)], leak="train", device="cuda:1")
    write_run(tmp_path / "b", None, curve=[(0, 4.0), (10, "NaN")])
    write_run(tmp_path / "c", status={"state": "running"})
    runs, skipped = read_runs(tmp_path, ["a", "b", "c", "not there"], REPORT)
    assert ([*runs], skipped) == (["a", "b"], [])
    run, diverged = runs.values()
    assert (run.diverged, run.losses[REPORT], run.leaks) == (False, 2.0, ["training"])
    assert (run.tokens_per_s, run.memory, run.curve) == (100.0, 2**30, ((0, 4.0), (50, 3.0), (100, 2.0)))
    assert run.conditions["device"] == "cuda"
    assert (diverged.diverged, diverged.losses, diverged.curve) == (True, {}, ((0, 4.0),))


DAMAGE = [
    *({"end": {REPORT: wrong}} for wrong in (True, "0.1", 1e308, float("nan"), 10**300, None)),
    {"end": {"step": True}},
    {"end": {"val/full_loss": 1.9}},  # status.json says 2.0
    {"curve": [(0, True)]},
    {"status": {"collapsed": 1}},
    {"status": {"final": True}},
    {"began": "2026-11-29"},
    {"packages": None},
    *({"lost": f"{name}.json"} for name in ("environment", "certificate")),
]


def test_a_damaged_run_is_skipped_with_one_line(tmp_path):
    for number, changes in enumerate(DAMAGE):
        folder = tmp_path / str(number)
        write_run(folder / "a", **{key: value for key, value in changes.items() if key != "lost"})
        write_run(folder / "b")
        if "lost" in changes:
            (folder / "a" / changes["lost"]).unlink()
        runs, [line] = read_runs(folder, ["a", "b"], REPORT)
        assert ([*runs], line[:12], "\n" in line) == (["b"], "a: skipped: ", False), changes


def test_a_test_that_could_not_be_made_is_no_clean_one(tmp_path):
    write_run(tmp_path / "a")
    certificate = read_json(tmp_path / "a/certificate.json")
    certificate["end"]["causal"] = None
    (tmp_path / "a/certificate.json").write_text(json.dumps(certificate))
    assert read_runs(tmp_path, ["a"], REPORT)[0]["a"].leaks == ["not tested"]


def test_conditions_that_differ_are_named(tmp_path):
    write_run(tmp_path / "a", threads=2)
    write_run(tmp_path / "b", git={"commit": "0123456789", "clean": False})
    runs, _ = read_runs(tmp_path, ["a", "b"], REPORT)
    assert differing(runs.values()) == ["threads (1, 2)", "commit (01234567, 01234567+changes)"]
