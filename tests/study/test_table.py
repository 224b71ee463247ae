"""What a study's table says, in a terminal, in Markdown, as JSON and as an exit status."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from data.errors import ConfigError
from study.files import write_once
from study.report import load, ordered, table_of
from study.table import SCHEMA, as_json, candidate, markdown, print_rows
from tests.conftest import ROOT
from tests.study.test_runs import write_run
from tests.study.test_statistics import BASE, OTHER, WORSE, a_study, judged

ARMS = {  # an arm of every outcome
    BASE: [2.00, 2.05, 1.98, 2.03],
    "norm=rmsnorm placement=pre": [1.90, 1.951, 1.88, 1.931],
    "norm=dyt placement=pre": [2.10, 2.151, 2.08, 2.131],
    "norm=derf placement=pre": [2.0002, 2.0499, 1.9801, 2.0298],
    "norm=groupnorm placement=pre norm.num_groups=4": [2.05, 2.07, 2.02, 2.10],
    "norm=none placement=pre": [2.9, 2.9, 2.9, None],
    "norm=batchnorm placement=pre": [1.5, 1.5, 1.5, 1.5],
}


def a_table(losses=None, warnings=(), row_changes=None, extended=False, **changes):
    losses = losses or ARMS
    study = a_study(*losses, comparisons=len(losses) - 1, **changes)
    rows = (
        judged(study, losses, leaks=["evaluation", "training"]) if losses is ARMS else judged(study, losses)
    )
    for title, each in (row_changes or {}).items():
        rows[title] = replace(rows[title], **each)
    return table_of(study, [*rows.values()], extended, {}, {}, warnings)


def printed(table, width=80):
    console = Console(file=io.StringIO(), width=width)
    print_rows(table, console)
    return console.file.getvalue()


def test_the_conclusion_comes_first():
    said = a_table().conclusion
    assert said.startswith(
        "Of 6 arms, 1 is better than layernorm pre, 1 worse, 1 equivalent, 1 open, 2 without"
    )
    assert printed(a_table(), 120).startswith(said)
    assert markdown(a_table()).startswith(said)
    assert a_table(WORSE).conclusion == "Of 1 arm, 1 is worse than layernorm pre."


def test_the_conclusion_names_the_baseline_once():
    table = a_table(WORSE, row_changes={OTHER: {"outcome": "open"}})
    assert table.conclusion == "Of 1 arm compared with layernorm pre, 1 is open."


def test_the_conclusion_of_a_map_and_of_several_baselines():
    assert a_table(verdicts=False).conclusion.endswith("declared to give no verdicts.")
    for verdicts in (True, False):
        alone = a_table({BASE: WORSE[BASE]}, verdicts=verdicts)
        assert alone.conclusion == "No arm is compared with another one."
        assert alone.caption == "Mean validation loss over 4 seeds."
    titles = [f"{title} model.n_layer={n}" for n in (2, 4) for title in (BASE, OTHER)]
    losses = dict(zip(titles, [*WORSE.values()] * 2, strict=True))
    table = a_table(losses, by=["model.n_layer"])
    assert table.conclusion == "Of 2 arms, 2 are worse than their baselines (by model.n_layer)."


@pytest.mark.parametrize("width", [50, 60, 80, 100, 200])
def test_a_table_fits_its_terminal(width):
    tuned = {"half_the_trials": 0.034, "settings": {"optim.learning_rate": 0.003}}
    text = printed(a_table(tune={"optim.learning_rate": "log 1e-3 1e-2"}, row_changes={OTHER: tuned}), width)
    lines = [line for line in text.splitlines() if not line.startswith("  python ablate.py")]
    assert max(map(len, lines)) <= width
    assert "…" not in text
    assert {*"LEAKS in evaluation and training".split()} <= {*text.partition("A verdict")[0].split()}
    for words in ("rmsnorm pre", "1.9155", "-0.0995", "better", "1 of 4"):
        assert words in text
    assert ("Left out for lack of room: settings" in text) == (width < 200)
    assert ("tokens/s" in text.partition("Left out")[0]) == (width == 200)


def test_what_limits_a_verdict_stands_under_the_table():
    for text in (printed(a_table(), 200), markdown(a_table())):
        assert "a verdict holds for the given settings" in text
        assert "The noise of the evaluation text is not in the interval." in text
    assert "may be open again" in printed(a_table(extended=True), 200)
    assert "half as many" in printed(a_table(tune={"optim.learning_rate": "log 1e-3 1e-2"}), 200)


def test_leaks_warnings_and_reasons_are_shown():
    text = markdown(a_table(warnings=["the compared runs differ in threads (1, 2)"]))
    assert "| -0.5150 | LEAKS in evaluation and training |" in text
    assert "- warning: the compared runs differ in threads (1, 2)\n" in text


def test_the_open_arm_that_needs_the_fewest_seeds_gets_a_command():
    sentence, command = a_table().advice
    assert sentence.startswith("groupnorm pre norm.num_groups=4 would need about 7 seeds")
    assert command == "python ablate.py study=norms extend=true"
    assert printed(a_table()).endswith(f"  {command}\n")
    _, command = a_table(extended=True).advice  # which happens once
    assert command == "python ablate.py study=norms name=norms_7_seeds seeds=7"
    assert a_table(WORSE).advice is None


def test_the_best_arm_comes_first_below_its_baseline():
    titles = [
        f"{title} model.n_layer={n}" for n in (2, 4) for title in (OTHER, "norm=l1 placement=pre", BASE)
    ]
    study = a_study(*titles, by=["model.n_layer"], baseline=titles[2])
    rows = judged(study, dict(zip(titles, ([2.1] * 4, [1.9] * 4, [2.0] * 4) * 2, strict=True)))
    expected = [titles[i] for i in (2, 1, 0, 5, 4, 3)]
    assert [row.title for row in ordered(study, [*rows.values()])] == expected


def test_json_has_the_study_and_a_row_an_arm():
    data = json.loads(json.dumps(as_json(a_table()), allow_nan=False))
    assert (data["schema"], data["version"]) == ("normgpt comparison", 1)
    assert data["study"]["schema"] == 1
    [row] = [arm for arm in data["arms"] if arm["title"] == OTHER]
    assert (row["title"], row["outcome"], row["leaks"]) == (OTHER, "better", [])
    assert row["keys"] == {"norm": "rmsnorm", "placement": "pre"}
    assert row["losses"] == {"10": 1.9, "11": 1.951, "12": 1.88, "13": 1.931}
    assert row["low"] < row["difference"] < row["high"] < 0


def test_json_is_of_the_published_form():
    file = ROOT / "docs" / "compare.schema.json"
    assert json.loads(file.read_text()) == SCHEMA.json_schema(), f"python -m study.table > {file}"
    SCHEMA.validate_json(json.dumps(as_json(a_table())))


@pytest.mark.parametrize(
    ("arm", "status"),
    [
        ("norm=rmsnorm placement=pre", 0),
        ("dyt pre", 10),
        ("norm=derf,placement=pre", 11),
        ("norm=groupnorm", 12),
        ("norm=none", 13),  # diverged
        ("norm=batchnorm", 13),  # leaks
    ],
)
def test_exit_statuses(arm, status):
    assert candidate(a_table(), arm)[0] == status


def test_a_leak_in_training_alone_leaves_the_verdict_on_validation_losses():
    table = a_table(row_changes={OTHER: {"leaks": ["training"]}})
    assert candidate(table, "rmsnorm pre") == (0, "rmsnorm pre: better; LEAKS in training (-0.0995)")


@pytest.mark.parametrize("arm", ["norm=layernorm", "norm=nothing", "placement=pre", "x"])
def test_a_candidate_is_one_arm(arm):
    with pytest.raises(ConfigError, match="name one of: .*rmsnorm pre, .*dyt pre"):
        candidate(a_table(), arm)


def test_a_study_is_read_and_judged(tmp_path):
    study = a_study(runs_dir=str(tmp_path / "runs"))
    chosen = {"arms": {}}
    for title, losses in WORSE.items():
        names = [f"{title.split()[0]}-{seed}" for seed in study.seeds]
        chosen["arms"][title] = {"runs": names, "settings": {}}
        for name, loss in zip(names, losses, strict=True):
            write_run(tmp_path / "runs" / name, loss, threads=2 if title == OTHER else 1)
    write_once(tmp_path / "study.json", study.model_dump(by_alias=True))
    write_once(tmp_path / "chosen.json", chosen)
    table = load(tmp_path)
    assert [row.title for row in table.rows] == [BASE, OTHER]
    assert table.conclusion == "Of 1 arm, 1 is worse than layernorm pre."
    assert table.warnings == ["the compared runs differ in threads (1, 2)"]
    assert table.rows[1].memory == 2**30
