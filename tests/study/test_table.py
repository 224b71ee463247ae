"""What a study's table says, in a terminal, in Markdown, as JSON and as an exit status."""

import io
import json

import pytest
from rich.console import Console

from data.errors import ConfigError
from study.files import write_once
from study.report import judged, load
from study.table import SCHEMA, as_json, candidate, markdown, print_rows
from tests.conftest import ROOT
from tests.study.test_runs import write_run
from tests.study.test_statistics import BASE, OTHER, WORSE, a_run, a_study

LEAKING = ["evaluation", "training"]
RATE = {"optim.learning_rate": 0.003}
ARMS = {  # an arm of every outcome
    BASE: [2.00, 2.05, 1.98, 2.03],
    "norm=rmsnorm placement=pre": [1.90, 1.951, 1.88, 1.931],
    "norm=dyt placement=pre": [2.10, 2.151, 2.08, 2.131],
    "norm=derf placement=pre": [2.0002, 2.0499, 1.9801, 2.0298],
    "norm=groupnorm placement=pre norm.num_groups=4": [2.05, 2.07, 2.02, 2.10],
    "norm=none placement=pre": [2.9, 2.9, 2.9, None],
    "norm=batchnorm placement=pre": [1.5, 1.5, 1.5, 1.5],
}


def a_table(losses=None, *, extended=False, changes=None, tried=None, **declared):
    """Return the table of a study.

    Args:
        losses: of each arm, by seed; of ARMS, the last arm leaks.
        changes: of each run of an arm, by title. tried: the arms of chosen.json; they have the trials.
    """
    changes = changes or ({} if losses else {"norm=batchnorm placement=pre": {"leaks": LEAKING}})
    losses = losses or ARMS
    study = a_study(*losses, **declared)
    seeds = study.seeds + study.further_seeds * extended
    runs = {
        f"{title} {seed}": a_run(loss, **changes.get(title, {}))
        for title, each in losses.items()
        for seed, loss in zip(seeds, each * (1 + extended), strict=False)
    }
    named = {title: [f"{title} {seed}" for seed in study.seeds] for title in losses}
    chosen = {
        title: {"settings": {}} | (tried or {}).get(title, {}) | {"runs": names}
        for title, names in named.items()
    }
    further = {title: [f"{title} {seed}" for seed in study.further_seeds] for title in losses}
    doubled = {"seeds": study.further_seeds, "runs": further} if extended else None
    return judged((study, {"arms": chosen}, doubled, runs, []))


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
    table = a_table({BASE: WORSE[BASE], OTHER: [2.1, 2.0, 2.0, 2.0]})
    assert table.conclusion == "Of 1 arm compared with layernorm pre, 1 is open."


def test_the_conclusion_of_a_map_and_of_several_baselines():
    assert a_table(verdicts=False).conclusion.endswith("declared to give no verdicts.")
    for verdicts in (True, False):
        alone = a_table({BASE: WORSE[BASE]}, verdicts=verdicts)
        assert alone.conclusion == "No arm is compared with another one."
        assert alone.caption == "Mean validation loss over 4 seeds."
    titles = [f"{title} model.n_layer={n}" for n in (2, 4) for title in (BASE, OTHER)]
    losses = dict(zip(titles, [*WORSE.values()] * 2, strict=True))
    table = a_table(losses, by=["model.n_layer"], comparisons=2)
    assert table.conclusion == "Of 2 arms, 2 are worse than their baselines (by model.n_layer)."


@pytest.mark.parametrize("width", [50, 60, 80, 100, 200])
def test_a_table_fits_its_terminal(width):
    tuned = {OTHER: {"half_the_trials": 0.034, "settings": RATE}}
    text = printed(a_table(tune={"optim.learning_rate": "log 1e-3 1e-2"}, tried=tuned), width)
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
    changes = {OTHER: {"conditions": {"threads": "2"}}, "norm=batchnorm placement=pre": {"leaks": LEAKING}}
    text = markdown(a_table(changes=changes))
    assert "| -0.5150 | LEAKS in evaluation and training |" in text
    assert "- warning: the compared runs differ in threads (1, 2)\n" in text


def test_the_open_arm_that_needs_the_fewest_seeds_gets_a_command():
    sentence, command = a_table().advice
    assert sentence.startswith("groupnorm pre norm.num_groups=4 would need about 7 seeds")
    assert command == "python ablate.py study=norms extend=true"
    assert printed(a_table()).endswith(f"  {command}\n")
    needed = next(row.seeds_needed for row in a_table().rows if row.seeds_needed)
    assert needed < 7  # of a new study, whose level is not that of an extension
    _, command = a_table(runs_dir="").advice  # published: it cannot be extended
    assert command == f"python ablate.py study=norms name=norms_{needed}_seeds seeds={needed}"
    assert a_table(WORSE).advice is None


def test_the_best_arm_comes_first_below_its_baseline():
    titles = [
        f"{title} model.n_layer={n}" for n in (2, 4) for title in (OTHER, "norm=l1 placement=pre", BASE)
    ]
    losses = dict(zip(titles, ([2.1] * 4, [1.9] * 4, [2.0] * 4) * 2, strict=True))
    table = a_table(losses, by=["model.n_layer"], baseline=titles[2])
    assert [row.title for row in table.rows] == [titles[i] for i in (2, 1, 0, 5, 4, 3)]


def test_the_caption_says_which_half_of_the_text():
    half = a_table(metric="val/report_loss").caption
    assert "loss on half of the text over 4 seeds" in half
    tuned = a_table(metric="val/report_loss", tune={"optim.learning_rate": "log 1e-3 1e-2"}).caption
    assert "on the half of the text that tuning did not read" in tuned


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
    assert json.loads(file.read_text()) == SCHEMA.json_schema(mode="serialization"), (
        f"python -m study.table > {file}"
    )
    SCHEMA.validate_json(json.dumps(as_json(a_table())))


def test_exit_statuses():
    table = a_table()
    for arm, status in (
        ("norm=rmsnorm placement=pre", 0),
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


def test_a_leak_in_training_alone_leaves_the_verdict_on_validation_losses():
    table = a_table(changes={OTHER: {"leaks": ["training"]}})
    assert candidate(table, "rmsnorm pre") == (0, "rmsnorm pre: better; LEAKS in training (-0.0995)")


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
