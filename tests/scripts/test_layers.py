"""The picture of a run's layers has a panel for each run and statistic, and a line for each block."""

import json
import re
import subprocess
import sys
from collections import Counter

import pytest

from scripts.layers import METRICS, figure, read_curves, titles
from study.figures import svg
from tests.conftest import ROOT
from tests.helpers.contract import check_one_line
from tests.helpers.programs import PATIENCE
from tests.helpers.runs import train_anew

CONFIG = "norm: {{_name_: {}}}\nplacement: {{_name_: {}}}\n"


def test_curves_are_the_finite_numbers_by_step_also_of_a_run_that_is_running(tmp_path):
    rows = [{"step": 0, "a": 1.5, "b": "NaN"}, {"step": 2, "a": 2, "hist.act/embed": {"low": 0}}]
    (tmp_path / "metrics.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows) + '{"step": 3, "a"'
    )
    assert read_curves(tmp_path)["a"] == [(0, 1.5), (2, 2)]
    assert read_curves(tmp_path).keys() == {"step", "a"}


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
    assert text.count(">layernorm pre<") == text.count(">none pre<") == len(METRICS)
    assert all(metric.partition("/")[0] in text for metric in METRICS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("nowhere",), "nowhere/config.yaml: No such file or directory"),
        (("RUN", "--metrics", "act.rsm/*"), "no run has 'act.rsm/*'"),
        (("RUN", "--out", "layers.gif"), "should end in .svg, .png or .pdf"),
        (("RUN", "--out", "/nowhere/layers.svg"), "/nowhere/layers.svg: No such file"),
    ],
)
def test_bad_input_is_one_line(command, tmp_path, arguments, error):
    (tmp_path / "config.yaml").write_text(CONFIG.format("layernorm", "pre"))
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "act.rms/00.mlp": 1, "act.ratio/00": 1}\n')
    chosen = ("--metrics", "act.rms/*") if "--metrics" not in arguments else ()
    arguments = [str(tmp_path) if word == "RUN" else word for word in arguments]
    check_one_line(command("scripts/layers.py", *arguments, *chosen), error)


def test_a_title_is_norm_and_placement_and_the_runs_name_only_where_two_are_alike(tmp_path):
    folders = [tmp_path / name for name in ("a", "b", "c")]
    for folder, placement in zip(folders, ("pre", "post", "pre"), strict=True):
        folder.mkdir()
        (folder / "config.yaml").write_text(CONFIG.format("dyt", placement))
    assert titles(folders[:2]) == [["dyt pre"], ["dyt post"]]
    assert titles(folders) == [["dyt pre", "a"], ["dyt post"], ["dyt pre", "c"]]


def test_a_block_has_one_colour_in_every_panel_whatever_the_depth_of_its_run():
    deep = {f"act.rms/{i:02d}.mlp": [(0, i + 1.0), (1, 2.0)] for i in range(4)}
    shallow = {f"act.rms/{i:02d}.mlp": [(0, i + 1.0), (1, 2.0)] for i in range(2)}
    text = svg(figure([(["deep"], deep), (["shallow"], shallow)], ["act.rms/*"]))
    strokes = re.findall(r'aria-roledescription="line mark"[^>]*stroke="([^"]*)"', text)
    assert sorted(Counter(strokes).values()) == [1, 1, 2, 2]


def test_every_step_is_named_in_its_own_unit():
    text = svg(figure([(["a"], {"act.rms/00.mlp": [(step, 1.0) for step in (0, 3000)]})], ["act.rms/*"]))
    steps = re.findall(r">([^<]+)</text>", text[: text.index(">step<")])
    assert steps == ["0", "1", "10", "100", "1k"]
