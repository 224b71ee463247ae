"""The results of benchmarks as tables in a page, below what is written there by hand.

    python -m bench.page                       bench/results, in docs/performance.md
    python -m bench.page RESULTS PAGE.md       another folder's, in another page

To be run after a benchmark: a test holds that the project's page shows the project's results.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.measure import BenchError
from bench.report import cell, digits
from rundir.environment import ROOT

MARK = "<!-- what follows is made by python -m bench.page -->"
UNITS = (  # the end of a metric's name, its unit, and what a value is divided by to be shown in it
    ("tokens_per_s", "tokens/s", 1.0),
    ("flops_per_s", "GFLOP/s", 1e9),
    ("bytes_per_s", "GB/s", 1e9),
    ("bytes", "MB", 1e6),
    ("percent", "%", 1.0),
    ("us", "µs", 1.0),
    ("s", "s", 1.0),
    ("seconds", "s", 1.0),
)


def unit(metric: str) -> tuple[str, float]:
    """The title of a metric's column, and what its values are divided by."""
    for end, name, scale in UNITS:
        if f"_{metric}".endswith(f"_{end}"):
            what = metric.removesuffix(end).strip("_").replace("_", " ")
            return (f"{what}, {name}" if what else name), scale
    return metric.replace("_", " "), 1.0


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """In Markdown; the first column to the left, numbers to the right."""
    lines = [head, [":--", *["--:"] * (len(head) - 1)], *rows]
    return ["| " + " | ".join(line) + " |" for line in lines] + [""]


def medians(raw: Mapping[str, Mapping[str, list[float | str]]]) -> list[str]:
    """A row for each part, a column for each metric."""
    metrics = list(dict.fromkeys(metric for of in raw.values() for metric in of))
    titles, scales = zip(*(unit(metric) for metric in metrics), strict=True) if metrics else ((), ())
    rows = [
        [part]
        + [
            cell([float(value) for value in of.get(metric, [])], scale)
            for metric, scale in zip(metrics, scales, strict=True)
        ]
        for part, of in raw.items()
    ]
    return table(["median (min-max)", *titles], rows)


def ratios(found: Sequence[Mapping[str, Any]]) -> list[str]:
    if not found:
        return []
    rows = []
    for one in found:
        middle, low, high = (digits(float(one[which])) for which in ("median", "min", "max"))
        spread = f"{low}-{high}" if one["rounds"] > 1 else ""
        of = f"{one['of']} / {one['to']}"
        rows.append([of, unit(one["metric"])[0], f"**{middle}**", spread, str(one["rounds"])])
    return table(["ratio", "of", "median", "min-max", "rounds"], rows)


def section(name: str, result: Mapping[str, Any]) -> list[str]:
    """One result."""
    machine, versions = result["machine"], result["versions"]
    ours, peer = versions["ours"] or {}, versions["peer"] or {}
    family_model = " ".join(filter(None, machine["family_model"]))
    on = [
        machine["processor"] + (f" (family and model {family_model})" if family_model else ""),
        f"{machine['cores']} cores",
        f"{machine['threads']} threads",
        machine["gpu"] or "no GPU",
        f"Python {versions['python']}",
        f"torch {versions['torch']}",
        f"commit {(ours.get('commit') or 'unknown')[:9]}" + (" with changes" if ours.get("diff") else ""),
        *([f"nanoGPT {(peer.get('commit') or 'of an unknown commit')[:9]}"] if peer else []),
        result["date"][:10],
    ]
    found = {what: value for what, value in result["found"].items() if not a_series(value)}
    return [
        f"## {name}",
        "",
        result["what"] + ("" if result["complete"] else " **It was interrupted.**"),
        "",
        ", ".join(on) + ".",
        "",
        *ratios(result["ratios"]),
        *medians(result["raw"]),
        *[f"- {note}" for note in result["notes"]],
        *[f"- {what}: {plainly(value)}" for what, value in found.items()],
        *[f"- {part}: `{' '.join(told)}`" for part, told in result["settings"].items()],
        "",
    ]


def a_series(value: Any) -> bool:
    """What a figure shows."""
    return isinstance(value, list) and any(isinstance(inner, Mapping) for inner in value)


def plainly(value: Any) -> str:
    """What is no number of a round, in a line."""
    if isinstance(value, Mapping):
        nested = any(isinstance(inner, Mapping) for inner in value.values())
        between, colon = ("; ", ":") if nested else (", ", "")
        return between.join(f"{key}{colon} {plainly(inner)}" for key, inner in value.items())
    if isinstance(value, list):
        return "; ".join(map(plainly, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def page(results: Path, folder: Path) -> str:
    """Of all results in a folder, for a page in another. Raises BenchError where one cannot be read."""
    lines = [MARK, ""]
    for file in sorted(results.glob("*.json")):
        try:
            lines += section(file.stem, json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise BenchError(f"{file}: is no result of a benchmark ({error!r}); move it away") from None
        if (figure := file.with_suffix(".svg")).exists():
            lines += [f"![{file.stem}]({Path(os.path.relpath(figure, folder)).as_posix()})", ""]
    return "\n".join(lines)


def main(results: Path = ROOT / "bench" / "results", out: Path = ROOT / "docs" / "performance.md") -> None:
    try:
        made = page(results, out.parent)
        by_hand = out.read_text(encoding="utf-8").partition(MARK)[0].rstrip() if out.exists() else ""
        out.write_text((by_hand + "\n\n" + made).lstrip(), encoding="utf-8")
    except BenchError as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        sys.exit(f"error: {out}: {error.strerror}; name a file that can be written")
    print(out)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
