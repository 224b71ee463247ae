"""Which norms look where they must not: the certificates of all, as the table in README.md.

    python -m scripts.leak_table                    every norm of conf/norm, in every placement
    python -m scripts.leak_table --config-dir mine  yours, too

It takes train.py's arguments for the model. For each norm: how far a logit moves, in standard deviations of
the logits, when later tokens change and when other rows of the batch do, the most over all placements. 0 is
exactly 0, of the gradients, too.

A program, as train.py is one, so it may import what these may.
"""

import math
import sys
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.progress import track

from cli import app, messages
from cli.schema import RunConfig

VOCABULARY = 65  # of the model that is looked at; it has seen no text
COLUMNS = [(mode, kind) for mode in ("train", "eval") for kind in ("future", "rows")]
HEAD = "| norm | training: later tokens | other rows | evaluation: later tokens | other rows |"


def rows(arguments: list[str]) -> Iterator[tuple[str, list[float]]]:
    """Each norm's name and its four numbers. Raises as cli.choices."""
    from diagnostics.causality import certificate
    from training.build import build_model

    norms = app.choices("config", RunConfig, ["norm=glob(*)", *arguments])
    placements = app.choices("config", RunConfig, ["placement=glob(*)", *arguments])
    by_norm = {config.norm.name: config for config in norms.values()}
    wheres = {config.placement.name: config.placement for config in placements.values()}
    console = Console(stderr=True)
    for name, config in track(
        by_norm.items(), "certifying", console=console, disable=not console.is_terminal
    ):
        configs = [config.model_copy(update={"placement": where}) for where in wheres.values()]
        found = [certificate(build_model(one, VOCABULARY), VOCABULARY) for one in configs]

        def most(mode: str, kind: str, found: list[dict[str, Any]] = found) -> float:
            told = all(of["causal"] is not None for of in found)  # else a model raised or was not finite
            return max(of[mode][kind] or of[mode][f"{kind}_gradient"] for of in found) if told else math.nan

        yield name, [most(mode, kind) for mode, kind in COLUMNS]


def table(arguments: list[str]) -> str:
    """The table in Markdown."""
    lines = [HEAD, "|---" * 5 + "|"]
    for norm, leaks in rows(arguments):
        cells = [
            "cannot be told" if math.isnan(leak) else f"**{leak:.1g}**" if leak else "0" for leak in leaks
        ]
        lines.append(f"| `{norm}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    if sys.argv[1:] in (["--help"], ["-h"]):
        print(__doc__)
        return
    try:
        print(table(sys.argv[1:]))
    except Exception as error:
        messages.report(error, app.known_keys(RunConfig))
        sys.exit(1)


if __name__ == "__main__":
    main()
