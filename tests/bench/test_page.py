"""The page shows every result of a folder, and leaves what was written by hand."""

import json
import subprocess
import sys

import pytest
import torch

from bench.measure import BenchError
from bench.page import MARK, main, page, unit
from tests.conftest import ROOT


@pytest.fixture
def results(bench, tmp_path):
    """A folder with one result, of two parts and two rounds."""
    made, values = bench(rounds=2), iter([100.0, 300.0])
    made.alternate(
        {
            "A": lambda: {"tokens_per_s": next(values), "peak_memory_bytes": 5e6},
            "B": lambda: {"tokens_per_s": 50.0},
        }
    )
    made.compare("A", "B", "tokens_per_s")
    made.note("a note")
    made.found |= {"losses": {"A": 1.23456, "B": [2, "three"]}, "memory": [{"step": 0}]}
    made.settings["A"] = ["norm=none", "seed=0"]
    made.save(complete=True)
    folder = tmp_path / "results"
    folder.mkdir()
    made.out.rename(folder / "made-here.json")
    return folder


def test_a_result_is_its_ratios_medians_notes_and_where_it_was_measured(results, tmp_path):
    made = page(results, tmp_path)
    assert "## made-here\n\nWhat is made up.\n" in made
    assert "| A / B | tokens/s | **4** | 2-6 | 2 |" in made
    assert "| median (min-max) | tokens/s | peak memory, MB |" in made
    assert "| A | 200 (100-300) | 5 (5-5) |" in made
    assert "| B | 50 (50-50) |  |" in made
    assert "- a note\n- losses: A 1.235, B 2; three\n- A: `norm=none seed=0`\n" in made
    assert f"torch {torch.__version__}, commit " in made


def test_outside_of_a_git_checkout_and_beside_nanogpt_it_says_so(results, tmp_path):
    file = results / "made-here.json"
    result = json.loads(file.read_text())
    result["versions"] |= {"ours": None, "peer": {"commit": "0123456789abcdef", "files": {}}}
    file.write_text(json.dumps(result))
    assert ", commit unknown, nanoGPT 012345678, " in page(results, tmp_path)


def test_a_figure_beside_a_result_is_shown(results, tmp_path):
    assert "![" not in page(results, tmp_path)
    (results / "made-here.svg").write_text("<svg/>")
    assert "![made-here](../results/made-here.svg)" in page(results, tmp_path / "docs")


def test_what_was_interrupted_says_so(results, tmp_path):
    file = results / "made-here.json"
    file.write_text(file.read_text().replace('"complete": true', '"complete": false'))
    assert "What is made up. **It was interrupted.**" in page(results, tmp_path)


def test_what_is_written_by_hand_stays_and_the_rest_is_made_anew(results, tmp_path):
    out = tmp_path / "page.md"
    out.write_text(f"By hand.\n\n{MARK}\n\nold\n")
    main(results, out)
    once = out.read_text()
    assert once.startswith(f"By hand.\n\n{MARK}\n\n## made-here\n")
    assert "old" not in once
    main(results, out)
    assert out.read_text() == once


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"machine": 1}'])
def test_another_file_is_named(results, tmp_path, content):
    (results / "other.json").write_text(content)
    with pytest.raises(BenchError, match=r"other\.json: is no result of a benchmark"):
        page(results, tmp_path)


def test_where_nothing_can_be_written_there_is_one_line(results, tmp_path):
    command = [sys.executable, "-m", "bench.page", str(results), str(tmp_path / "nowhere" / "page.md")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("error: ")


@pytest.mark.parametrize(
    ("metric", "shown"),
    [
        ("tokens_per_s", ("tokens/s", 1.0)),
        ("fp32_flops_per_s", ("fp32, GFLOP/s", 1e9)),
        ("first_step_s", ("first step, s", 1.0)),
        ("seconds", ("s", 1.0)),
        ("alone_us", ("alone, µs", 1.0)),
        ("s", ("s", 1.0)),
        ("of_ceiling_percent", ("of ceiling, %", 1.0)),
        ("val_full_loss", ("val full loss", 1.0)),
        ("losses", ("losses", 1.0)),
    ],
)
def test_a_metrics_name_ends_with_its_unit(metric, shown):
    assert unit(metric) == shown


def test_the_projects_page_is_made_of_the_projects_results():
    results, out = ROOT / "bench" / "results", ROOT / "docs" / "performance.md"
    if not out.exists():
        pytest.skip("there is none yet")
    assert out.read_text().partition(MARK)[2] == page(results, out.parent).partition(MARK)[2]
