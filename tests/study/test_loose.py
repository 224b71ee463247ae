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
from tests.helpers.studies import BASE, OTHER, RATE, write_run
from training.identity import NOT_IN_IDENTITY, group_name

LAYER, RMS = [2.00, 2.05, 1.98], [1.90, 1.951, 1.88]
TWO = {BASE: LAYER, OTHER: RMS}


def write(folder, words="", loss=2.0, seed=0, tokens="f" * 64, edited="", **changes):
    """Write a run of a command line, as train.py would, that ended at ``loss``; None: it diverged."""
    overrides = tuple(words.split())
    config = configured(*overrides).model_copy(update={"seed": seed})
    precision = "fp32" if config.precision == "auto" else config.precision
    facts = {"group": group_name(config, precision, tokens) + edited, "precision": precision}
    facts |= {"data": {"fingerprint": tokens}, "overrides": [*overrides, f"seed={seed}"]}
    name = f"{facts['group']}-s{seed}"
    write_run(folder / name, loss, **facts, **changes)
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
    write_all(runs, TWO)
    base, row = table(runs).rows
    interval = stats.ttest_rel(RMS, LAYER).confidence_interval(0.95)
    assert (base.title, base.baseline, base.difference) == (BASE, None, None)
    assert (row.title, row.baseline, row.losses) == (OTHER, BASE, dict(enumerate(RMS)))
    assert (row.low, row.high) == pytest.approx((interval.low, interval.high))
    assert (row.mean, row.difference) == pytest.approx((np.mean(RMS), np.mean(RMS) - np.mean(LAYER)))
    assert table(runs).conclusion == (
        "6 runs in 2 groups; lowest mean validation loss: rmsnorm pre, 1.9103, -0.0997 [-0.1011, -0.0982] "
        "from layernorm pre."
    )


def test_there_are_no_verdicts(runs):
    write_all(runs, TWO)
    shown = table(runs)
    data = json.loads(json.dumps(as_json(shown), allow_nan=False))
    assert (data["study"], [arm["outcome"] for arm in data["arms"]]) == (None, [None, None])
    console = Console(file=io.StringIO(), width=200)
    print_rows(shown, console)
    for text in (console.file.getvalue(), markdown(shown)):
        assert "so there are no verdicts" in text
        assert not {"better", "worse", "equivalent", "open", "verdict"} & {*text.split()[:80]}


def test_two_pairs_have_an_interval_and_one_has_none(runs):
    write_all(runs, {BASE: LAYER, OTHER: RMS[:2], "norm=dyt": [2.2]})
    write(runs, "norm=none", 2.4, seed=9)
    found = rows(runs)
    assert (found[OTHER].low is None, found[OTHER].reason) == (False, None)
    one, unpaired = found["norm=dyt placement=pre"], found["norm=none placement=pre"]
    assert (one.difference, one.low) == (pytest.approx(0.2), None)
    assert (unpaired.difference, unpaired.reason) == (None, "no seed of the baseline")


def test_a_title_has_the_keys_in_which_groups_differ_but_no_copies(runs, tmp_path):
    arms = (
        "norm=layernorm",
        f"norm=layernorm {RATE}=1e-3",
        "norm=groupnorm",
        "norm=groupnorm norm.num_groups=2",
    )
    write_all(runs, {arm: [2.0] for arm in arms})
    groups = configured("norm=groupnorm").norm.options["num_groups"]
    assert {*rows(runs)} == {
        f"{BASE} {RATE}=0.003",
        f"{BASE} {RATE}=0.001",
        f"norm=groupnorm placement=pre norm.num_groups={groups} {RATE}=0.003",
        f"norm=groupnorm placement=pre norm.num_groups=2 {RATE}=0.003",
    }
    copies = {
        f"norm={n} model.qk_norm=same model.bias={b}": [2.0]
        for n in ("layernorm", "dyt")
        for b in ("true", "false")
    }
    write_all(tmp_path / "copies", copies)
    found = rows(tmp_path / "copies")
    assert {*found} == {key.replace("model.qk_norm=same", "placement=pre") for key in copies}
    assert found["norm=dyt placement=pre model.bias=true"].baseline == f"{BASE} model.bias=true"


def test_what_does_not_change_a_run_makes_no_groups_and_an_edited_norm_does(runs):
    write(runs, "train.log_every=5 wandb.mode=disabled train.eval_windows=8", seed=0)
    write(runs, "train.threads=1 stats.every=10 device=cpu runs_dir=elsewhere", seed=1)
    assert [*rows(runs)] == [BASE]
    write(runs, f"{OTHER} train.log_every=2")
    assert {*rows(runs)} == {BASE, OTHER}
    write(runs, OTHER, edited="0")
    _, *found = table(runs).rows
    assert len(found) == 2
    assert all(row.title.startswith(f"{OTHER} code=") and row.baseline == BASE for row in found)


def test_each_value_of_another_key_has_its_own_baseline(runs):
    write_all(runs, {f"{arm} model.n_layer={n}": [2.0] for arm in (BASE, OTHER) for n in (2, 4)})
    write(runs, f"{OTHER} model.n_layer=8")
    found = rows(runs)
    assert found[f"{OTHER} model.n_layer=4"].baseline == f"{BASE} model.n_layer=4"
    alone = found[f"{OTHER} model.n_layer=8"]
    assert (alone.baseline, alone.reason, verdict(alone)) == (None, "no baseline", "no baseline")


def test_the_baseline_can_be_named_and_one_of_several_has_to_be(runs, tmp_path):
    write_all(runs, TWO | {"norm=rmsnorm placement=post": RMS})
    found = rows(runs, baseline={"norm": "rmsnorm"})
    assert (found[BASE].baseline, found["norm=rmsnorm placement=post"].baseline) == (OTHER, None)
    found = rows(runs, baseline={"norm": "rmsnorm", "placement": "post"})
    assert {row.baseline for row in found.values()} == {None, "norm=rmsnorm placement=post"}
    write_all(tmp_path / "several", TWO | {f"{BASE} norm.eps=1e-3": LAYER})
    shown = table(tmp_path / "several")
    assert [row.baseline for row in shown.rows] == [None] * 3
    assert any("several groups are the baseline of rmsnorm pre" in line for line in shown.warnings)
    found = rows(tmp_path / "several", baseline={"norm": "layernorm", "norm.eps": "1e-3"})
    assert found[OTHER].baseline == f"{BASE} norm.eps=0.001"


def test_diverged_collapsed_and_leaking_runs_are_marked(runs):
    write_all(runs, {BASE: LAYER, OTHER: [1.9, None, 1.8]})
    write_all(runs, {"norm=none": [2.9]}, status={"collapsed": True, "final": 2.9})
    write_all(runs, {"norm=batchnorm": [1.0, 1.0]}, leak="eval")
    text = markdown(table(runs))
    for words in ("1 of 3 diverged", "1 of 1 collapsed", "LEAKS in evaluation"):
        assert words in text
    assert rows(runs)[OTHER].mean is None
    assert rows(runs, baseline={"norm": "rmsnorm"})[BASE].reason == "its baseline: a seed diverged"
    assert "lowest mean validation loss: layernorm pre, 2.0100." in table(runs).conclusion


def test_any_metric_is_compared_by_its_last_value(runs):
    write_all(runs, TWO, end={"act.cosine/00": -0.5})
    shown = table(runs, metric="act.cosine/00")
    assert (shown.rows[0].mean, shown.rows[1].difference) == (-0.5, 0)
    assert "lowest mean act.cosine/00: " in shown.conclusion
    assert table(runs, metric="train/tokens_per_s").rows[0].mean == 100


def test_the_advice_has_the_length_and_the_rate_of_the_runs(runs):
    """conf/study/norms.yaml has others than train.py by itself."""
    write_all(runs, TWO)
    config = configured()
    assert table(runs).advice[1] == (
        "python ablate.py study=norms name=mine norm=layernorm,rmsnorm placement=pre "
        f"train.steps={config.train.steps} optim.learning_rate={config.optim.learning_rate}"
    )
    preset = yaml.safe_load((CONF / "study" / "norms.yaml").read_text(encoding="utf-8"))["runs"]
    unnamed = {word.partition("=")[0] for word in preset.split()} - {*SET_BY_NORMS}
    assert {key.removeprefix("train.") for key in unnamed} <= NOT_IN_IDENTITY


# ---------------------------------------------------------------------------------------------------
# Which runs


def test_runs_are_found_in_folders_and_globs_once_each(runs, tmp_path):
    run = write(runs / "deep" / "er", BASE)
    write(runs / ".sweep", BASE, seed=1)
    write(runs / "findings", BASE, seed=2)
    (tmp_path / "link").symlink_to(runs)
    (runs / "notes").mkdir()
    shown = table(runs, run, tmp_path / "li*", runs / "deep")
    assert (len(shown.rows), len(shown.rows[0].seeds), shown.warnings) == (1, 1, [])
    shutil.copytree(run, tmp_path / "copy")
    again = f"{tmp_path / 'copy'}: skipped: it is the same run as {run}"
    assert table(runs, tmp_path / "copy").warnings == [again]
    assert table(runs / "findings").rows[0].seeds == [2]


def test_where_selects_runs_and_what_fits_none_is_refused(runs):
    write_all(runs, TWO | {"norm=none placement=post": RMS})
    assert {*rows(runs, where=["norm=layernorm,none", "placement=pre"])} == {BASE}
    assert {*rows(runs, where=["norm=r*", f"{RATE}=3e-3"])} == {OTHER}
    for options, line in (
        ({"where": ["norm"]}, "--where: 'norm' has no value; write KEY=VALUE"),
        ({"where": ["placment=pre"]}, "--where: no run has the key placment; did you mean placement"),
        ({"where": ["norm=nope"]}, "--where: no run has norm=nope; choose from norm=layernorm,none,rmsnorm"),
        ({"baseline": {"a.b": "3"}}, "--baseline: no group has a.b=3; the groups differ in norm, placement"),
        ({"metric": "val/los"}, r"\S+: no run here can be compared; .*it has no val/los \(and 8 more\)"),
    ):
        with pytest.raises(ConfigError, match=f"^{line}"):
            table(runs, **options)


def test_runs_of_other_data_context_or_length_are_compared_only_if_told(tmp_path):
    for word in ("train.steps=20", "model.block_size=8", "tokens"):
        name = word.partition("=")[0]
        runs = tmp_path / name
        write(runs, BASE)
        write(runs, OTHER, tokens="e" * 64) if word == "tokens" else write(runs, f"{OTHER} {word}")
        with pytest.raises(ConfigError, match=f"^{name}: differs .* with --where {name}=.*, or add --mixed"):
            table(runs)
        assert {row.reason for row in table(runs, mixed=True).rows} == {None, "no baseline"}
        assert len(table(runs, where=["norm=rmsnorm"]).rows) == 1
    write(tmp_path, BASE)
    write(tmp_path, f"{OTHER} train.eval_windows=8")  # matters only to losses that are measured in them
    found = [*tmp_path.glob("*norm-*")]
    assert len(table(*found).rows) == 2
    with pytest.raises(ConfigError, match=r"train\.eval_windows: differs"):
        table(*found, metric="val/loss")


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


# ---------------------------------------------------------------------------------------------------
# Damage


DAMAGE = [  # of a text, as a stranger or a full disk may leave it; None: the file is gone
    ("config.yaml", None),
    ("config.yaml", lambda text: ""),
    ("config.yaml", lambda text: text + "}"),
    ("config.yaml", lambda text: f"{text}x: !!python/object/apply:os.system [ls]"),
    ("config.yaml", lambda text: text.replace("seed: 0", "seed: true")),
    ("config.yaml", lambda text: text.replace("steps: ", "steps: 1.0e+308 #")),
    ("config.yaml", lambda text: f"{text}x: {'9' * 5000}"),
    ("status.json", lambda text: "[" * 100_000),
    ("metrics.jsonl", lambda text: text[:-30]),
    ("metrics.jsonl", None),
    ("environment.json", lambda text: text.replace('"group"', '"g"')),
]


def test_a_damaged_run_is_skipped_with_one_line(tmp_path, capsys):
    for number, (name, damage) in enumerate(DAMAGE):
        runs = tmp_path / str(number)
        write(runs, OTHER, 1.9)
        run = write(runs, BASE, 2.0)
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


def test_what_is_odd_about_runs_is_said_in_few_lines(runs, capsys):
    run = write(runs, BASE)
    (run / "metrics.jsonl").write_text("{\n" + (run / "metrics.jsonl").read_text())
    write(runs, OTHER, threads=2, packages={"torch": "2.12.0"})
    for seed in range(1, 10):
        write(runs, BASE, seed=seed, status={"state": "interrupted"})
    torch, threads, *skipped = table(runs).warnings
    assert torch == "the runs differ in torch (2.12.0, 2.13.0)"
    assert threads == "the runs differ in threads (1, 2)"
    assert (len(skipped), skipped[-1]) == (6, "4 more folders skipped")
    assert capsys.readouterr() == ("", f"{run / 'metrics.jsonl'}: 1 damaged rows are left out\n")
