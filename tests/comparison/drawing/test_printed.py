"""A terminal shows who is better, however narrow it is, and commands that can be copied."""

import pytest
from rich.console import Console

from comparison.drawing.printed import render
from comparison.report import build_report
from tests.comparison.runs import several

NOISY = {"norm=layernorm": [2.0, 2.1, 1.9, 2.0], "norm=torch_layernorm": [2.3, 2.1, 2.2, 1.8]}


def printed(report, width: int) -> str:
    console = Console(width=width, highlight=False)
    with console.capture() as captured:
        console.print(render(report, console.width), crop=False)
    return captured.get()


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_verdicts_and_differences_are_whole(tmp_path, width):
    report = build_report(several(tmp_path, NOISY))
    text = printed(report, width)
    assert "verdict" in text
    assert "+0.1000 ± " in text
    assert (text.count("800,000") > 1) == (width == 200)  # the column of parameters
    assert report.open_rows[0].command in text  # on one line


def test_many_keys_become_one_column_where_there_is_no_room(tmp_path):
    losses = {f"norm=dyt placement=peri optim.weight_decay={w}": [2.0 + w] for w in (0.1, 0.2)}
    report = build_report(several(tmp_path, {"norm=layernorm": [2.0]} | losses))
    assert heads(printed(report, 250))[:3] == ["norm", "placement", "optim.weight_decay"]
    assert heads(printed(report, 60))[0] == "arm"
    assert "weight_decay=0.2" in printed(report, 60)  # below the rest of the arm's title


def test_where_there_is_no_room_leaks_stand_in_the_verdict_and_what_is_left_out_is_said(tmp_path):
    losses = {
        "norm=batchnorm model.init=xavier model.embedding_norm=torch_layernorm": [2.3, 2.351, 2.249, 2.3, 2.3]
    }
    report = build_report(several(tmp_path, {"norm=layernorm": [2.0, 2.05, 1.95, 2.0, 2.0]} | losses))
    text = printed(report, 64)
    assert "worse, LEAKS" in text
    assert "left out for lack of room: " in text
    assert "leaks" not in heads(text)
    assert "embedding_norm=torch_layernorm" in "".join(text.split())  # no word is cut


def heads(text: str) -> list[str]:
    """Return the names of the table's columns."""
    return next(line for line in text.splitlines() if "verdict" in line).split()
