"""The picture of runs' layers has a panel for each run and statistic, and a line for each block."""

import re
from collections import Counter

import pytest

from data.errors import ConfigError
from scripts.layers import METRICS, figure
from study.figures import svg
from tests.helpers.contract import check_refused
from tests.helpers.runs import train_anew

PROGRAM = "scripts/layers.py"


def run_of(blocks: int) -> list[dict]:
    return [{"step": s, **{f"act.rms/{i:02d}.mlp": i + 1.0 for i in range(blocks)}} for s in (0, 1)]


def colours(svg: str) -> list[str]:
    """Return the colour of each line of more than one point."""
    return re.findall(r'aria-roledescription="line mark"[^>]* d="M[^"]*L[^"]*"[^>]*stroke="([^"]*)"', svg)


def test_a_block_has_one_colour_in_every_panel_and_what_is_not_finite_or_missing_is_left_out():
    missing = [{"step": 0, "act.rms/00.mlp": "NaN"}, {"step": 3, "norm.gain/00.mlp": 1}]
    text = svg(figure({"deep": run_of(4), "shallow": run_of(2), "none": missing}, ["act.rms/*"]))
    assert sorted(Counter(colours(text)).values()) == [1, 1, 2, 2]
    assert text.count(">step<") == 3
    with pytest.raises(ConfigError, match=r"no run has 'act\.rsm/\*'"):
        figure({"a": run_of(1)}, ["act.rsm/*"])


def test_every_step_is_named_in_its_own_unit_and_what_has_no_block_is_one_black_line():
    rows = [{"step": step, "train/loss": 1.0 + step} for step in (0, 3000)]
    text = svg(figure({"a": rows}, ["train/loss"]))
    assert colours(text) == ["black"]
    assert {"train/loss", "0", "1", "10", "100", "1k"} <= {*re.findall(r">([^<]+)</text>", text)}


@pytest.mark.slow
def test_runs_are_drawn_also_while_they_are_running(tiny, succeed, command, tmp_path):
    folder = train_anew(tiny())
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 7, "act.rms')
    assert succeed(PROGRAM, str(folder), "--out", "layers.svg").stdout == "layers.svg\n"
    text = (tmp_path / "layers.svg").read_text()
    assert text.count(">step<") == text.count(f">{folder.name}<") == len(METRICS)
    check_refused(command(PROGRAM, str(folder), "--out", "layers.gif"), "use .svg, .png or .pdf")
