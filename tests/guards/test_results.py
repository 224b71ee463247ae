"""The published runs stay: every run, state, loss, reason and role, every mean and difference, every verdict,
and what the documents say of them."""

import csv
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from study.report import load
from study.table import short
from tests.conftest import ROOT

GUARDED = json.loads(Path(__file__).with_name("results.json").read_text(encoding="utf-8"))
MADE_ON = "AMD EPYC 25 17"  # the processor of the compared runs of the atlases

table = cache(lambda name: load(ROOT / "results" / name))


def digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16]


def lines_of(name: str) -> list[dict[str, str]]:
    with (ROOT / "results" / name / "runs.csv").open(encoding="utf-8", newline="") as stream:
        return [*csv.DictReader(stream)]


@pytest.mark.parametrize("name", GUARDED)
def test_a_published_study_is_what_it_was(name):
    """The digests of runs and of curves were written by the code before studies existed."""
    runs = [
        f"{line['name']} {line['state']} {float(line['val/full_loss']) if line['val/full_loss'] else None} "
        f"{line['reason'] or None} {line['roles'].split()}"
        for line in lines_of(name)
    ]
    rows, verdicts = [], defaultdict(list)
    for row in table(name).rows:
        numbers = "[] nan nan"
        if row.mean is not None:
            difference = row.difference and round(row.difference, 9)
            numbers = f"{sorted(row.losses)} {row.mean:.9f} {difference}"
        rows.append(f"{short(row.title)} {numbers}")
        if row.outcome:
            verdicts[row.outcome].append(short(row.title))
    curves = (ROOT / "results" / name / "curves.csv").read_bytes()
    assert GUARDED[name] == {
        "runs": [len(runs), digest(runs)],
        "table": [len(rows), digest(rows)],
        "curves": hashlib.sha256(curves).hexdigest()[:16],
        "verdicts": verdicts,
    }


def test_leaks_lost_seeds_and_seeds_in_two_parts_are_marked():
    marked = {
        name: {short(row.title) for row in table(name).rows if row.leaks or row.diverged or row.collapsed}
        for name in GUARDED
    }
    assert marked["reference"] == {"batchnorm pre", "batchnorm post"}
    leaking = {"batchnorm pre", "torch_batchnorm pre", "batchnorm_position pre"}
    assert marked["atlas"] == {*leaking, "rmsnorm rezero"}
    assert marked["atlas_map"] >= {"none keel", "batchnorm_running keel", "batchnorm post"}
    assert len(marked["atlas_map"]) == 2 + 2 * 9
    assert not any(marked[name] for name in ("atlas_muon", "atlas_text", "atlas_deep"))
    assert len(table("reference").warnings) == 2  # post-norm: a seed of five learned late


@pytest.mark.parametrize("name", GUARDED)
def test_every_arm_tried_the_same_settings_and_was_compared_at_its_best_on_other_seeds(name):
    def has(run: str, settings: dict[str, object]) -> bool:
        return {key: lines[run][key] for key in settings} == {k: str(v) for k, v in settings.items()}

    study, lines = table(name).study, {line["name"]: line for line in lines_of(name)}
    assert {len(arm.trials) for arm in study.arms} == {len(study.trials)}
    assert not {*study.seeds} & {*study.trial_seeds}
    for arm in study.arms:
        for settings, names in zip(study.trials, arm.trials, strict=True):
            for seed, trial in zip(study.trial_seeds, names, strict=False):
                assert has(trial, settings | {"arm": arm.title, "seed": seed})
        losses = [loss for _, loss in table(name).trials[arm.title]]
        ended = [lines[names[0]]["state"] for names in arm.trials]
        assert [loss is None for loss in losses] == [state == "diverged" for state in ended]
    for row in table(name).rows:
        for run in table(name).runs[row.title].values():
            assert has(run.name, row.settings)
            assert "compared" in lines[run.name]["roles"].split()
            assert run.conditions["processor"] == ("AMD EPYC" if name == "reference" else MADE_ON)


@pytest.mark.parametrize("name", GUARDED)
def test_there_are_no_weights_and_no_paths_of_a_machine(name):
    files = [*(ROOT / "results" / name).iterdir()]
    assert {file.name for file in files} == {"study.json", "chosen.json", "runs.csv", "curves.csv"}
    assert not re.search(r"/(home|root|tmp|work|Users)/", "".join(file.read_text("utf-8") for file in files))


@pytest.mark.parametrize("document", ["README.md", "docs/atlas.md", "docs/ablations.md"])
def test_each_difference_that_a_document_states_is_that_of_the_runs(document):
    """Of differences with ±, half of the interval that decides, to three digits."""
    text = " ".join((ROOT / document).read_text(encoding="utf-8").split())
    text = text.replace("by 0.011", "by -0.011").replace("by 0.088", "by -0.088").replace("−", "-")
    stated = {(f"{float(mean):+.3f}", half) for mean, half in re.findall(r"([+-]?\d\.\d+) ± (\d\.\d+)", text)}
    measured = {
        (f"{row.difference:+.3f}", f"{(row.high - row.low) / 2:.3f}")
        for name in GUARDED
        for row in table(name).rows
        if row.low is not None
    }
    assert stated
    assert stated <= measured
