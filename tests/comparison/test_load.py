"""Run folders are read back; broken and foreign ones are named, and hide nothing of the others."""

import json

import numpy as np
import pytest

from comparison.load import UnreadableError, flat, found, load
from tests.helpers.run_folders import made


def test_a_run_is_read_with_its_metrics_by_step(tmp_path):
    curve = {
        2: {"act.rms/00.mlp": 0.5, "train/loss": 3.0},
        4: {"train/loss": "Infinity", "hist.act/embed": {"low": 0}},
    }
    run, said = load(made(tmp_path, "norm=none", final=2.5, curve=curve))
    assert said == []
    assert (run.seed, run.config["norm"], run.config["model.n_layer"]) == (0, "none", 4)
    assert run.last("val/full_loss") == 2.5
    assert run.axes["step"].tolist() == [0, 2, 4, 1000]
    rows, values = run.metrics["train/loss"]
    assert (rows.tolist(), values.tolist()) == ([0, 1, 2], [4.3, 3.0, np.inf])
    steps, finite = run.curve("train/loss")
    assert (steps.tolist(), finite.tolist()) == ([0, 2], [4.3, 3.0])
    assert "hist.act/embed" not in run.metrics
    assert np.isnan(run.last("nope"))


def test_the_rows_of_a_metric_are_in_order_also_where_it_comes_with_others(tmp_path):
    curve = {step: {"a": step} | ({"b": step} if step % 3 == 0 else {}) for step in range(1, 9)}
    run, _ = load(made(tmp_path, curve=curve))
    assert run.metrics["a"][1].tolist() == list(range(1, 9))
    assert run.metrics["b"][1].tolist() == [3, 6]


def test_half_a_line_and_lines_that_are_no_rows_are_named_and_passed_over(tmp_path):
    folder = made(tmp_path)
    with (folder / "metrics.jsonl").open("a") as stream:
        stream.write('[1]\n{"step": NaN, "tokens": 1, "seconds": 1}\n{"step": 1001, "tok')
    run, said = load(folder)
    assert said == [f"metrics.jsonl: line {n} is no row and is passed over" for n in (3, 4, 5)]
    assert run.last("val/full_loss") == 2.0


def broken(folder, what):
    match what:
        case "empty":
            for file in folder.iterdir():
                file.unlink()
        case "no metrics":
            (folder / "metrics.jsonl").unlink()
        case "still running":
            (folder / "status.json").write_text('{"state": "running", "step": 7}')
        case "damaged status":
            (folder / "status.json").write_text('{"state": "fini')
        case "damaged config":
            (folder / "config.yaml").write_text("a: [1")
        case "config is a list":
            (folder / "config.yaml").write_text("[1]")
        case "status is a list":
            (folder / "status.json").write_text("[1]")
        case "not text":
            (folder / "config.yaml").write_bytes(b"\xff\xfe\x00")
        case "older format":
            environment = json.loads((folder / "environment.json").read_text())
            del environment["group"]
            (folder / "environment.json").write_text(json.dumps(environment))
        case "only rows of NaN":
            (folder / "metrics.jsonl").write_text('{"step": NaN}\n' * 3)
        case "a text where a number is":
            (folder / "metrics.jsonl").write_text(
                '{"step": 1, "tokens": 1, "seconds": 1, "val/full_loss": "two"}\n'
            )


KINDS = {
    "empty": "no run: there is no metrics.jsonl in it",
    "no metrics": "no run",
    "still running": "running at step 7 of 1000",
    "damaged status": "damaged: ",
    "damaged config": "damaged: ",
    "config is a list": "of another version: ",
    "status is a list": "damaged: status.json: Input should be a valid dictionary",
    "not text": "damaged: ",
    "older format": "of another version: KeyError 'group'",
    "only rows of NaN": "damaged: it has finished, but has no val/full_loss",
    "a text where a number is": "damaged: ",
}


@pytest.mark.parametrize("what", KINDS)
def test_a_broken_folder_is_named_with_the_reason(tmp_path, what):
    folder = made(tmp_path)
    broken(folder, what)
    with pytest.raises(UnreadableError) as error:
        load(folder)
    assert str(error.value).startswith(KINDS[what])
    assert "\n" not in str(error.value)


def test_runs_are_found_in_folders_and_by_globs_once_each_and_foreign_folders_are_among_them(tmp_path):
    a, b = made(tmp_path / "runs", "norm=none"), made(tmp_path / "runs" / "deep", "seed=1")
    (tmp_path / "runs" / "foreign" / "inner").mkdir(parents=True)
    (tmp_path / "runs" / ".sweep" / "x").mkdir(parents=True)
    (tmp_path / "runs" / "notes.txt").write_text("mine")
    expected = {a, b, tmp_path / "runs" / "foreign" / "inner"}
    assert set(found([str(tmp_path / "runs")])) == expected
    assert found([str(a)]) == [a]
    assert found([f"{tmp_path}/runs/none*", str(a)]) == [a]
    with pytest.raises(UnreadableError, match="nope: there is no such folder"):
        found([str(tmp_path / "nope")])


def test_keys_have_dots_and_a_norm_is_its_name():
    nested = {"norm": {"_name_": "layernorm", "eps": 1e-5}, "model": {"n_layer": 4}, "seed": 0}
    assert flat(nested) == {"norm": "layernorm", "norm.eps": 1e-5, "model.n_layer": 4, "seed": 0}
