"""Save the figures of a study's page as files, for a paper: its intervals or its map, and its loss curves.

python -m scripts.draw studies/norms --out figures          figures/intervals.svg, figures/curves.svg
python -m scripts.draw results/atlas_map --format pdf       map.pdf, curves.pdf, in this folder
"""

from pathlib import Path

import altair as alt

from cli import programs
from cli.errors import one_line_errors
from data.errors import ConfigError
from study import report
from study.figures import FORMATS, PALETTE, Chart, baseline_words, grid, grid_keys, interval_range, save
from study.page import curves as curves_of
from study.page import ends, first_shown
from study.table import Table, short, verdict

WIDER = 30  # pixels around a figure, because the reader's font may be wider than ours
COLORS = {"better": "#0a8a5f", "worse": "#c8402f"}  # of intervals, by verdict


def intervals(table: Table) -> Chart:
    """Return a chart of each arm's difference from its baseline: the interval, and the verdict. Differences
    in the grey range do not matter."""
    rows = [row for row in table.rows if row.difference is not None]
    records = [
        {
            "arm": f"{short(row.title)}   {row.difference:+.3f}  {verdict(row)}",
            "difference": row.difference,
            "low": row.low,
            "high": row.high,
            "color": COLORS.get(row.outcome or "", "#777"),
        }
        for row in rows
    ]
    matters = table.study.matters if table.study else 0.0
    scale = alt.Scale(domain=[*interval_range(table)], nice=False)
    title = f"loss − loss of {baseline_words(table)}, nats; to the left is better"
    color = alt.Color("color:N", scale=None)
    arms = alt.Y("arm:N", title=None, sort=None, axis=alt.Axis(labelLimit=0, ticks=False, domain=False))
    base = alt.Chart(alt.Data(values=records)).encode(y=arms, color=color)
    zero = alt.Chart(alt.Data(values=[{"from": -matters, "to": matters}]))
    return alt.layer(
        zero.mark_rect(color="#ddd").encode(x=alt.X("from:Q", scale=scale, title=title), x2="to:Q"),
        zero.mark_rule(strokeDash=[2, 2]).encode(x=alt.datum(0, scale=scale)),
        base.mark_rule(clip=True, strokeWidth=2).encode(x=alt.X("low:Q", scale=scale), x2="high:Q"),
        base.mark_point(clip=True, filled=True, opacity=1, size=40).encode(x="difference:Q"),
    ).properties(width=360, height=alt.Step(17), padding=WIDER)


def curves(table: Table) -> Chart:
    """Return a chart of the mean validation loss by step, with a band from the lowest to the highest seed. If
    there are more arms than colours, it has only the arms that are selected when the page opens."""
    arms = [short(row.title) for row in table.rows]
    arms = arms if len(arms) <= len(PALETTE) else first_shown(table)
    records = [record for record in curves_of(table) if record["arm"] in arms]
    low, high = ends(records, arms)
    scale = alt.Scale(domain=[low, high])
    color = alt.Color(
        "arm:N",
        sort=arms,
        scale=alt.Scale(range=PALETTE),
        legend=alt.Legend(title=None, labelLimit=0, symbolOpacity=1),
    )
    base = alt.Chart(alt.Data(values=records)).encode(x="step:Q", color=color)
    return alt.layer(
        base.mark_area(clip=True, opacity=0.18).encode(
            y=alt.Y("low:Q", scale=scale, title="validation loss"), y2="high:Q"
        ),
        base.mark_line(clip=True).encode(y="loss:Q"),
    ).properties(width=480, height=240, padding=WIDER)


def main() -> None:
    parser = programs.parser(__doc__, "scripts.draw")
    parser.add_argument("study", type=Path, help="folder of a study")
    parser.add_argument("--out", type=Path, default=Path(), help="folder of the figures; default: this one")
    parser.add_argument("--format", choices=[ending[1:] for ending in FORMATS], default="svg")
    args = parser.parse_args()
    with one_line_errors():
        table = report.load(args.study)
        if not any(row.mean is not None for row in table.rows):
            raise ConfigError(f"{args.study}: no arm has ended yet; run its command first")
        charts = {"map": grid(table)} if grid_keys(table) else {"intervals": intervals(table)}
        args.out.mkdir(parents=True, exist_ok=True)
        for name, chart in {**charts, "curves": curves(table)}.items():
            file = args.out / f"{name}.{args.format}"
            save(chart, file)
            print(file)


if __name__ == "__main__":
    main()
