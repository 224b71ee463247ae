"""Write results/performance.md, the page of all results in bench/results: ``python -m bench.page``."""

import json
from pathlib import Path
from statistics import median
from typing import Any

from cli import programs
from training.environment import ROOT

RESULTS, PAGE = ROOT / "bench" / "results", ROOT / "results" / "performance.md"
HEAD = """\
# Results of the benchmarks

`python -m bench.page` writes this page from bench/results. A ratio compares two speeds, once a
round; above 1, ours is faster. [docs/performance.md](../docs/performance.md) explains them.
"""


def table(rows: dict[str, dict[str, list[float]]]) -> list[str]:
    """Return a table with the ratio of each row, or the row's only value."""
    lines = ["||median|range|rounds|", "|:--|--:|--:|--:|"]
    for title, by_name in rows.items():
        values = by_name.get("ratio") or next(iter(by_name.values()))
        low, middle, high = (f"{function(values):.4g}" for function in (min, median, max))
        lines.append(f"|{title}|{middle}|{low}–{high}|{len(values)}|")
    return lines


def section(title: str, result: dict[str, Any]) -> str:
    origin = ", ".join([result["machine"], result["versions"], result["date"]])
    return "\n".join([f"## {title}", "", result["what"], "", *table(result["rows"]), "", origin, ""])


def page(results: Path) -> str:
    """Return the page of all results in a folder."""
    files = sorted(results.glob("*.json"))
    return "\n".join([HEAD, *(section(f.stem, json.loads(f.read_text(encoding="utf-8"))) for f in files)])


def main() -> None:
    programs.parser(__doc__, "bench.page").parse_args()
    PAGE.write_text(page(RESULTS), encoding="utf-8")
    print(PAGE)


if __name__ == "__main__":
    main()
