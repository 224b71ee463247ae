"""The page shows every result of a folder."""

import json

from bench.page import PAGE, RESULTS, page

RESULT = {
    "what": "A / B.",
    "machine": "a machine, 2 threads",
    "versions": "torch 2",
    "date": "2026-11-29",
    "rows": {
        "4x128": {"ratio": [2.0, 6.0, 3.0], "ours": [2, 6, 3], "nanoGPT": [1, 1, 1]},
        "a loss": {"nats": [1.8964]},
    },
}


def test_a_row_has_the_median_range_and_rounds_of_a_ratio_or_of_the_only_value(tmp_path):
    (tmp_path / "made-here.json").write_text(json.dumps(RESULT))
    lines = page(tmp_path).splitlines()
    assert lines[lines.index("## made-here") + 2] == "A / B."
    assert {"|4x128|3|2–6|3|", "|a loss|1.896|1.896–1.896|1|"} < {*lines}
    assert lines[-1] == "a machine, 2 threads, torch 2, 2026-11-29"


def test_the_projects_page_is_made_of_the_projects_results():
    assert PAGE.read_text(encoding="utf-8") == page(RESULTS)
