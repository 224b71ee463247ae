"""Warnings name what a mean would hide, with the numbers, and copies of runs."""

import csv
import json
import re
import shutil
from html import unescape

import numpy as np
import pytest

from comparison.doubts import has_two_parts
from comparison.drawing.page import certificates, page
from comparison.groups import ComparisonError
from comparison.load import load
from comparison.report import Report, build_report
from comparison.table import cells
from comparison.two_runs import render
from comparison.write import run_row, write_report
from tests.comparison.runs import several
from tests.helpers import programs
from tests.helpers.contract import check_refused
from tests.helpers.run_folders import ASKED, CLEAN, made

BASE = [2.00, 2.05, 1.95, 2.02, 1.98]
TRAIN_ONLY = {"train": {"future": 0.4, "rows": 0.4}, "eval": {"future": 0.0, "rows": 0.0}}
BOTH = {"train": {"future": 0.4, "rows": 0.4}, "eval": {"future": 0.1, "rows": 0.0}}
NO_LEAK = {mode: {"future": 0.0, "rows": 0.0} for mode in ("train", "eval")}
TINY_LEAK = {"train": {"future": 0.0, "rows": 0.0, "future_gradient": 1e-7}, "eval": TRAIN_ONLY["eval"]}


def report_of(folder, losses, baseline=BASE, **options) -> Report:
    return build_report(several(folder, {"norm=layernorm": baseline, "norm=none": losses}), **options)


def cells_of(report: Report, norm="none") -> dict[str, str]:
    return next(line for line in cells(report) if line["norm"] == norm)


SHAPES = {
    "one diverged": (
        [1.95, 1.96, None, 1.97, 1.98],
        "none: seed 2 diverged; 4 of 5 finished, at 1.95, 1.96, 1.97, 1.98 (mean 1.965 ± 0.021)",
        ("—", "0 of 5", "diverged 1 of 5"),
    ),
    "two heaps": (
        [1.50, 2.50, 1.51, 2.51, 1.52],
        "none: its seeds fall into two parts, so the mean and ± describe neither: val/full_loss is "
        "1.5, 1.51, 1.52, 2.5, 2.51",
        ("1.9080 ± 0.6768", "5", "not distinguishable at 5 seeds"),
    ),
    "one collapsed": (
        [2.01, 3.20, 1.99],
        "none: seed 1 collapsed (ended less than half of the way from its initial loss down to the best "
        "seed's), so the mean and ± describe no seed: val/full_loss is 1.99, 2.01, 3.2",
        ("2.4000 ± 1.7212", "3", "not distinguishable at 3 seeds"),
    ),
}


@pytest.mark.parametrize(("losses", "warning", "shown"), SHAPES.values(), ids=SHAPES)
def test_what_a_mean_would_hide_is_said_with_the_numbers(tmp_path, losses, warning, shown):
    report = report_of(tmp_path, losses)
    assert report.warnings == [warning]
    line = cells_of(report)
    assert (line["val/full_loss"], line["seeds"], line["verdict"].partition(";")[0]) == shown


def test_a_seed_that_finished_without_the_metric_is_named_and_does_not_count(tmp_path):
    runs = several(tmp_path, {"norm=layernorm": BASE, "norm=none": BASE}, curve={5: {"val/x": 1.5}})
    file = runs[-1].folder / "metrics.jsonl"
    file.write_text(file.read_text().replace("1.5", '"NaN"'))
    report = build_report([*runs[:-1], load(runs[-1].folder)[0]], "val/x")
    assert report.warnings == ["none: left out: seed 4, finished without a number for val/x"]
    assert [line["seeds"] for line in cells(report)] == ["5", "4 of 5"]


def test_normal_noise_is_rarely_taken_for_two_parts_and_two_parts_are_found():
    rng = np.random.default_rng(0)
    for seeds in (5, 6, 20):
        normal = rng.standard_normal((1000, seeds))
        assert np.mean([has_two_parts(values) for values in normal]) < 0.025
        heaps = normal + 20 * (np.arange(seeds) < 2)
        assert np.mean([has_two_parts(values) for values in heaps]) > 0.5
    assert not has_two_parts([1.0, 1.0, 1.0, 9.0])
    assert not has_two_parts([1.0] * 6)


@pytest.mark.parametrize(
    ("leaks", "metric", "verdict"),
    [
        (TRAIN_ONLY, "train/loss", "no verdict: it LEAKS in training"),
        (TINY_LEAK, "train/loss", "no verdict: it LEAKS in training"),
        (TRAIN_ONLY, "val/batch_stats_gap", "no verdict: it LEAKS in training"),
        (TRAIN_ONLY, "val/full_loss", "better"),
        (TRAIN_ONLY, "train/tokens_per_s", "higher"),
        (BOTH, "val/full_loss", "no verdict: it LEAKS in validation"),
        ({}, "val/full_loss", "no verdict: it LEAKS in validation"),
    ],
)
def test_a_leaking_arm_has_numbers_and_no_verdict_on_what_the_leak_makes_better(
    tmp_path, leaks, metric, verdict
):
    runs = []
    for norm, level in (("layernorm", 2.0), ("none", 1.0)):
        for seed, noise in enumerate((0.0, 0.01, 0.03)):
            loss = level * (1 + noise)
            numbers = {"train/loss": loss, "val/batch_stats_gap": loss, "train/tokens_per_s": 9 - loss}
            folder = made(tmp_path, f"norm={norm}", f"seed={seed}", final=loss, curve={1000: numbers})
            if norm == "none":
                answer = CLEAN | {"causal": False, "reason": None if leaks else "it stopped"} | leaks
                (folder / "certificate.json").write_text(json.dumps({"start": answer, "end": answer}))
            runs.append(load(folder)[0])
    report = build_report(runs, metric)
    line = cells_of(report)
    assert (line["verdict"], line["leaks"]) == (verdict, "LEAKS")
    assert "—" not in (line[metric], line["difference"])
    against = build_report(runs, metric, baseline={"norm": "none"})
    expected = {"better": "worse", "higher": "lower"}.get(verdict, verdict.replace("it", "the baseline"))
    assert cells_of(against, "layernorm")["verdict"] == expected


SOME = {
    "train": ASKED["train"] | {"cuts": 64, "all_cuts": 1023},
    "eval": ASKED["eval"] | {"cuts": 32, "all_cuts": 1023},
}
CERTIFICATES = {
    "missing": (None, "not tested"),
    "null": ({"start": CLEAN | NO_LEAK | {"causal": None}, "end": None}, "not known"),
    "null, with a reason": (
        {"start": CLEAN | {"causal": None, "reason": "it fails"}, "end": None},
        "not known",
    ),
    "earlier": ({key: CLEAN[key] for key in CLEAN if key != "asked"} | NO_LEAK, "tested at 4 positions"),
    "of some positions": (
        {"start": CLEAN, "end": CLEAN | {"asked": SOME} | NO_LEAK},
        "tested at 32 of 1,023 positions",
    ),
    "of the start": ({"start": CLEAN, "end": None}, "tested at the start only"),
}


@pytest.mark.parametrize(("content", "mark"), CERTIFICATES.values(), ids=CERTIFICATES)
def test_a_run_without_a_full_certificate_is_marked_wherever_it_appears(tmp_path, content, mark):
    runs = several(tmp_path / "runs", {"norm=layernorm": [2.0, 2.1], "norm=none": [2.0, 2.1]})
    file = runs[-1].folder / "certificate.json"
    file.unlink() if content is None else file.write_text(json.dumps(content))
    runs[-1] = load(runs[-1].folder)[0]
    report = build_report(runs)
    assert cells_of(report)["leaks"] == mark
    assert report.warnings == [f"none: whether it leaks was not fully tested ({mark})"]
    assert certificates(report)[1]["verdict"] == f"causal, {mark}"
    assert [run_row(run, report)["causality"] for run in runs] == ["causal"] * 3 + [mark]
    text = [str(part) for part in render(runs[0], runs[-1]).renderables[1:]]
    assert f"{runs[-1].name}: does it leak? {mark}" in text


@pytest.mark.parametrize("kind", ["memory", "rows_gradient", "rows_compiled"])
def test_the_table_of_leaks_shows_a_leak_of_any_kind(tmp_path, kind):
    odd = {"future_compiled": "a stranger's word"}
    leak = {"independent_rows": False, "eval": NO_LEAK["eval"] | {kind: 0.25} | odd}
    [run] = several(tmp_path, {"norm=none": [2.0]})
    run.certificate = {"start": CLEAN | NO_LEAK | leak, "end": None}
    [cells_of_run] = certificates(build_report([run]))
    assert (cells_of_run["other rows, eval"], cells_of_run["verdict"]) == ("0.25", "LEAKS")
    assert cells_of_run["later tokens, eval"] == "0"


def copied(folder, to, loss=2.1):
    """Copy a run to another name, with another loss."""
    copy = shutil.copytree(folder, to)
    text = (copy / "metrics.jsonl").read_text()
    (copy / "metrics.jsonl").write_text(
        text.replace("2.1", str(loss)).replace('"seconds": 1', '"seconds": 2')
    )
    return copy


def test_a_copy_is_used_once_and_two_results_of_one_run_are_refused(tmp_path):
    runs = [
        run.folder for run in several(tmp_path / "runs", {"norm=layernorm": BASE, "norm=none": [2.1] * 5})
    ]
    copy = copied(runs[-1], tmp_path / "runs" / "copy")
    report = build_report([load(folder)[0] for folder in [*runs, copy]])
    assert report.passed_over == [f"{copy}: the same run as {runs[-1]}, with the same results; used once"]
    assert [line["seeds"] for line in cells(report)] == ["5", "5"]
    edited = copied(runs[-1], tmp_path / "runs" / "edited", loss=1.95)
    words = (
        "the same run (group and seed) with different results; remove one of them, or name only the folders"
    )
    with pytest.raises(ComparisonError, match=re.escape(f"{runs[-1]}, {edited}: {words}")):
        build_report([load(folder)[0] for folder in [*runs, edited]])


def test_many_copies_from_one_folder_are_one_line(tmp_path):
    first = [made(tmp_path / "runs", f"seed={seed}") for seed in (0, 1)]
    copies = [copied(run, tmp_path / "others" / run.name) for run in first]
    report = build_report([load(folder)[0] for folder in [*first, *copies]])
    folders = f"{tmp_path / 'others'}: 2 runs are the same as in {tmp_path / 'runs'}"
    assert report.passed_over == [f"{folders}, with the same results; used once"]


def test_of_a_run_that_two_machines_trained_the_first_is_used_and_both_losses_are_said(tmp_path):
    first = made(tmp_path / "runs", "seed=0", final=2.1)
    other = copied(first, tmp_path / "others" / "a", loss=2.1003)
    environment = json.loads((other / "environment.json").read_text())
    (other / "environment.json").write_text(json.dumps(environment | {"processor": "a newer one"}))
    report = build_report([load(folder)[0] for folder in (first, other)])
    which = "val/full_loss 2.1003, there val/full_loss 2.1000, which is used"
    assert report.passed_over == [f"{other}: the same run as {first}, with another processor: {which}"]
    assert [row.loss.mean for row in report.rows] == [2.1]


def test_runs_of_one_folder_name_are_told_apart_by_what_they_are(tmp_path):
    """The same name in two folders was once enough to pass the second one over."""
    folder = made(tmp_path / "runs", "seed=0", final=2.1)
    copied(folder, tmp_path / "others" / folder.name, loss=1.95)
    done = programs.run("compare.py", "runs", "others", cwd=tmp_path)
    check_refused(done, f"error: runs/{folder.name}, others/{folder.name}: the same run")


def read_csv(file):
    with file.open() as stream:
        return list(csv.DictReader(stream))


def test_the_terminal_the_page_and_the_files_say_the_same(tmp_path):
    report = report_of(tmp_path / "runs", [1.95, 1.96, None, 1.97, 1.98])
    list(write_report(report, tmp_path / "report"))
    html = unescape(page(report))
    assert all(words in html for words in (*report.summary, *report.warnings))
    table, rows = (read_csv(tmp_path / "report" / name) for name in ("table.csv", "runs.csv"))
    assert table == cells(report)
    assert all(f">{text}</td>" in html for line in table for text in line.values())
    assert [row["used"] for row in rows] == ["True"] * 5 + ["False"] * 5
