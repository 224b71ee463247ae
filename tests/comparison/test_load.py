"""Run folders are read back; broken and foreign ones are reported, and do not hide the others."""

import json

import numpy as np
import pytest
import yaml

from comparison.find import find_runs
from comparison.load import UnreadableError, load
from tests.conftest import configured
from tests.helpers.run_folders import made
from training.run_folder import Run


def test_a_run_is_read_with_its_metrics_by_step(tmp_path):
    curve = {
        2: {"act.rms/00.mlp": 0.5, "train/loss": 3.0},
        4: {"train/loss": "Infinity", "hist.act/embed": {"low": 0}},
    }
    run, remarks = load(made(tmp_path, "norm=none", final=2.5, curve=curve))
    assert remarks == []
    keys = ("seed", "norm", "model.n_layer", "optim.learning_rate")
    assert [run.config[key] for key in keys] == [0, "none", 4, 0.002]
    assert run.last("val/full_loss") == 2.5
    assert run.axes["step"].tolist() == [0, 2, 4, 1000]
    rows, values = run.metrics["train/loss"]
    assert (rows.tolist(), values.tolist()) == ([0, 1, 2], [4.3, 3.0, np.inf])
    steps, finite = run.curve("train/loss")
    assert (steps.tolist(), finite.tolist()) == ([0, 2], [4.3, 3.0])
    assert "hist.act/embed" not in run.metrics
    assert np.isnan(run.last("nope"))


def test_a_row_with_a_key_twice_is_passed_over_and_one_with_a_histogram_is_not(tmp_path):
    folder = made(tmp_path)
    start = '{"step": %d, "tokens": 1, "seconds": 99, "val/full_loss": 1.5'
    with (folder / "metrics.jsonl").open("a") as stream:
        stream.write(start % 1001 + ', "val/full_loss": 1.0}\n')
        stream.write(start % 1002 + ', "hist.act/embed": {"counts": [1], "edges": [0, 1]}}\n')
    run, remarks = load(folder)
    assert remarks == ["metrics.jsonl: line 3 is not a row and is passed over"]
    assert run.last("val/full_loss") == 1.5


def test_invalid_lines_are_reported_and_passed_over(tmp_path):
    folder = made(tmp_path)
    huge = f'{{"step": {10**400}, "tokens": 1, "seconds": 1}}\n'
    with (folder / "metrics.jsonl").open("a") as stream:
        stream.write('[1]\n{"step": NaN, "tokens": 1, "seconds": 1}\n' + huge + '{"step": 1001, "tok')
    run, remarks = load(folder)
    assert remarks[:3] == [f"metrics.jsonl: line {n} is not a row and is passed over" for n in (3, 4, 5)]
    assert remarks[3:] == ["metrics.jsonl: 1 more lines are passed over"]
    assert run.last("val/full_loss") == 2.0


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ({"step": -1}, "is not a row"),
        ({"step": 1000.5}, "is not a row"),
        ({"step": True}, "is not a row"),
        ({"step": 1001, "seconds": -1}, "is not a row"),
        ({"step": 1001, "val/full_loss": True}, "is not a row"),
        ({"step": 1000, "val/full_loss": 1.0}, "does not come after step 1,000"),
        ({"step": 500, "val/full_loss": 1.0}, "does not come after step 1,000"),
    ],
)
def test_a_line_that_no_run_writes_is_no_number_of_the_run(tmp_path, line, what):
    folder = made(tmp_path)
    with (folder / "metrics.jsonl").open("a") as stream:
        stream.write(json.dumps({"tokens": 1, "seconds": 1} | line) + "\n")
    run, remarks = load(folder)
    assert remarks == [f"metrics.jsonl: line 3 {what} and is passed over"]
    assert run.last("val/full_loss") == 2.0


ROW_OF_TEXT = b'{"step": 1, "tokens": 1, "seconds": 1, "val/full_loss": "two"}\n'
BROKEN = [
    ("metrics.jsonl", None, "not a run: it has no metrics.jsonl"),
    ("status.json", b'{"state": "running", "step": 7}', "running at step 7 of 1000"),
    ("config.yaml", b"[1]", "written by another version: "),
    ("status.json", b"[1]", "damaged: status.json: Input should be an object"),
    ("config.yaml", b"\xff\xfe\x00", "damaged: "),
    ("metrics.jsonl", b'{"step": NaN}\n' * 3, "damaged: it has finished, but has no val/full_loss"),
    ("metrics.jsonl", ROW_OF_TEXT, "damaged: could not convert"),
]


@pytest.mark.parametrize(("name", "content", "reason"), BROKEN)
def test_a_broken_folder_is_reported_with_the_reason(tmp_path, name, content, reason):
    file = made(tmp_path) / name
    file.unlink() if content is None else file.write_bytes(content)
    with pytest.raises(UnreadableError) as error:
        load(file.parent)
    assert str(error.value).startswith(reason)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("key", ["group", "torch"])
def test_a_run_of_another_version_is_reported_with_the_missing_key(tmp_path, key):
    file = made(tmp_path) / "environment.json"
    file.write_text(file.read_text().replace(f'"{key}"', '"other"'))
    with pytest.raises(UnreadableError, match=f"another version: environment.json has no {key}"):
        load(file.parent)


def test_runs_are_found_in_folders_and_by_globs_once_each_and_foreign_folders_are_among_them(tmp_path):
    runs = tmp_path / "runs"
    a, b = made(runs, "norm=none"), made(runs / "deep", "seed=1")
    (runs / "foreign" / "inner").mkdir(parents=True)
    (runs / ".sweep" / "x").mkdir(parents=True)
    (runs / "notes.txt").write_text("mine")
    measured = made(runs / "findings" / "runs" / "0123")
    assert set(find_runs([str(runs)])) == {a, b, runs / "foreign" / "inner"}
    assert find_runs([str(a)]) == [a]
    assert find_runs([f"{runs}/none*", str(a)]) == [a]
    assert find_runs([str(runs / "findings" / "runs")]) == [measured]
    with pytest.raises(UnreadableError, match="nope: no such folder"):
        find_runs([str(tmp_path / "nope")])


def test_a_run_that_has_not_begun_is_passed_over(tmp_path):
    begun = made(tmp_path)
    with Run(tmp_path / "another", configured()) as other:
        other.claim()
        assert find_runs([str(tmp_path)]) == [begun]
    assert find_runs([str(tmp_path)]) == [begun]  # nor when it was ended before it began


def test_a_list_in_a_config_is_read_as_a_tuple(tmp_path):
    folder = made(tmp_path)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["norm"]["sizes"] = [1, 2]
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    assert load(folder)[0].config["norm.sizes"] == (1, 2)
