"""Metrics are JSON lines that survive the process; the progress line says the newest of each."""

import json
import math

from training.tracking import Metrics, ProgressLine


def test_a_row_is_one_json_line_on_disk_at_once(tmp_path):
    with Metrics(tmp_path / "m.jsonl") as metrics:
        metrics.write({"step": 1, "train/loss": 2.5})
        assert json.loads((tmp_path / "m.jsonl").read_text()) == {"step": 1, "train/loss": 2.5}


def test_what_is_not_finite_is_a_string(tmp_path):
    with Metrics(tmp_path / "m.jsonl") as metrics:
        metrics.write({"a": math.nan, "b": math.inf, "c": -math.inf})
    assert json.loads((tmp_path / "m.jsonl").read_text()) == {"a": "NaN", "b": "Infinity", "c": "-Infinity"}


def test_without_a_terminal_evaluations_are_plain_lines(capsys):
    with ProgressLine(0, 100) as progress:
        progress.update(0, {"val/loss": 4.0})
        progress.update(1, {"train/loss": 3.0})  # too soon for another line
        progress.update(50, {"val/loss": 2.0})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  eta")[0] for line in lines] == [
        "step 0/100  val 4.000",
        "step 50/100  loss 3.000  val 2.000",
    ]
