"""Measure a model before it is trained: a table by depth, for one choice or for several side by side.

    python -m scripts.initial_statistics norm=layernorm placement=post
    python -m scripts.initial_statistics norm=layernorm,batchnorm placement=pre,post model.n_layer=12

The arguments are those of train.py; measured are the initial weights on the first micro-batch of that run, in
fp32. The table has, for each block: the variance of the stream after the block, ‖attention‖ / ‖stream‖,
‖MLP‖ / ‖stream‖, and the norm of the gradient of the block's matrices. The line below tells whether the model
is causal."""

import os
import sys

from rich.console import Console
from rich.table import Table

from cli import app, messages
from cli.schema import RunConfig
from comparison.table import rich_table

QUANTITIES = ("variance of the stream", "attention / stream", "MLP / stream", "norm of the gradient")
Columns = dict[str, dict[str, float]]  # title -> site -> number; a site is embed, a block, or final


def measure_choice(config: RunConfig) -> tuple[Columns, str]:
    """Return the columns of the table for one choice, and the line about causality."""
    import torch

    from data import windows
    from diagnostics import causality, metric_names
    from diagnostics.activations import Activations
    from diagnostics.statistics import on_host
    from diagnostics.weights import Weights
    from model.seeds import seed_for
    from training.device import choose
    from training.dry_run import build_and_try
    from training.load_data import tokens_of
    from training.loss import Net, cross_entropy

    data, T = tokens_of(config), config.model.block_size
    data.check_length(T)
    rows = config.train.batch_size // config.train.grad_accum
    batch = windows.training_batch(data.train, T, rows, seed_for(config.seed, "data", 0))
    x, y = (torch.from_numpy(tokens) for tokens in batch)

    def loss_of(net: Net) -> torch.Tensor:
        torch.manual_seed(seed_for(config.seed, "dropout", 0, 0))
        return cross_entropy(net, x, y)

    model = build_and_try(config, data.tokenizer.vocab_size, choose("cpu", "fp32"), loss_of).model
    certificate = causality.certificate(model, data.tokenizer.vocab_size)
    wanted = metric_names.selection(["act.std", "act.ratio", "grad.norm"], ["*"])
    with Activations(model, wanted) as values:
        loss_of(model).backward()
    numbers = on_host(values | Weights(model, wanted).before())

    blocks = [f"{i:02d}" for i in range(config.model.n_layer)]
    streams = {"embed": "embed"} | {block: f"{block}.mlp" for block in blocks} | {"final": "final"}
    columns = (
        {site: numbers[f"act.std/{stream}"] ** 2 for site, stream in streams.items()},
        {block: numbers[f"act.ratio/{block}.attn.branch"] for block in blocks},
        {block: numbers[f"act.ratio/{block}.mlp.branch"] for block in blocks},
        {site: numbers[f"grad.norm/{site}"] for site in ("embed", *blocks)},
    )
    return dict(zip(QUANTITIES, columns, strict=True)), causality.describe(certificate, config.chosen())


def table(columns: Columns) -> Table:
    order = {"embed": "", "final": "~"}  # before and after the blocks 00, 01, …
    sites = sorted({site for column in columns.values() for site in column}, key=lambda s: order.get(s, s))
    cells = [
        {"": site} | {name: f"{c[site]:.3g}" if site in c else "" for name, c in columns.items()}
        for site in sites
    ]
    return rich_table(cells, {""})


def main() -> None:
    arguments = sys.argv[1:]
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        configs = app.choices("config", RunConfig, arguments)
        tables = {choice: measure_choice(config) for choice, config in configs.items()}
    except Exception as error:
        messages.report(error, app.known_keys(RunConfig))
        sys.exit(1)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 30 + 30 * len(tables)  # wide enough for a file
    if len(tables) == 1:
        [(columns, certificate)] = tables.values()
        console.print(table(columns))
        print(certificate)
        return
    for quantity in QUANTITIES:
        console.print(quantity, table({choice: columns[quantity] for choice, (columns, _) in tables.items()}))
    for choice, (_, certificate) in tables.items():
        print(f"{choice}: {certificate}")


if __name__ == "__main__":
    main()
