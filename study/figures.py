"""Figures by Altair (Vega-Lite): of the page, where Vega-Lite draws them, and of files."""

from pathlib import Path

import altair as alt
import vl_convert

alt.data_transformers.disable_max_rows()
FORMATS = (".svg", ".png", ".pdf")  # file formats of a saved figure
VERSION = ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])  # of Vega-Lite
Chart = alt.TopLevelMixin


def svg(chart: Chart) -> str:
    return str(vl_convert.vegalite_to_svg(chart.to_dict(), vl_version=VERSION))


def save(chart: Chart, out: Path) -> None:
    """Draw a figure into a file whose ending is one of FORMATS. Raises OSError if the file cannot be
    written."""
    if out.suffix == ".svg":
        out.write_text(svg(chart), encoding="utf-8")
    elif out.suffix == ".png":
        out.write_bytes(vl_convert.vegalite_to_png(chart.to_dict(), vl_version=VERSION, scale=2))
    else:
        out.write_bytes(vl_convert.vegalite_to_pdf(chart.to_dict(), vl_version=VERSION))
