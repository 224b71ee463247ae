"""Loose runs: groups that differ in their seed alone, paired differences, plain intervals, no verdicts."""

import io
import json
import shutil

import numpy as np
import pytest
import yaml
from rich.console import Console
from scipy import stats

from cli.errors import CONF
from data.errors import ConfigError
from study.loose import SET_BY_NORMS, load
from study.table import as_json, markdown, print_rows, verdict
from tests.conftest import configured
from tests.study.test_runs import write_run
from training.identity import NOT_IN_IDENTITY, group_name

BASE, RMS = [2.00, 2.05, 1.98], [1.90, 1.951, 1.88]
LAYER, OTHER = "norm=layernorm placement=pre", "norm=rmsnorm placement=pre"


def write(folder, words="", loss=2.0, seed=0, tokens="f" * 64, edited="", **changes):
    """Write a run of a command line, as train.py would, that ended at ``loss``; None: it diverged."""
    overrides = tuple(words.split())
    config = configured(*overrides).model_copy(update={"seed": seed})
    precision = "fp32" if config.precision == "auto" else config.precision
    facts = {"group": group_name(config, precision, tokens) + edited, "precision": precision}
    facts |= {"data": {"fingerprint": tokens}, "overrides": [*overrides, f"seed={seed}"]}
    name = f"{facts['group']}-s{seed}"
    write_run(folder / name, loss, [(0, 4.0)], **facts, **changes)
    (folder / name / "config.yaml").write_text(yaml.safe_dump(config.model_dump(by_alias=True)))
    return folder / name


def write_all(folder, arms, **options):
    for words, losses in arms.items():
        for seed, loss in enumerate(losses):
            write(folder, words, loss, seed, **options)


@pytest.fixture
def runs(tmp_path):
    return tmp_path / "runs"


def table(folder, *more, **options):
    return load([str(folder), *map(str, more)], **options)


def rows(folder, **options):
    return {row.title: row for row in table(folder, **options).rows}


# ---------------------------------------------------------------------------------------------------
# Groups and differences


def test_groups_are_compared_by_seed_with_a_plain_interval(runs):
    write_all(runs, {LAYER: BASE, OTHER: RMS})
    base, row = table(runs).rows
    interval = stats.ttest_rel(RMS, BASE).confidence_interval(0.95)
    assert (base.title, base.baseline, base.difference) == (LAYER, None, None)
    assert (row.title, row.baseline, row.losses) == (OTHER, LAYER, dict(enumerate(RMS)))
    assert (row.low, row.high) == pytest.approx((interval.low, interval.high))
    assert row.difference == pytest.approx(np.mean(RMS) - np.mean(BASE))
    assert row.mean == pytest.approx(np.mean(RMS))


def test_there_are_no_verdicts(runs):
    write_all(runs, {LAYER: BASE, OTHER: RMS})
    shown = table(runs)
    assert [row.outcome for row in shown.rows] == [None, None]
    console = Console(file=io.StringIO(), width=200)
    print_rows(shown, console)
    for text in (console.file.getvalue(), markdown(shown)):
        assert "so there are no verdicts" in text
        assert not {"better", "worse", "equivalent", "open", "verdict"} & {*text.split()[:80]}


def test_the_conclusion_is_a_sentence_of_numbers(runs):
    write_all(runs, {LAYER: BASE, OTHER: RMS})
    assert table(runs).conclusion == (
        "6 runs in 2 groups; lowest mean validation loss: rmsnorm pre, 1.9103, -0.0997 [-0.1011, -0.0982] "
        "from layernorm pre."
    )


def test_two_pairs_have_an_interval_and_one_has_none(runs):
    write_all(runs, {LAYER: BASE, OTHER: RMS[:2], "norm=dyt": [2.2], "norm=none": []})
    write(runs, "norm=none", 2.4, seed=9)
    found = rows(runs)
    assert (found[OTHER].low is None, found[OTHER].reason) == (False, None)
    one = found["norm=dyt placement=pre"]
    assert (one.difference, one.low) == (pytest.approx(0.2), None)
    unpaired = found["norm=none placement=pre"]
    assert (unpaired.difference, unpaired.reason) == (None, "no seed of the baseline")


def test_a_title_has_the_keys_in_which_groups_differ(runs):
    arms = ["norm=layernorm", "norm=layernorm optim.learning_rate=1e-3", "norm=groupnorm"]
    write_all(runs, {arm: [2.0] for arm in (*arms, "norm=groupnorm norm.num_groups=2")})
    rate = "optim.learning_rate"
    groups = configured("norm=groupnorm").norm.options["num_groups"]
    assert {*rows(runs)} == {
        f"{LAYER} {rate}=0.003",
        f"{LAYER} {rate}=0.001",
        f"norm=groupnorm placement=pre norm.num_groups={groups} {rate}=0.003",
        f"norm=groupnorm placement=pre norm.num_groups=2 {rate}=0.003",
    }


def test_a_copy_of_another_key_is_not_in_the_title(runs):
    words = "model.qk_norm=same model.bias"
    write_all(runs, {f"norm={n} {words}={b}": [2.0] for n in ("layernorm", "dyt") for b in ("true", "false")})
    found = rows(runs)
    assert {*found} == {
        f"norm={n} placement=pre model.bias={b}" for n in ("layernorm", "dyt") for b in ("true", "false")
    }
    assert found["norm=dyt placement=pre model.bias=true"].baseline == f"{LAYER} model.bias=true"


def test_what_does_not_change_a_run_makes_no_groups(runs):
    write(runs, "train.log_every=5 wandb.mode=disabled train.eval_windows=8", seed=0)
    write(runs, "train.threads=1 stats.every=10 device=cpu runs_dir=elsewhere", seed=1)
    assert [*rows(runs)] == [LAYER]

    write(runs, f"{OTHER} train.log_every=2")
    assert {*rows(runs)} == {LAYER, OTHER}


def test_an_edited_norm_is_a_group_of_its_own(runs):
    write_all(runs, {LAYER: [2.0], OTHER: [2.0]})
    write(runs, OTHER, edited="0")
    found = [row for row in table(runs).rows if row.title != LAYER]
    assert len(found) == 2
    assert all(row.title.startswith(f"{OTHER} code=") and row.baseline == LAYER for row in found)


def test_each_value_of_another_key_has_its_own_baseline(runs):
    write_all(runs, {f"{arm} model.n_layer={n}": [2.0] for arm in (LAYER, OTHER) for n in (2, 4)})
    write(runs, f"{OTHER} model.n_layer=8")
    found = rows(runs)
    assert found[f"{OTHER} model.n_layer=4"].baseline == f"{LAYER} model.n_layer=4"
    assert (found[f"{OTHER} model.n_layer=8"].baseline, found[f"{OTHER} model.n_layer=8"].reason) == (
        None,
        "no baseline",
    )


def test_the_baseline_can_be_named(runs):
    write_all(runs, {LAYER: BASE, OTHER: RMS, "norm=rmsnorm placement=post": RMS})
    found = rows(runs, baseline={"norm": "rmsnorm"})
    assert found[LAYER].baseline == OTHER
    assert found["norm=rmsnorm placement=post"].baseline is None
    found = rows(runs, baseline={"norm": "rmsnorm", "placement": "post"})
    assert {row.baseline for row in found.values()} == {None, "norm=rmsnorm placement=post"}


def test_one_of_several_baselines_has_to_be_named(runs):
    write_all(runs, {LAYER: BASE, f"{LAYER} norm.eps=1e-3": BASE, OTHER: RMS})
    shown = table(runs)
    assert [row.baseline for row in shown.rows] == [None] * 3
    assert any("several groups are the baseline of rmsnorm pre" in line for line in shown.warnings)
    named = {"norm": "layernorm", "norm.eps": "1e-3"}
    assert rows(runs, baseline=named)[OTHER].baseline == f"{LAYER} norm.eps=0.001"


def test_diverged_collapsed_and_leaking_runs_are_marked(runs):
    write_all(runs, {LAYER: BASE, OTHER: [1.9, None, 1.8]})
    write_all(runs, {"norm=none": [2.9]}, status={"collapsed": True, "final": 2.9})
    write_all(runs, {"norm=batchnorm": [1.0, 1.0]}, leak="eval")
    text = markdown(table(runs))
    assert "1 of 3 diverged" in text
    assert "1 of 1 collapsed" in text
    assert "LEAKS in evaluation" in text
    assert rows(runs)[OTHER].mean is None
    assert rows(runs, baseline={"norm": "rmsnorm"})[LAYER].reason == "its baseline: a seed diverged"
    assert "lowest mean validation loss: layernorm pre, 2.0100." in table(runs).conclusion


def test_a_group_without_a_baseline_is_none(runs):
    write(runs, OTHER)
    assert verdict(table(runs).rows[0]) == "no baseline"
    write(runs, LAYER)
    assert verdict(table(runs).rows[0]) == "baseline"


def test_any_metric_is_compared_by_its_last_value(runs):
    write_all(runs, {LAYER: BASE, OTHER: RMS}, end={"act.cosine/00": -0.5})
    shown = table(runs, metric="act.cosine/00")
    assert (shown.rows[0].mean, shown.rows[1].difference) == (-0.5, 0)
    assert "lowest mean act.cosine/00: " in shown.conclusion
    assert table(runs, metric="train/tokens_per_s").rows[0].mean == 100
    with pytest.raises(ConfigError, match=r"no run here can be compared; .*it has no val/los \(and 5 more\)"):
        table(runs, metric="val/los")


def test_the_advice_has_the_length_and_the_rate_of_the_runs(runs):
    """conf/study/norms.yaml has others than train.py by itself."""
    write_all(runs, {LAYER: BASE, OTHER: RMS})
    config = configured()
    assert table(runs).advice[1] == (
        "python ablate.py study=norms name=mine norm=layernorm,rmsnorm placement=pre "
        f"train.steps={config.train.steps} optim.learning_rate={config.optim.learning_rate}"
    )
    preset = yaml.safe_load((CONF / "study" / "norms.yaml").read_text(encoding="utf-8"))["runs"]
    unnamed = {word.partition("=")[0] for word in preset.split()} - {*SET_BY_NORMS}
    assert {key.removeprefix("train.") for key in unnamed} <= NOT_IN_IDENTITY


def test_conditions_that_differ_are_named_in_a_line_each(runs):
    write(runs, LAYER)
    write(runs, OTHER, threads=2, packages={"torch": "2.12.0"})
    assert table(runs).warnings == [
        "the runs differ in torch (2.12.0, 2.13.0)",
        "the runs differ in threads (1, 2)",
    ]


def test_json_has_no_study(runs):
    write_all(runs, {LAYER: BASE, OTHER: RMS})
    data = json.loads(json.dumps(as_json(table(runs)), allow_nan=False))
    assert data["study"] is None
    assert [arm["outcome"] for arm in data["arms"]] == [None, None]
    assert data["arms"][1]["keys"] == {"norm": "rmsnorm", "placement": "pre"}


# ---------------------------------------------------------------------------------------------------
# Which runs


def test_runs_are_found_in_folders_and_globs_once_each(runs, tmp_path):
    run = write(runs / "deep" / "er", LAYER)
    write(runs / ".sweep", LAYER, seed=1)
    write(runs / "findings", LAYER, seed=2)
    (tmp_path / "link").symlink_to(runs)
    (runs / "notes").mkdir()
    shown = table(runs, run, tmp_path / "li*", runs / "deep")
    assert (len(shown.rows), len(shown.rows[0].seeds), shown.warnings) == (1, 1, [])
    shutil.copytree(run, tmp_path / "copy")
    again = f"{tmp_path / 'copy'}: skipped: it is the same run as {run}"
    assert table(runs, tmp_path / "copy").warnings == [again]
    assert table(runs / "findings").rows[0].seeds == [2]


def test_where_selects_runs(runs):
    write_all(runs, {LAYER: BASE, OTHER: RMS, "norm=none placement=post": RMS})
    assert {*rows(runs, where=["norm=layernorm,none", "placement=pre"])} == {LAYER}
    assert {*rows(runs, where=["norm=r*", "optim.learning_rate=3e-3"])} == {OTHER}


def test_what_fits_no_run_is_refused(runs):
    write_all(runs, {LAYER: [2.0], OTHER: [2.0]})
    for options, line in (
        ({"where": ["norm"]}, "--where: 'norm' has no value; write KEY=VALUE"),
        ({"where": ["placment=pre"]}, "--where: no run has the key placment; did you mean placement"),
        ({"where": ["norm=nope"]}, "--where: no run has norm=nope; choose from norm=layernorm,rmsnorm"),
        ({"baseline": {"a.b": "3"}}, "--baseline: no group has a.b=3; the groups differ in norm, placement"),
    ):
        with pytest.raises(ConfigError, match=f"^{line}"):
            table(runs, **options)


@pytest.mark.parametrize("word", ["train.steps=20", "model.block_size=8", "tokens"])
def test_runs_of_other_data_context_or_length_are_compared_only_if_told(runs, word):
    write(runs, LAYER)
    write(runs, OTHER, tokens="e" * 64) if word == "tokens" else write(runs, f"{OTHER} {word}")
    name = word.partition("=")[0]
    with pytest.raises(ConfigError, match=f"^{name}: differs .* by --where {name}=.*, or add --mixed"):
        table(runs)
    assert {row.reason for row in table(runs, mixed=True).rows} == {None, "no baseline"}
    assert len(table(runs, where=["norm=rmsnorm"]).rows) == 1


def test_evaluation_windows_matter_only_to_losses_that_are_measured_in_them(runs):
    write(runs, LAYER)
    write(runs, f"{OTHER} train.eval_windows=8")
    assert len(table(runs).rows) == 2
    with pytest.raises(ConfigError, match=r"train\.eval_windows: differs"):
        table(runs, metric="val/loss")


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda folder: None, "no such folder; train some runs"),
        (lambda folder: folder.with_name("run").mkdir(), r"no such folder; did you mean .*/run\?"),
        (lambda folder: folder.mkdir(), "no run here; train one first"),
        (lambda folder: write(folder, status={"state": "running"}), r"it has not ended \(running\)"),
    ],
)
def test_without_runs_there_is_no_table(runs, make, line):
    make(runs)
    with pytest.raises(ConfigError, match=line):
        table(runs)


def test_a_folder_of_studies_names_them(tmp_path):
    (tmp_path / "norms").mkdir()
    (tmp_path / "norms" / "study.json").write_text("{}")
    with pytest.raises(ConfigError, match=f"name one of them: {tmp_path / 'norms'}"):
        table(tmp_path)


# ---------------------------------------------------------------------------------------------------
# Damage


DAMAGE = {  # of a text, as a stranger or a full disk may leave it; None: the file is gone
    "no config": ("config.yaml", None),
    "an empty config": ("config.yaml", lambda text: ""),
    "a list": ("config.yaml", lambda text: "[1, 2]"),
    "no YAML": ("config.yaml", lambda text: text + "}"),
    "a Python object": ("config.yaml", lambda text: f"{text}x: !!python/object/apply:os.system [ls]"),
    "a seed of true": ("config.yaml", lambda text: text.replace("seed: 0", "seed: true")),
    "steps": ("config.yaml", lambda text: text.replace("steps: ", "steps: 1.0e+308 #")),
    "a number of 5,000 digits": ("config.yaml", lambda text: f"{text}x: {'9' * 5000}"),
    "a status of brackets": ("status.json", lambda text: "[" * 100_000),
    "another final loss": ("status.json", lambda text: text.replace("2.0", "1.0")),
    "a cut last row": ("metrics.jsonl", lambda text: text[:-30]),
    "no rows": ("metrics.jsonl", None),
    "no group": ("environment.json", lambda text: text.replace('"group"', '"g"')),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_run_is_skipped_with_one_line(runs, case, capsys):
    name, damage = DAMAGE[case]
    write(runs, OTHER, 1.9)
    run = write(runs, LAYER, 2.0)
    text = (run / name).read_text()
    (run / name).unlink()
    if damage:
        (run / name).write_text(damage(text))
    shown = table(runs)
    [row], [warning] = shown.rows, shown.warnings
    assert (row.title, row.losses) == (OTHER, {0: 1.9})
    assert warning.startswith(f"{run}: skipped: ")
    assert warning.isprintable()
    assert capsys.readouterr().out == ""  # which may be JSON


def test_a_damaged_row_before_the_end_is_said_on_stderr(runs, capsys):
    run = write(runs, LAYER)
    (run / "metrics.jsonl").write_text("{\n" + (run / "metrics.jsonl").read_text())
    assert table(runs).rows[0].losses == {0: 2.0}
    assert capsys.readouterr() == ("", f"{run / 'metrics.jsonl'}: 1 damaged rows are left out\n")


def test_of_many_skipped_folders_five_are_named(runs):
    write(runs, LAYER)
    for seed in range(1, 10):
        write(runs, LAYER, seed=seed, status={"state": "interrupted"})
    lines = table(runs).warnings
    assert len(lines) == 6
    assert lines[-1] == "4 more folders skipped"
