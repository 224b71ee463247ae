"""Format a table by depth: a row for the embedding, for each block, and for the final norm."""

from collections.abc import Mapping

from rich.table import Table

from comparison.drawing.printed import rich_table

Columns = dict[str, dict[str, float]]  # title -> site -> number; a site is embed, a block as 00, or final


def depth_table(columns: Columns, formats: Mapping[str, str] | None = None) -> Table:
    """Return a table for a terminal. ``formats``: title -> format of the column, by default .3g."""
    forms = formats or {}
    order = {"embed": 0, "final": 2}  # before and after the blocks 00, 01, …, 100
    sites = {site for column in columns.values() for site in column}
    in_order = sorted(sites, key=lambda site: (order.get(site, 1), len(site), site))
    cells = [
        {"": site}
        | {
            title: format(column[site], forms.get(title, ".3g")) if site in column else ""
            for title, column in columns.items()
        }
        for site in in_order
    ]
    table = rich_table(cells, {""})
    for column, title in zip(table.columns[1:], columns, strict=True):  # where there is no room, titles wrap
        column.no_wrap, column.overflow = False, "fold"
        column.min_width = max(len(row[title]) for row in cells)
    return table
