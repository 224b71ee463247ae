"""A fair comparison tunes each arm by equal trials, then compares the arms on other seeds."""

import json
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest
import yaml

from comparison.load import Run, load
from comparison.report import build_report
from comparison.roles import by_role
from data.errors import ConfigError
from sweep.stages import check_typed, combined, owners, total_runs
from sweep.trials import tuning
from tests.conftest import LETTERS, TINY
from tests.helpers import programs
from tests.helpers.contract import check_refused
from training.run_folder import read_status

FAIR = """# @package _global_
hydra:
  mode: MULTIRUN
  sweeper:
    params: {norm: "layernorm,none", placement: pre, seed: "0,1"}
    tune:
      keys: {optim.learning_rate: "tag(log, interval(1e-3, 1e-1))", model.init: "gpt2,xavier"}
      trials: 4
      rounds: [{trials: 1, steps: 0.5, seeds: 1}, {trials: 0.5, steps: 1, seeds: 2}]
      borrow: true
    final: {seed: "10,11,12"}
train: {steps: 4}
"""
FINAL = 'hydra.sweeper.final.seed="10,11,12,13"'


def comparison_in(folder: Path) -> tuple[str, ...]:
    """Write the files of a fair comparison whose runs take a second each; return the arguments."""
    (folder / "mine" / "experiment").mkdir(parents=True)
    (folder / "mine" / "experiment" / "small.yaml").write_text(FAIR)
    (folder / "text.txt").write_text(LETTERS)
    rest = (override for override in TINY if "steps" not in override)
    preset = ("--config-dir", str(folder / "mine"), "experiment=small")
    return (*preset, *rest, "data=text", f"data.path={folder / 'text.txt'}")


@pytest.fixture
def fair(tmp_path):
    return comparison_in(tmp_path)


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory):
    """Return the folder of the whole comparison, its arguments, and what the program printed."""
    folder = tmp_path_factory.mktemp("fair")
    arguments = comparison_in(folder)
    return folder, arguments, programs.succeed("train.py", *arguments, cwd=folder).stdout


@pytest.fixture
def trained(trained_once, tmp_path):
    """Copy the runs of the whole comparison here, and return its arguments."""
    shutil.copytree(trained_once[0] / "runs", tmp_path / "runs")
    return trained_once[1]


def configs(folder: Path) -> list[dict]:
    return [yaml.safe_load(file.read_text()) for file in folder.glob("runs/*/config.yaml")]


def roles(folder: Path) -> dict[str, list[dict]]:
    """Return the configs of the runs by what the runs are for."""
    result: dict[str, list[dict]] = {"trial": [], "compared": [], "borrowed": []}
    for file in folder.glob("runs/*/config.yaml"):
        for role in json.loads((file.parent / "environment.json").read_text())["roles"]:
            result[role["role"]].append(yaml.safe_load(file.read_text()))
    return result


def runs_of(folder: Path) -> list[Run]:
    return [load(file.parent)[0] for file in folder.glob("runs/*/status.json")]


def settings_of(config: dict) -> tuple:
    return config["optim"]["learning_rate"], config["model"]["init"]


@pytest.mark.slow
def test_each_arm_has_equal_trials_then_its_own_settings_then_the_baselines(trained_once, trained, tmp_path):
    assert "2 arms, 4 trials of each over optim.learning_rate, model.init" in trained_once[2]
    by_role = roles(tmp_path)
    trials, own = by_role["trial"], by_role["compared"]
    for norm in ("layernorm", "none"):
        of_norm = [c for c in trials if c["norm"]["_name_"] == norm]
        short, long = ([c for c in of_norm if c["train"]["steps"] == n] for n in (2, 4))
        assert (len(short), len({*map(settings_of, short)}), {c["seed"] for c in short}) == (4, 4, {0})
        assert (len(long), len({*map(settings_of, long)}), {c["seed"] for c in long}) == (4, 2, {0, 1})
    assert len(own) == 2 * 3
    assert {c["seed"] for c in own} == {c["seed"] for c in by_role["borrowed"]} == {10, 11, 12}
    report = build_report(runs_of(tmp_path))
    assert report.metric == "val/report_loss"
    assert report.summary[1] == (
        "Each group is at its own best settings of 4 tried, chosen by other runs on other seeds and on the "
        "other half of the validation split."
    )
    first, *others = report.choices
    assert first.borrowed is None
    assert all(choice.borrowed or choice.note == "the same" for choice in others)
    assert {row.planned for row in report.rows if row.difference} == {3}


@pytest.mark.long
def test_without_borrowing_a_second_tuning_of_more_trials_takes_the_place_of_the_first(
    succeed, fair, tmp_path
):
    two = ("norm=layernorm", "placement=pre,post")
    planned = succeed("train.py", *fair, *two, "--dry-run")
    assert "at most 28 runs in all stages" in planned.stdout  # 4, 2 on two seeds, 3, and 3 borrowed an arm
    not_borrowed = (*fair, *two, "hydra.sweeper.tune.borrow=false")
    done = succeed("train.py", *not_borrowed)
    assert "at most 22 runs in all stages" in done.stdout
    succeed("train.py", *not_borrowed, "hydra.sweeper.tune.trials=8")
    runs = runs_of(tmp_path)
    assert {role["role"] for run in runs for role in run.roles} == {"trial", "compared"}
    first_round = [run.config["placement"] for run in by_role(runs).trials if run.config["train.steps"] == 2]
    assert Counter(first_round) == {"pre": 8, "post": 8}
    assert build_report(runs).summary[1].startswith("Each group is at its own best settings")


@pytest.mark.long
def test_trials_at_the_chosen_settings_do_not_count_as_compared_before_the_plan(succeed, fair, tmp_path):
    rounds = "hydra.sweeper.tune.rounds=[{trials: 1, steps: 1, seeds: 3}]"
    succeed("train.py", *fair, "norm=layernorm", "seed=0,1,2", rounds)
    environments = [json.loads(f.read_text()) for f in tmp_path.glob("runs/*/environment.json")]
    plans = [environment["plan"] for environment in environments if environment["plan"]]
    assert [(plan["seeds"], plan["ended_before"]) for plan in plans] == [([10, 11, 12], [])] * 3
    succeed("train.py", *fair, "norm=layernorm", "seed=0,1,2", rounds, FINAL)
    plans = [json.loads(f.read_text())["plan"] for f in tmp_path.glob("runs/*-s13-*/environment.json")]
    assert [plan["ended_before"] for plan in plans] == [[10, 11, 12]]


@pytest.mark.slow
def test_typed_values_are_taken_in_every_stage(command, succeed, fair, tmp_path):
    same = command("train.py", *fair, "seed=9,10")
    assert same.returncode == 1
    assert "error: seed: the last stage, whose runs are compared, has 10, too" in same.stderr
    few = command("train.py", *fair, "seed=0")
    assert "error: seed: tuning needs 2 seeds" in few.stderr
    several = command("train.py", *fair, "train.steps=2,4")
    assert "error: train.steps: a fair comparison has one length" in several.stderr
    fixed = (
        "norm=none",
        "train.steps=2",
        "++optim.learning_rate=0.01",
        "hydra.sweeper.final.seed=5",
    )
    succeed("train.py", *fair, *fixed)
    runs = configs(tmp_path)
    assert {c["optim"]["learning_rate"] for c in runs} == {0.01}
    assert {c["train"]["steps"] for c in runs} == {1, 2}
    assert {c["seed"] for c in roles(tmp_path)["compared"]} == {5}


def test_the_baseline_of_an_arm_has_the_usual_norm_and_the_arms_other_values():
    arms = [(f"norm={n}", f"model.n_layer={k}") for n in ("layernorm", "none") for k in (2, 4)]
    usual = {"norm": "layernorm"}
    assert owners(arms, usual) == {
        ("norm=none", f"model.n_layer={k}"): ("norm=layernorm", f"model.n_layer={k}") for k in (2, 4)
    }
    assert owners(arms, {}) == {}


def test_an_arm_with_a_qk_norm_has_the_baseline_without_one_and_another_start_that_with_it():
    usual = ("norm=layernorm", "placement=pre")
    with_it, other = ("norm=rmsnorm", "placement=pre", "model.qk_norm=same"), (*usual, "model.qk_norm=same")
    names = {"norm": "layernorm", "placement": "pre"}
    assert owners([usual, with_it], names) == {with_it: usual}
    assert owners([usual, with_it, other], names) == {with_it: usual, other: usual}
    start, started = ("norm=dyt", "placement=pre", "model.init=xavier"), (*usual, "model.init=xavier")
    assert owners([usual, start], names) == {start: usual}
    assert owners([usual, start, started], names) == {start: started}
    typed = [(*usual, f"model.qk_norm={value}") for value in ("none", "same")]
    assert owners(typed, names) == {typed[1]: typed[0]}


def test_the_runs_of_all_stages_are_counted_and_their_lengths_added():
    rounds = [
        {"trials": 1, "steps": 0.5, "seeds": 1},
        {"trials": 0.14, "steps": 0.5, "seeds": 2},
        {"trials": 0.14, "steps": 1, "seeds": 2},
    ]
    how = tuning({"keys": {}, "trials": 50, "rounds": rounds, "borrow": True})
    # of an arm: 50 short runs, 7 on a second seed, 14 long ones, 3 at its own settings, 3 at the baseline's
    assert total_runs(2, 50, how, 3) == (2 * (50 + 7 + 14 + 3 + 3), 2 * (25 + 3.5 + 14 + 3 + 3))


def test_an_arms_overrides_take_the_place_of_values():
    arms = [["norm=none"], ["norm=dyt", "placement=post"]]
    values = {"norm": ["norm=layernorm"], "placement": ["placement=pre"], "seed": ["seed=0", "seed=1"]}
    assert combined(arms, values) == [
        ("norm=none", "placement=pre", "seed=0"),
        ("norm=none", "placement=pre", "seed=1"),
        ("norm=dyt", "placement=post", "seed=0"),
        ("norm=dyt", "placement=post", "seed=1"),
    ]
    several = {"norm": ["norm=layernorm", "norm=rmsnorm"], "placement": ["placement=pre"]}
    assert combined(arms[:1], several) == [("norm=none", "placement=pre")]
    check_typed(["norm", "seed"], [["norm=none"], ["placement=post"]])
    with pytest.raises(ConfigError, match=r"norm: each of .* has its own; add hydra\.sweeper\.arms=\[\] to"):
        check_typed(["seed", "norm"], arms)


@pytest.mark.long
def test_fresh_trains_each_run_once(trained, succeed):
    done = succeed("train.py", *trained, "norm=none", "fresh=true")
    run = re.compile(r"^ *(\d+)/(\d+) +(none-pre-s0-\w+)", re.MULTILINE)
    names = [match[3] for match in run.finditer(done.stdout)]
    assert len(names) == len(set(names)) == 4 + 2


@pytest.mark.slow
def test_a_run_without_the_halves_chooses_nothing(trained, command, succeed, tmp_path):
    first = next(f for f in tmp_path.glob("runs/*/metrics.jsonl") if "none-pre-s0-" in str(f))
    rows = [json.loads(line) for line in first.read_text().splitlines()]
    rows[-1].pop("val/select_loss")
    first.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_status(first.parent)["state"] == "finished"
    done = command("train.py", *trained, "norm=none")
    assert done.returncode == 1
    line = "it has no val/select_loss, by which settings are chosen; remove this folder, and the same command"
    assert f"{first.parent.name}: {line}" in done.stderr
    shutil.rmtree(first.parent)
    succeed("train.py", *trained, "norm=none")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argument", "line"),
    [
        (
            'hydra.sweeper.arms=[["train.eval_every=1"],["train.eval_every=2"]]',
            "several arms describe the same",
        ),
        ('hydra.sweeper.arms=[["model.init=gpt2"],["model.init=xavier"]]', "model.init is tuned"),
        ('hydra.sweeper.arms=[["seed=3"],["seed=4"]]', "all arms have the same seed"),
        ("+hydra.sweeper.tune.keys.optim='adamw,muon'", "optim cannot be tuned"),
        ("seed=a,b", "seed: invalid value 'a'"),
        ("seed=0,0", "seed: tuning needs 2 seeds"),
        (
            "hydra.sweeper.tune.rounds=[{trials: 1, steps: 1, seeds: 2}, {trials: 1, steps: 1, seeds: 1}]",
            "sort",
        ),
        ("hydra.sweeper.tune.rounds=[{trials: 0.5, steps: 1, seeds: 1}]", "give it trials: 1"),
        ("train.steps=ten", "train.steps: invalid value 'ten'"),
        ("train.steps=3.5", "train.steps: invalid value 3.5"),
        (
            "model.block_size=505",
            "validation split has 505 targets, one window of model.block_size=505; a fair",
        ),
        ("model.block_size=506", "the validation split has 506 tokens, but model.block_size=506 needs at"),
        ("optim.beta1=0.9,2", "optim.beta1=2"),  # of the trials of an arm
    ],
)
def test_an_unfair_comparison_is_refused_before_its_first_trial(command, fair, tmp_path, argument, line):
    done = command("train.py", *fair, argument)
    assert done.returncode == 1
    assert line in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_an_invalid_value_of_the_last_stage_is_refused_before_the_first_trial(command, fair, tmp_path):
    preset = tmp_path / "mine" / "experiment" / "small.yaml"
    preset.write_text(preset.read_text().replace('{seed: "10,11,12"}', '{seed: "10,11,12", optim.beta1: 2}'))
    check_refused(command("train.py", *fair), "optim.beta1: invalid value 2")
    assert not (tmp_path / "runs").exists()
