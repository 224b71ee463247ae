"""A terminal shows who is better, however narrow it is, and commands that can be copied."""

import pytest
from rich.console import Console

from comparison.report import build_report
from comparison.table import render
from tests.helpers.run_folders import several

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
