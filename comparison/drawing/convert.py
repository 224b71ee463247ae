"""Convert a figure's description in Vega-Lite to SVG, PNG or PDF."""

from pathlib import Path
from typing import Any

from comparison.drawing.specs import Spec
from system.errors import UserError
from system.os_compat import address_space

FORMATS = (".svg", ".png", ".pdf")  # file formats of a saved figure
RESERVED = 2**38  # bytes; 48 GB were too little and 200 GB enough (measured)


def converter() -> Any:
    """Return the library that draws. Raises UserError under a low limit on the address space: its JavaScript
    engine reserves RESERVED bytes, and aborts the process where it cannot."""
    if address_space() < RESERVED:
        raise UserError(
            "ulimit -v: the page and the figures need more address space; run ulimit -v unlimited"
        )
    import vl_convert

    return vl_convert


def svg(description: Spec) -> str:
    return str(converter().vegalite_to_svg(description))


def save(description: Spec, out: Path) -> None:
    """Draw a figure into a file whose ending is one of FORMATS. Raises UserError as ``converter`` does, and
    OSError if the file cannot be written."""
    vl_convert = converter()

    if out.suffix == ".svg":
        out.write_text(svg(description), encoding="utf-8")
    elif out.suffix == ".png":
        out.write_bytes(vl_convert.vegalite_to_png(description, scale=2))
    else:
        out.write_bytes(vl_convert.vegalite_to_pdf(description))
