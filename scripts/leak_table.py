"""Print the causality certificates of all norms, as the table in results/leaks.md.

    python -m scripts.leak_table                    every norm of conf/norm, in every placement
    python -m scripts.leak_table --config-dir mine  also the norms in mine/norm

The other arguments are those of train.py. The table has, for each norm, the largest change of a logit over
all placements, in standard deviations of the logits, when later tokens change and when other rows of the
batch change, or when another batch came before; or, where no logit changes, the size of the gradient,
relative to the allowed part. 0 means that no logit changes and that the gradients are exactly 0."""

import sys
from collections.abc import Iterator
from typing import Any

from cli import app, programs
from cli.schema import RunConfig
from rundir import run_files
from system.terminal import announced

VOCABULARY = 65  # number of tokens; any number will do, as the model is untrained
COLUMNS = [(mode, kind) for mode in ("train", "eval") for kind in ("future", "rows")]
HEAD = "| norm | training: later tokens | other rows | evaluation: later tokens | other rows |"


def measure_leaks(arguments: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each norm's name and its four cells of the table."""
    with announced("composing the models", sys.stderr):
        from diagnostics.causality import certificate
        from training.build import build_model

        by_norm = app.choices("config", RunConfig, ["norm=glob(*)", *arguments])
        by_placement = app.choices("config", RunConfig, ["placement=glob(*)", *arguments])
    norms = {config.norm.name: config for config in by_norm.values()}
    placements = {config.placement.name: config.placement for config in by_placement.values()}.values()
    for name, config in norms.items():
        with announced(f"certifying {name}", sys.stderr):
            configs = [config.model_copy(update={"placement": placement}) for placement in placements]
            certificates = [certificate(build_model(config, VOCABULARY), VOCABULARY) for config in configs]
        yield name, [largest_leak(certificates, *column) for column in COLUMNS]


def largest_leak(certificates: list[dict[str, Any]], mode: str, kind: str) -> str:
    """Return the largest leak as text; "unknown" if a model raised an error or its logits were not finite."""
    if any(certificate["causal"] is None or mode not in certificate for certificate in certificates):
        return "unknown"
    leak = max(run_files.leak_of(certificate[mode], kind) for certificate in certificates)
    return f"**{leak:.1g}**" if leak else "0"


def table(arguments: list[str]) -> str:
    """Return the table in Markdown."""
    lines = [f"| `{norm}` | {' | '.join(cells)} |" for norm, cells in measure_leaks(arguments)]
    return "\n".join([HEAD, "|---" * 5 + "|", *lines])


def main() -> None:
    _, arguments = programs.parser(__doc__, "scripts.leak_table").parse_known_args()
    with programs.running():
        print(table(arguments))


if __name__ == "__main__":
    main()
