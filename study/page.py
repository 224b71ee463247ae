"""The page of a comparison, one file that needs no network: the table with its intervals, loss curves,
statistics block by block, tuning, and how the runs were made.

study/page.html is its template; study/figures.py has its charts.
"""

import math
import re
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import vl_convert
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from data.errors import ConfigError
from data.files import write_atomically
from study import figures
from study.figures import Records, fence, padded
from study.runs import RunResult, values_of_conditions
from study.table import SPARE, Table, filled, markdown, plural, short, verdict
from training.run_folder import read_rows

OURS = '<meta name="generator" content="normgpt">'
STEPS = 200  # most points of a curve
BLOCK_STEPS, BLOCK_ARMS, STATISTICS = 40, 60, 100  # limits of the block statistics
BLOCK = re.compile(r"(\w+\.\w+)/(\d{2,3})((?:\.\w+)*)")  # act.rms/03.mlp: statistic, block, rest of the site
TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def write(table: Table, folder: Path) -> Path:
    """Write index.html and table.md. Return the path of index.html. Raises OSError, or ConfigError
    if that file exists and compare.py did not write it."""
    index = folder / "index.html"
    if index.exists() and OURS not in index.read_text(encoding="utf-8", errors="replace")[:1000]:
        raise ConfigError(f"{index}: is not a page of compare.py; remove it, or name a new folder: --out")
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(index, render(table))
    write_atomically(folder / "table.md", markdown(table))
    return index


@cache  # it takes seconds
def vega() -> str:
    """Return the JavaScript that draws the charts."""
    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed", vl_version=figures.VERSION)


def render(table: Table) -> str:
    runs = [run for own in table.runs.values() for run in own.values()]
    data = {"curves": curves(table), "blocks": blocks(table), "trials": trials(table)}
    shown = first_shown(table)
    statistics = sorted({record["statistic"] for record in data["blocks"]})
    low, high = figures.interval_range(table)
    more = [column for column in filled(table)[0] if column in SPARE]

    def percent(value: float) -> str:
        """Return where a plot shows a difference: at the edge, if the difference is out of range."""
        return f"{100 * (min(max(value, low), high) - low) / (high - low):.2f}%"

    return TEMPLATES.get_template("page.html").render(
        table=table,
        rows=[(row, short(row.title), verdict(row)) for row in table.rows],
        baseline=figures.baseline_words(table),
        low=low,
        high=high,
        percent=percent,
        ticks=ticks(low, high),
        more=[*reversed(more)] if more else [],
        cells=filled(table),
        drawn={record["arm"] for record in data["curves"]},
        seeds=plural(max(len(row.seeds) for row in table.rows), "seed"),
        shown=shown,
        data=data,
        specs=specs(table, data, shown),
        statistics=statistics,
        block_steps=sorted({record["step"] for record in data["blocks"]}),
        block_arms=BLOCK_ARMS,
        conditions=values_of_conditions(runs),
        command=table.study and shlex.join(["python", "ablate.py", *table.study.declared_by]),
        names=[run.name for run in runs],
        palette=figures.PALETTE,
        vega=vega(),
    )


def specs(table: Table, data: Mapping[str, Records], shown: Sequence[str]) -> dict[str, Any]:
    """Return the charts that have data, by their id on the page. Tuning has a chart for each key."""
    charts: dict[str, figures.Chart] = {}
    if figures.grid_keys(table):
        charts["map"] = figures.grid(table)
    if key := figures.number_key(table):
        charts["number"] = figures.against_number(table, key)
    if data["curves"]:
        charts["curves"] = figures.curves(*ends(data["curves"], shown))
    if data["blocks"]:
        charts["heat"] = figures.heat(max(len(record["block"]) for record in data["blocks"]))
        charts["profile"] = figures.profile()
    found: dict[str, Any] = {name: chart.to_dict() for name, chart in charts.items()}
    losses = [record["loss"] for record in data["trials"] if record["loss"] is not None]
    if losses and table.study:
        low, high = padded(*fence(losses))
        tune = table.study.tune.items()
        found["tuning"] = {key: figures.tuning(key, kind, low, high).to_dict() for key, kind in tune}
    return found


# ---------------------------------------------------------------------------------------------------
# Data


def digits(value: float, count: int = 5) -> float:
    return float(f"{value:.{count}g}")


def thinned(values: Sequence[int], most: int) -> list[int]:
    """Return at most ``most`` of the values, evenly spaced and always with the last one."""
    return [*values[:: -max(1, math.ceil(len(values) / most))]][::-1]


def curves(table: Table) -> Records:
    """Return each arm's mean, lowest and highest validation loss at each step, over the seeds that reached
    the step."""
    records = []
    for title, runs in table.runs.items():
        by_step = defaultdict(list)
        for run in runs.values():
            for step, loss in run.curve:
                by_step[step].append(loss)
        for step in thinned(sorted(by_step), STEPS):
            losses = by_step[step]
            values = {"loss": fmean(losses), "low": min(losses), "high": max(losses)}
            numbers = {name: digits(value) for name, value in values.items()}
            records.append({"arm": short(title), "step": step} | numbers)
    return records


def ends(records: Records, shown: Sequence[str]) -> list[float]:
    """Return the range of losses to draw: that of the arms in ``shown`` in the second half of training."""
    half = max(record["step"] for record in records) / 2
    late = [record for record in records if record["step"] >= half]
    losses = [record["loss"] for record in late if record["arm"] in shown] or [r["loss"] for r in late]
    return padded(min(losses), max(losses))


def first_shown(table: Table) -> list[str]:
    """Return the arms that are picked when the page opens: a baseline, the best three, and the worst that is
    not an outlier."""
    ended = sorted((row.mean, short(row.title)) for row in table.rows if row.mean is not None)
    worst = [arm for mean, arm in ended if mean <= fence([mean for mean, _ in ended])[1]][-1:]
    baselines = [short(row.title) for row in table.rows if not row.baseline]
    return [*dict.fromkeys([*baselines[:1], *(arm for _, arm in ended[:3]), *worst])]


def blocks(table: Table) -> Records:
    """Return the statistics of blocks of each arm's first seed."""
    records = []
    for row in table.rows[:BLOCK_ARMS]:
        runs = [run for _, run in sorted(table.runs.get(row.title, {}).items()) if run.folder]
        records += [record for run in runs[:1] for record in blocks_of(run, short(row.title))]
    steps = {*thinned(sorted({record["step"] for record in records}), BLOCK_STEPS)}
    return [record for record in records if record["step"] in steps]


def blocks_of(run: RunResult, arm: str) -> Records:
    assert run.folder
    records = []
    for row in read_rows(run.folder / "metrics.jsonl"):
        found: dict[str, dict[int, float]] = defaultdict(dict)
        for name, value in row.items():
            if (m := BLOCK.fullmatch(name)) and isinstance(value, float) and math.isfinite(value):
                found[f"{m[1]}/*{m[3]}"][int(m[2])] = digits(value, 4)
        for statistic, values in [*found.items()][:STATISTICS]:
            lists = {"block": [*values], "value": [*values.values()]}
            records.append({"arm": arm, "statistic": statistic, "step": row["step"]} | lists)
    return records


def trials(table: Table) -> Records:
    return [
        {
            "arm": short(row.title),
            "loss": loss,
            "settings": tried,
            "setting": " ".join(f"{key}={value}" for key, value in tried.items()),
            "chosen": tried == row.settings,
            "edges": row.edges,
        }
        for row in table.rows
        for tried, loss in table.trials.get(row.title, ())
    ]


def ticks(low: float, high: float) -> list[float]:
    """Return about four round numbers from ``low`` to ``high``."""
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(each * power for each in (1, 2, 5, 10) if each * power >= rough)
    return [round(number * step, 12) for number in range(math.ceil(low / step), math.floor(high / step) + 1)]
