"""What a study's table says, in a terminal, in Markdown, as JSON and as an exit status."""

import io
import json

import pytest
from rich.console import Console

from data.errors import ConfigError
from study.table import SCHEMA, as_json, candidate, markdown, print_rows
from tests.conftest import ROOT
from tests.helpers.studies import BASE, OTHER, RATE, TUNE, WORSE, a_table

LEAKING = "norm=batchnorm placement=pre"
ARMS = {  # an arm of every outcome
    BASE: [2.00, 2.05, 1.98, 2.03],
    OTHER: [1.90, 1.951, 1.88, 1.931],
    "norm=dyt placement=pre": [2.10, 2.151, 2.08, 2.131],
    "norm=derf placement=pre": [2.0002, 2.0499, 1.9801, 2.0298],
    "norm=groupnorm placement=pre norm.num_groups=4": [2.05, 2.07, 2.02, 2.10],
    "norm=none placement=pre": [2.9, 2.9, 2.9, None],
    LEAKING: [1.5, 1.5, 1.5, 1.5],
}


def all_outcomes(changes=None, **declared):
    leaks = {LEAKING: {"leaks": ["evaluation", "training"]}}
    return a_table(ARMS, leaks | (changes or {}), **declared)


def printed(table, width=200):
    console = Console(file=io.StringIO(), width=width)
    print_rows(table, console)
    return console.file.getvalue()


def test_the_conclusion_comes_first():
    said = all_outcomes().conclusion
    assert said.startswith(
        "Of 6 arms, 1 is better than layernorm pre, 1 worse, 1 equivalent, 1 open, 2 without"
    )
    assert printed(all_outcomes(), 120).startswith(said)
    assert markdown(all_outcomes()).startswith(said)


def test_the_conclusion_of_few_arms_of_a_map_and_of_several_baselines():
    assert a_table(WORSE).conclusion == "Of 1 arm, 1 is worse than layernorm pre."
    is_open = {BASE: WORSE[BASE], OTHER: [2.1, 2.0, 2.0, 2.0]}
    assert a_table(is_open).conclusion == "Of 1 arm compared with layernorm pre, 1 is open."
    assert all_outcomes(verdicts=False).conclusion.endswith("declared to give no verdicts.")
    alone = a_table({BASE: WORSE[BASE]})
    assert alone.conclusion == "No arm is compared with another one."
    assert alone.caption == "Mean validation loss over 4 seeds."
    titles = [f"{title} model.n_layer={n}" for n in (2, 4) for title in (BASE, OTHER)]
    losses = dict(zip(titles, [*WORSE.values()] * 2, strict=True))
    table = a_table(losses, by=["model.n_layer"], comparisons=2)
    assert table.conclusion == "Of 2 arms, 2 are worse than their baselines (by model.n_layer)."


@pytest.mark.parametrize("width", [50, 80, 200])
def test_a_table_fits_its_terminal(width):
    tuned = {OTHER: {"half_the_trials": 0.034, "settings": {RATE: 0.003}}}
    text = printed(all_outcomes(tune=TUNE, chosen=tuned), width)
    lines = [line for line in text.splitlines() if not line.startswith("  python ablate.py")]
    assert max(map(len, lines)) <= width
    assert "…" not in text
    assert {*"LEAKS in evaluation and training".split()} <= {*text.partition("A verdict")[0].split()}
    for words in ("rmsnorm pre", "1.9155", "-0.0995", "better", "1 of 4"):
        assert words in text
    assert ("Left out for lack of room: settings" in text) == (width < 200)
    assert ("tokens/s" in text.partition("Left out")[0]) == (width == 200)


def test_what_limits_a_verdict_stands_under_the_table():
    changes = {OTHER: {"conditions": {"threads": "2"}}}
    for text in (printed(all_outcomes(changes)), markdown(all_outcomes(changes))):
        assert "a verdict holds for the given settings" in text
        assert "The noise of the evaluation text is not in the interval." in text
        assert "warning: the compared runs differ in threads (1, 2)\n" in text
    assert "may be open again" in markdown(a_table({title: each * 2 for title, each in WORSE.items()}))
    assert "| -0.5150 | LEAKS in evaluation and training |" in markdown(all_outcomes())
    tuned = a_table(WORSE, metric="val/report_loss", tune=TUNE)
    assert "half as many" in markdown(tuned)
    assert "on the half of the text that tuning did not read" in tuned.caption


def test_the_open_arm_that_needs_the_fewest_seeds_gets_a_command():
    sentence, command = all_outcomes().advice
    assert sentence.startswith("groupnorm pre norm.num_groups=4 would need about 7 seeds")
    assert command == "python ablate.py study=norms extend=true"
    assert printed(all_outcomes()).endswith(f"  {command}\n")
    needed = next(row.seeds_needed for row in all_outcomes().rows if row.seeds_needed)
    assert needed < 7  # of a new study, whose level is not that of an extension
    _, command = all_outcomes(runs_dir="").advice  # published: it cannot be extended
    assert command == f"python ablate.py study=norms name=norms_{needed}_seeds seeds={needed}"
    assert a_table(WORSE).advice is None


def test_the_best_arm_comes_first_below_its_baseline():
    norms = (OTHER, "norm=l1 placement=pre", BASE)
    titles = [f"{title} model.n_layer={n}" for n in (2, 4) for title in norms]
    losses = dict(zip(titles, ([2.1] * 4, [1.9] * 4, [2.0] * 4) * 2, strict=True))
    table = a_table(losses, by=["model.n_layer"], baseline=titles[2])
    assert [row.title for row in table.rows] == [titles[i] for i in (2, 1, 0, 5, 4, 3)]


def test_json_has_the_study_and_a_row_an_arm_in_the_published_form():
    data = json.loads(json.dumps(as_json(all_outcomes()), allow_nan=False))
    SCHEMA.validate_python(data)
    assert (data["schema"], data["version"]) == ("normgpt comparison", 1)
    assert data["study"]["schema"] == 1
    [row] = [arm for arm in data["arms"] if arm["title"] == OTHER]
    assert (row["outcome"], row["leaks"]) == ("better", [])
    assert row["keys"] == {"norm": "rmsnorm", "placement": "pre"}
    assert row["losses"] == {"10": 1.9, "11": 1.951, "12": 1.88, "13": 1.931}
    assert row["low"] < row["difference"] < row["high"] < 0
    file = ROOT / "docs" / "compare.schema.json"
    schema = SCHEMA.json_schema(mode="serialization")
    assert json.loads(file.read_text()) == schema, f"python -m study.table > {file}"


def test_exit_statuses():
    table = all_outcomes()
    for arm, status in (
        (OTHER, 0),
        ("dyt pre", 10),
        ("norm=derf,placement=pre", 11),
        ("norm=groupnorm", 12),
        ("norm=none", 13),  # diverged
        ("norm=batchnorm", 13),  # leaks
    ):
        assert candidate(table, arm)[0] == status
    for arm in ("norm=layernorm", "norm=nothing", "placement=pre", "x"):
        with pytest.raises(ConfigError, match="name one of: .*rmsnorm pre, .*dyt pre"):
            candidate(table, arm)
    table = all_outcomes({OTHER: {"leaks": ["training"]}})  # the verdict is on validation losses
    assert candidate(table, "rmsnorm pre") == (0, "rmsnorm pre: better; LEAKS in training (-0.0995)")
