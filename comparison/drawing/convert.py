"""Convert a figure's description in Vega-Lite to SVG, PNG or PDF."""

from pathlib import Path

import vl_convert

from comparison.drawing.specs import Spec

FORMATS = (".svg", ".png", ".pdf")  # file formats of a saved figure


def svg(description: Spec) -> str:
    return str(vl_convert.vegalite_to_svg(description))


def save(description: Spec, out: Path) -> None:
    """Draw a figure into a file whose ending is one of FORMATS. Raises OSError if the file cannot be
    written."""
    if out.suffix == ".svg":
        out.write_text(svg(description), encoding="utf-8")
    elif out.suffix == ".png":
        out.write_bytes(vl_convert.vegalite_to_png(description, scale=2))
    else:
        out.write_bytes(vl_convert.vegalite_to_pdf(description))
