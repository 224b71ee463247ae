"""Metrics are JSON lines that survive the process; the progress line shows each metric's latest value."""

import json
import math
import re
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from rundir import progress_line
from rundir.folder import Diverged
from rundir.metrics import Metrics, losses, rows_before, write_rows
from rundir.progress_line import ProgressLine
from tests.helpers.waiting import until


def test_a_row_is_one_json_line_on_disk_at_once(tmp_path):
    written = {"step": 1, "a": "NaN", "b": "Infinity", "c": "-Infinity"}
    with Metrics(tmp_path / "m.jsonl") as metrics:
        metrics.write({"step": 1, "a": math.nan, "b": math.inf, "c": -math.inf})
        assert json.loads((tmp_path / "m.jsonl").read_text()) == written


@pytest.mark.parametrize("replacement", [None, "another program's"])
def test_a_file_that_is_removed_or_replaced_while_the_run_trains_is_written_again(
    tmp_path, replacement, capsys
):
    file = tmp_path / "m.jsonl"
    file.write_text('{"step": 0}\n')
    with Metrics(file) as metrics:
        metrics.write({"step": 1})
        file.unlink()
        if replacement:
            file.write_text(replacement)
        metrics.sync()
        metrics.write({"step": 2})
        file.unlink()
    assert file.read_text() == '{"step": 0}\n{"step": 1}\n{"step": 2}\n'
    assert "removed or replaced, and has been written again" in capsys.readouterr().out


def test_the_rows_of_a_diverged_run_are_written_again_too(tmp_path):
    file = tmp_path / "m.jsonl"
    with suppress(Diverged), Metrics(file) as metrics:
        metrics.write({"step": 1})
        file.unlink()
        raise Diverged(1, "it grew")
    assert file.read_text() == '{"step": 1}\n'


def test_without_a_terminal_evaluations_are_plain_lines(capsys, monkeypatch):
    monkeypatch.setattr("system.terminal.PATIENCE", 600)
    with ProgressLine(0, 100) as progress:
        progress.update(0, {"val/loss": 4.0})
        progress.update(1, {"train/loss": 3.0})  # too soon for another line
        progress.update(50, {"val/loss": 2.0})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  eta")[0] for line in lines] == [
        "step 0/100  val 4.000",
        "step 50/100  loss 3.000  val 2.000",
    ]


def test_without_a_terminal_there_are_lines_also_while_a_step_takes_long(capsys, monkeypatch):
    monkeypatch.setattr("system.terminal.PATIENCE", 0.01)
    monkeypatch.setattr(progress_line, "SOON", 0.0)
    progress = ProgressLine(0, 100)
    progress.update(7, {"train/loss": 3.0})
    with progress:
        lines = printed(3, capsys)
        assert all(
            re.fullmatch(r"step 7/100  loss 3.000  eta \d+ s  \(\d+ s ago\)", line) for line in lines
        ), lines
        batches = progress.through(8, [(None, np.zeros(4))] * 2, 8, "evaluating")
        for done in ("0%", "50%"):
            next(batches)
            printed(2, capsys)  # those that were being printed
            assert all(f"evaluating: {done}" in line for line in printed(3, capsys))


def printed(count, capsys):
    """Wait for the next ``count`` whole lines, and return them."""
    texts = []
    until(lambda: texts.append(capsys.readouterr().out) or "".join(texts).count("\n") > count)
    return "".join(texts).split("\n")[1:-1]


def test_rows_from_a_step_on_and_invalid_rows_are_dropped_once_the_file_is_written_anew(tmp_path, capsys):
    file = tmp_path / "metrics.jsonl"
    assert rows_before(file, 3) == []
    assert "has no rows before step 3" in capsys.readouterr().out
    lines = [
        '{"step": 0, "seconds": 1.0, "x": "NaN"}',
        "3",
        "{}",
        "[1]",
        '{"step": 1}',
        '{"step": 2, "seconds": 2.0}',
        '{"step": 3, "seconds": 3.0}',
        '{"step": "a"}',
        '{"ste',
    ]
    file.write_text("\n".join(lines))
    kept = [{"step": 0, "seconds": 1.0, "x": "NaN"}, {"step": 2, "seconds": 2.0}]
    assert rows_before(file, 3) == kept
    assert capsys.readouterr().out == f"{file}: 5 damaged rows are left out\n"  # the last is only incomplete
    assert rows_before(file, 0) == []
    assert file.read_text() == "\n".join(lines)  # until the run has begun
    write_rows(file, kept)
    assert [json.loads(line) for line in file.read_text().splitlines()] == kept


def test_the_losses_of_an_evaluation_come_with_the_latest_training_loss():
    start = {"step": 0, "seconds": 1.0, "val/loss": 3.0}
    end = {"step": 3, "seconds": 4.0, "val/loss": 2.5}
    trained = {"step": 2, "seconds": 3.0, "train/loss": 2.0, "act.rms/embed": 1.0}
    assert losses([start, trained, end, {"step": 4, "seconds": 5.0}]) == [
        start,
        end | {"train/loss": 2.0},
        {"step": 4, "seconds": 5.0, "train/loss": 2.0},
    ]


def test_an_error_of_the_disk_names_the_metrics_file(tmp_path):
    metrics = Metrics(Path("/dev/full")).__enter__()
    with pytest.raises(OSError, match="No space left") as raised:
        metrics.write({"step": 0})
    assert raised.value.filename == "/dev/full"
    with pytest.raises(OSError, match="No space left"):
        metrics.stream.close()
