"""python -m scripts.publish names what it leaves out, and describes runs in words."""

import json
import platform

import pytest

from scripts.publish import page
from tests.helpers.fair_runs import FAR, NEAR, fair_runs
from tests.helpers.run_folders import several
from tests.helpers.runs import QUICK
from training.run_folder import read_status

PROGRAM = "scripts/publish.py"


@pytest.fixture
def plain(tmp_path):
    losses = {"norm=layernorm": [2.0, 2.1, 2.2], "norm=none": [2.5, 2.6, 2.71]}
    return several(tmp_path / "runs", losses)


def test_an_unfinished_run_is_named_and_the_others_are_published(plain, succeed, tmp_path):
    file = plain[0].folder / "status.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"state": "running", "step": 1}))
    done = succeed(PROGRAM, tmp_path / "runs", "--out", tmp_path / "out")
    assert f"note: {plain[0].folder}: running at step 1" in done.stdout
    assert "5 runs" in done.stdout


def test_a_published_run_names_neither_its_machine_nor_its_process(succeed, text_file, tmp_path):
    succeed("train.py", *QUICK)
    [run] = (tmp_path / "runs").iterdir()
    status = read_status(run)
    assert status["host"] == platform.node()
    succeed(PROGRAM, tmp_path / "runs", "--out", tmp_path / "out")
    published = "".join(file.read_text() for file in (tmp_path / "out").iterdir())
    for private in ("status:host", "status:process", '"host"', '"process"'):
        assert private not in published


def test_the_page_of_runs_that_were_not_tuned_has_their_table(plain):
    text = page(plain, "")
    assert "val/full_loss" in text
    assert "layernorm" in text
    assert "The table compares 6 runs" in text
    assert "trials" not in text
    assert "at the baseline's settings" not in text


def test_the_page_of_a_fair_comparison_tells_of_its_trials_and_settings(tmp_path):
    runs = fair_runs(tmp_path / "a", "layernorm", NEAR, [2.0, 2.1, 2.2])
    runs += fair_runs(tmp_path / "b", "none", FAR, [1.5, 1.6, 1.71], borrowed=[2.5, 2.6, 2.73])
    text = page(runs, "")
    assert "The table compares 6 runs of 20 steps, on seeds 10, 11, 12. Each group is at its own best" in text
    assert "There were 4 trials of 10 steps and 4 trials of 20 steps, on seeds 0, 1." in text
    assert "none (-0.4967 ± 0.0143 nats, 3 seeds) is better than layernorm." in text
    assert "| none | 0.01 | xavier |" in text
    assert "- none: its optim.learning_rate, 0.01, is the highest tried" in text


def test_the_page_of_a_comparison_that_lacks_trials_says_that_it_is_confounded(tmp_path):
    runs = fair_runs(tmp_path / "a", "layernorm", NEAR, [2.0, 2.1, 2.2])
    others = fair_runs(tmp_path / "b", "none", FAR, [1.5, 1.6, 1.71])
    text = page(runs + [run for run in others if run.roles[0]["role"] != "trial"], "")
    assert "Not each group is at its own best settings (confounded): " in text
