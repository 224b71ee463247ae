"""What the programs that show a model share: a table by depth, and a check of a figure's file name."""

from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Column, Table

from data.errors import ConfigError
from study.figures import FORMATS

Columns = dict[
    str, dict[str, float]
]  # title -> site -> number; a site is embed, a block such as 00, or final


def print_table(columns: Columns, digits: str = ".3g") -> None:
    """Print a row for the embedding, for each block, and for the final norm."""
    order = {"embed": 0, "final": 2}  # before and after the blocks 00, 01, …, 100
    sites = {site for column in columns.values() for site in column}
    table = Table("", *(Column(title, justify="right") for title in columns), box=box.SIMPLE_HEAD)
    for site in sorted(sites, key=lambda site: (order.get(site, 1), len(site), site)):
        numbers = (column.get(site) for column in columns.values())
        table.add_row(site, *("" if number is None else format(number, digits) for number in numbers))
    Console(highlight=False).print(table, crop=False)


def check_format(out: Path) -> None:
    """Raise ConfigError if a figure cannot be saved under this name."""
    if out.suffix not in FORMATS:
        raise ConfigError(f"--out: {out} is of an unknown format; use .svg, .png or .pdf")
