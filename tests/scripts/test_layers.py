"""The picture of a run's layers has a panel for each run and statistic, and a line for each block."""

import json
import re
import subprocess
import sys
from collections import Counter

import pytest

from comparison.drawing.convert import svg
from scripts.layers import METRICS, figure_spec, read_curves, titles
from tests.conftest import ROOT
from tests.helpers.contract import check_one_line
from tests.helpers.programs import PATIENCE
from tests.helpers.runs import train_anew


def test_curves_are_the_finite_numbers_by_step_also_of_a_run_that_is_running(tmp_path):
    axes = {"tokens": 0, "seconds": 0}
    rows = [
        {"step": 0, "a": 1.5, "b": "NaN"} | axes,
        {"step": 2, "a": 2, "hist.act/embed": {"low": 0}} | axes,
    ]
    (tmp_path / "metrics.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows) + '{"step": 3, "a"'
    )
    assert read_curves(tmp_path) == {"a": [(0, 1.5), (2, 2)], "b": []}


@pytest.mark.slow
def test_runs_are_drawn_without_torch(tiny, tmp_path):
    folders = [train_anew(tiny(norm)) for norm in ("norm=layernorm", "norm=none")]
    out = tmp_path / "layers.svg"
    command = [sys.executable, "-X", "importtime", "-m", "scripts.layers", *folders, "--out", out]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{out}\n"
    assert " torch\n" not in done.stderr
    text = out.read_text()
    assert text.count(">step<") == 2 * len(METRICS)
    assert all(folder.name in text for folder in folders)
    assert all(metric.partition("/")[0] in text for metric in METRICS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("nowhere",), "nowhere/metrics.jsonl: No such file or directory"),
        (("RUN", "--metrics", "act.rsm/*"), "no run has 'act.rsm/*'"),
        (("RUN", "--out", "layers.gif"), "should end in .svg, .png or .pdf"),
        (("RUN", "--out", "/nowhere/layers.svg"), "/nowhere/layers.svg: No such file"),
    ],
)
def test_bad_input_is_one_line(command, tmp_path, arguments, error):
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 0, "tokens": 0, "seconds": 0, "act.rms/00.mlp": 1, "act.ratio/00.mlp.branch": 1}\n'
    )
    chosen = ("--metrics", "act.rms/*") if "--metrics" not in arguments else ()
    arguments = [str(tmp_path) if word == "RUN" else word for word in arguments]
    check_one_line(command("scripts/layers.py", *arguments, *chosen), error)


def test_runs_of_one_name_are_distinguished_by_their_paths(tmp_path):
    assert titles([tmp_path / "a" / "R", tmp_path / "b" / "S"]) == ["R", "S"]
    assert titles([tmp_path / "a" / "R", tmp_path / "b" / "R"]) == [f"{tmp_path}/a/R", f"{tmp_path}/b/R"]


def test_a_block_has_one_colour_in_every_panel_whatever_the_depth_of_its_run():
    deep = {f"act.rms/{i:02d}.mlp": [(0, i + 1.0), (1, 2.0)] for i in range(4)}
    shallow = {f"act.rms/{i:02d}.mlp": [(0, i + 1.0), (1, 2.0)] for i in range(2)}
    text = svg(figure_spec({"deep": deep, "shallow": shallow}, ["act.rms/*"]))
    strokes = re.findall(r'aria-roledescription="line mark"[^>]*stroke="(rgb[^"]*)"', text)
    assert sorted(Counter(strokes).values()) == [1, 1, 2, 2]
