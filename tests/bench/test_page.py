"""The page shows every result of a folder."""

import json

import pytest
import torch

from bench.page import PAGE, RESULTS, page, unit

MEDIANS = """\
| median (min-max) |      tokens/s | peak memory, MB |
| :--------------- | ------------: | --------------: |
| A                | 200 (100-300) |         5 (5-5) |
| B                |    50 (50-50) |                 |
"""


@pytest.fixture
def results(bench, tmp_path):
    """A folder with one result, of two variants and two rounds."""
    made, values = bench(rounds=2), iter([100.0, 300.0])
    made.alternate(
        {
            "A": lambda: {"tokens_per_s": next(values), "peak_memory_bytes": 5e6},
            "B": lambda: {"tokens_per_s": 50.0},
        }
    )
    made.compare("A", "B", "tokens_per_s")
    made.note("a note")
    made.settings["A"] = ["norm=none", "seed=0"]
    made.save(complete=True)
    folder = tmp_path / "results"
    folder.mkdir()
    made.out.rename(folder / "made-here.json")
    return folder


def test_a_section_has_ratios_medians_notes_and_origin(results):
    made = page(results)
    assert "## made-here\n\nA made-up measurement.\n" in made
    assert MEDIANS in made
    assert "| A / B | tokens/s |  **4** |     2-6 |      2 |" in made
    assert "- a note\n- A: `norm=none seed=0`\n" in made
    assert f"torch {torch.__version__}, commit " in made


def test_results_of_older_commits_are_shown(results):
    file = results / "made-here.json"
    result = json.loads(file.read_text()) | {
        "complete": False,
        "found": {"texts": {"64": 11}, "memory": [{}]},
    }
    result["versions"] |= {"ours": None, "peer": {"commit": "0123456789abcdef", "files": {}}}
    result["raw"]["B"]["tokens_per_s"] = ["inf", 50.0]
    file.write_text(json.dumps(result))
    made = page(results)
    assert "A made-up measurement. **Interrupted.**" in made
    assert ", commit unknown, nanoGPT 012345678, " in made
    assert '- texts: {"64": 11}\n' in made
    assert "- memory" not in made
    assert "inf (50-inf)" in made


@pytest.mark.parametrize(
    ("metric", "title"),
    [
        ("tokens_per_s", ("tokens/s", 1.0)),
        ("fp32_flops_per_s", ("fp32, GFLOP/s", 1e9)),
        ("first_step_s", ("first step, s", 1.0)),
        ("step_us", ("step, µs", 1.0)),
        ("val_full_loss", ("val full loss", 1.0)),
    ],
)
def test_a_metrics_name_ends_with_its_unit(metric, title):
    assert unit(metric) == title


def test_the_projects_page_is_made_of_the_projects_results():
    assert PAGE.read_text(encoding="utf-8") == page(RESULTS)
