"""The command that a sweep prints compares its runs, whatever else is in their folder."""

import json
import shlex
from pathlib import Path

import pytest

from comparison import commands
from comparison.groups import group_runs
from comparison.load import load
from comparison.published import load_all
from comparison.report import build_report
from tests.comparison.runs import FAR, fair_runs, role
from tests.helpers.run_folders import FACTS, made

NORMS = ("layernorm", "none")


def compared_by(command: str) -> set[Path]:
    """Return the runs that a command compares."""
    python, program, folder, *options = shlex.split(command)
    assert (python, program) == ("python", "compare.py")
    assert {*options[::2]} <= {"--where"}
    return {run.folder for run in build_report(load_all([folder])[0], where=options[1::2]).runs}


@pytest.mark.parametrize(
    "others",
    [
        ("train.steps=10",),
        ("train.steps=10", "model.block_size=32", "train.batch_size=99"),
        ("data=text data.path=other.txt",),
        ("data.tokenizer=bpe data.vocab_size=2048",),
    ],
)
def test_runs_of_another_length_or_text_are_left_out(tmp_path, others):
    sweep = {made(tmp_path, f"norm={norm}", "train.steps=20") for norm in NORMS}
    trial = {"roles": [role("trial", "a tuning")]}
    trials = {made(tmp_path, f"norm={norm}", "train.steps=5", **trial) for norm in NORMS}
    for other in others:
        data = {"data": FACTS | {"fingerprint": "e" * 64}} if "data" in other else {}
        made(tmp_path, "train.steps=20", "norm=dyt", *other.split(), **data)
    (tmp_path / "no run").mkdir()
    assert compared_by(commands.compare(sweep | trials)) == sweep


def test_runs_of_the_same_length_and_text_stay_in(tmp_path):
    sweep, other = {made(tmp_path, "norm=none")}, {made(tmp_path, "norm=dyt")}
    assert commands.compare(sweep) == f"python compare.py {tmp_path}"
    assert compared_by(commands.compare(sweep)) == sweep | other


def test_the_longest_runs_of_a_sweep_over_lengths_are_compared(tmp_path):
    lengths = [made(tmp_path, f"train.steps={steps}", f"norm={norm}") for steps in (10, 20) for norm in NORMS]
    assert compared_by(commands.compare(lengths)) == {*lengths[2:]}


def test_runs_that_see_as_many_tokens_in_more_steps_are_compared(tmp_path):
    made(tmp_path, "train.steps=5")
    lengths = ("train.steps=20", "train.steps=40 train.batch_size=16")
    equal = {made(tmp_path, *each.split()) for each in lengths}
    assert compared_by(commands.compare(equal)) == equal


def test_damaged_runs_are_passed_over(tmp_path):
    sweep = {made(tmp_path, f"norm={norm}") for norm in NORMS}
    for number, content in enumerate(("damaged: {}", "data: {path: [a, b]}", "[", "")):
        damaged = made(tmp_path, f"train.steps={number}")
        (damaged / "config.yaml").write_text(content)
        sweep.add(damaged)
    old = made(tmp_path, "train.steps=9")
    environment = json.loads((old / "environment.json").read_text())
    (old / "environment.json").write_text(json.dumps({k: v for k, v in environment.items() if k != "group"}))
    sweep.add(old)
    assert len(compared_by(commands.compare(sweep))) == len(NORMS)


def test_a_sweep_of_arms_that_another_sweep_tuned_is_compared_by_its_own_folders(tmp_path):
    tuned = fair_runs(tmp_path / "other", "none", FAR, [1.5, 1.6, 1.71])
    for run in tuned:
        run.folder.rename(tmp_path / run.folder.name)
    sweep = {made(tmp_path, "norm=none", "train.steps=20", f"seed={seed}") for seed in range(3)}
    command = shlex.split(commands.compare(sweep))
    assert command == ["python", "compare.py", *sorted(map(str, sweep))]
    assert {run.folder for run in build_report(load_all(command[2:])[0]).runs} == sweep


def test_trials_alone_have_no_command(tmp_path):
    made(tmp_path, "norm=dyt")
    trials = [made(tmp_path, f"norm={norm}", roles=[role("trial", "a tuning")]) for norm in NORMS]
    assert commands.compare(trials) == ""


def test_the_command_of_an_earlier_run_gives_the_defaults_of_that_time(tmp_path):
    words = ["norm=none", "train.steps=10", "optim.learning_rate=2e-3", "model.init_scale=1.0"]
    folders = [made(tmp_path, *words, f"seed={seed}") for seed in range(3)]
    runs = [load(folder)[0] for folder in folders]
    for run in runs:
        run.environment["overrides"] = ["norm=none", f"seed={run.seed}", "optim.learning_rate=2e-3"]
    given = "norm=none seed=0 optim.learning_rate=2e-3".split()
    _, _, *arguments = shlex.split(commands.rerun(runs[0]))
    assert arguments[:3] == given
    assert {*arguments[3:]} == {
        "train.steps=10",
        f"train.eval_every={runs[0].config['train.eval_every']}",
        "schedule.warmup_fraction=0.1",
        "model.init_scale=1.0",
    }
    more = commands.more_seeds(group_runs(runs, "val/full_loss"), 4)
    assert "train.steps=10" in more
    assert "model.init_scale=1.0" in more
    today, _ = load(made(tmp_path, "norm=none", "seed=7"))
    today.environment["overrides"] = ["norm=none", "seed=7"]
    assert commands.rerun(today) == "python train.py norm=none seed=7"
