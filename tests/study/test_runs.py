"""Runs are read back for a study; a damaged one is skipped with one line."""

import json

import pytest

from study.runs import differing, read_runs
from training.run_folder import read_json

REPORT = "val/report_loss"
CLEAN = {"causal": True, "independent_rows": True, "train": {"future": 0.0}, "eval": {"future": 0.0}}
ENVIRONMENT = {
    "began": "2026-11-29T10:00:01+00:00",
    "packages": {"torch": "2.13.0"},
    "git": {"commit": "0123456789", "clean": True},
    "device": "cpu",
    "gpu": None,
    "ranks": 1,
    "threads": 1,
    "compile": False,
    "processor": "a processor",
}


def write_run(folder, loss=2.0, curve=((0, 4.0),), end=None, status=None, leak=None, **environment):
    """Write a run that ended at ``loss``; None: it diverged. ``leak``: the mode in which it leaks."""
    folder.mkdir(parents=True)
    rows = [{"step": step, "val/loss": each, "train/tokens_per_s": 100.0} for step, each in curve]
    state = {"state": "diverged", "final": "NaN"}
    if loss is not None:
        state = {"state": "finished", "final": loss, "peak_memory": 2**30, "collapsed": False}
        names = ("val/loss", "val/full_loss", REPORT)
        rows.append({"step": 100, **dict.fromkeys(names, loss), "val/bpb": 2 * loss} | (end or {}))
    certificate = CLEAN | ({"causal": False, leak: {"future": 0.5}} if leak else {})
    files = {"status": state | (status or {}), "environment": ENVIRONMENT | environment}
    for name, content in {**files, "certificate": {"start": CLEAN, "end": certificate}}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_run_is_read(tmp_path):
    write_run(tmp_path / "a", 2.0, [(0, 4.0), (50, 3.0)], leak="train", device="cuda:1")
    runs, skipped = read_runs(tmp_path, ["a", "not there"], REPORT)
    run = runs["a"]
    assert skipped == []
    assert (run.diverged, run.losses[REPORT], run.leaks) == (False, 2.0, ["training"])
    assert (run.tokens_per_s, run.memory, run.curve) == (100.0, 2**30, ((0, 4.0), (50, 3.0), (100, 2.0)))
    assert run.conditions["device"] == "cuda"


def test_a_diverged_run_has_no_losses(tmp_path):
    write_run(tmp_path / "a", None, curve=[(0, 4.0), (10, "NaN")])
    run = read_runs(tmp_path, ["a"], REPORT)[0]["a"]
    assert (run.diverged, run.losses, run.curve) == (True, {}, ((0, 4.0),))


def test_a_run_that_goes_on_is_no_result_and_no_warning(tmp_path):
    write_run(tmp_path / "a", status={"state": "running"})
    assert read_runs(tmp_path, ["a"], REPORT) == ({}, [])


DAMAGE = [
    *({"end": {REPORT: wrong}} for wrong in (True, "0.1", [1, 2], 1e308, float("nan"), 10**300, None)),
    {"end": {"step": 10**300}},
    {"end": {"step": True}},
    {"end": {"val/loss": True}},
    {"end": {"val/full_loss": 1.9}},  # status.json says 2.0
    {"curve": [(0, True)]},
    {"status": {"collapsed": 1}},
    {"status": {"final": True}},
    {"began": 5},
    {"began": "2026-11-29"},
    {"packages": None},
    {"lost": "environment.json"},
    {"lost": "certificate.json"},
    {"lost": "metrics.jsonl"},
]


@pytest.mark.parametrize("changes", DAMAGE)
def test_a_damaged_run_is_skipped_with_one_line(tmp_path, changes):
    lost = changes.get("lost", "")
    write_run(tmp_path / "a", **{key: value for key, value in changes.items() if key != "lost"})
    write_run(tmp_path / "b")
    if lost:
        (tmp_path / "a" / lost).unlink()
    runs, [line] = read_runs(tmp_path, ["a", "b"], REPORT)
    assert [*runs] == ["b"]
    assert line.startswith("a: skipped: ")
    assert "\n" not in line


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
