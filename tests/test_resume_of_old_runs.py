"""A run that an earlier version of this project began is resumed and ends as it would have ended.
tests/fixtures/begun_at_<commit>/<name of the run>/ holds the folder of the interrupted run, and the
metrics and the last checkpoint that the same version wrote without an interruption."""

import json
import shutil
from pathlib import Path

import pytest

from rundir import checkpoint_file
from rundir.folder import read_status
from tests.conftest import EARLIER_DEFAULTS, LETTERS
from tests.helpers.machines import this_machine
from tests.helpers.runs import CLOCKS, final_tensors, rows_without_clocks, same_tensors

RUNS = sorted((Path(__file__).parent / "fixtures").glob("begun_at_*/*-s0-*"), key=lambda folder: folder.name)
LATER = ("val/select_loss", "val/report_loss", "val/bpb")  # metrics that the earlier version did not have


@pytest.mark.parametrize("fixture", RUNS, ids=lambda folder: folder.name)
def test_a_run_begun_by_an_earlier_version_ends_as_it_would_have(succeed, tmp_path, fixture):
    (tmp_path / "text.txt").write_text(LETTERS, encoding="utf-8")
    folder = tmp_path / "runs" / fixture.name
    shutil.copytree(fixture / "interrupted", folder)
    stopped_at = read_status(folder)["step"]
    arguments = json.loads((folder / "environment.json").read_text())["overrides"]

    done = succeed("train.py", *EARLIER_DEFAULTS, *arguments)
    assert [run.name for run in folder.parent.iterdir()] == [fixture.name]  # the run's name has not changed
    assert f"from step {stopped_at} of 60" in done.stdout
    assert read_status(folder)["state"] == "finished"

    tensors = final_tensors(folder)
    rows = [{k: v for k, v in row.items() if k not in LATER} for row in rows_without_clocks(folder)]
    lines = (fixture / "expected_metrics.jsonl").read_text().splitlines()
    expected_rows = [{k: v for k, v in json.loads(line).items() if k not in CLOCKS} for line in lines]
    # an earlier version measured no statistics at the end
    rows[-1] = {name: value for name, value in rows[-1].items() if name in expected_rows[-1]}
    expected_tensors = checkpoint_file.load(fixture / "expected_step-00000060.safetensors").tensors
    uses_muon = "optim=muon" in arguments  # which has computed in fp32 since then, where bf16 is emulated
    if json.loads((fixture.parent / "made_on.json").read_text()) == this_machine() and not uses_muon:
        assert rows == expected_rows
        assert same_tensors(tensors, expected_tensors)
    for row, expected in zip(rows, expected_rows, strict=True):  # on another processor, losses are only close
        assert row.keys() == expected.keys()
        for name in row.keys() & {"train/loss", "val/loss", "val/full_loss"}:
            assert row[name] == pytest.approx(expected[name], rel=1e-4)
    assert tensors.keys() == expected_tensors.keys()
    for name, tensor in tensors.items():  # on another processor, Muon amplifies differences in last bits
        expected_tensor = expected_tensors[name].double()
        assert (tensor - expected_tensor).norm() <= 0.01 * expected_tensor.norm(), name
