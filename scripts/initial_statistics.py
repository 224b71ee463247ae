"""Measure a model before it is trained: a table by depth, for one choice or for several side by side.

    python -m scripts.initial_statistics norm=layernorm placement=post
    python -m scripts.initial_statistics norm=layernorm,batchnorm placement=pre,post model.n_layer=12

The arguments are those of train.py. The program measures the initial weights on that run's first micro-batch,
in fp32. The table has, for each block: the variance of the stream after the block, ‖attention‖ / ‖stream‖,
‖MLP‖ / ‖stream‖, and the norm of the gradient of the block's matrices. The line below the table tells whether
the model is causal."""

import sys
from collections.abc import Mapping

from rich.console import Console

from cli import compose as app
from cli import programs
from cli.errors import one_line_errors
from cli.schema import RunConfig
from scripts.blocks import Columns, depth_table

QUANTITIES = ("variance of the stream", "attention / stream", "MLP / stream", "norm of the gradient")


def measure_choice(config: RunConfig) -> tuple[Columns, str]:
    """Return the columns of the table for one choice, and the line about causality."""
    import torch

    from model.seeds import seed_for
    from probe import causality, metric_names
    from probe.activations import Activations
    from probe.statistics import Weights, on_host
    from training.batches import training_batch
    from training.build import build_and_try
    from training.device import choose
    from training.loss import Net, cross_entropy
    from training.open_run import tokens_of

    data, T = tokens_of(config), config.model.block_size
    data.check_length(T)
    rows = config.train.batch_size // config.train.grad_accum
    batch = training_batch(data.train, T, rows, seed_for(config.seed, "data", 0))
    x, y = (torch.from_numpy(tokens) for tokens in batch)

    def loss_of(net: Net) -> torch.Tensor:
        torch.manual_seed(seed_for(config.seed, "dropout", 0, 0))
        return cross_entropy(net, x, y)

    model = build_and_try(config, data.tokenizer.vocab_size, choose("cpu", "fp32"), loss_of)
    certificate = causality.certificate(model, data.tokenizer.vocab_size)
    wanted = metric_names.selection(["act.std", "act.ratio", "grad.norm"], ["*"])
    with Activations(model, wanted) as values:
        loss_of(model).backward()
    numbers = on_host(values | Weights(model, wanted).before())

    blocks = [f"{i:02d}" for i in range(config.model.n_layer)]
    ratios = [  # a placement of one's own may lack them
        {block: numbers[key] for block in blocks if (key := f"act.ratio/{block}.{branch}.branch") in numbers}
        for branch in ("attn", "mlp")
    ]
    streams = {"embed": "embed"} | {block: f"{block}.mlp" for block in blocks} | {"final": "final"}
    columns = (
        {site: numbers[f"act.std/{stream}"] ** 2 for site, stream in streams.items()},
        *ratios,
        {site: numbers[f"grad.norm/{site}"] for site in ("embed", *blocks)},
    )
    return dict(zip(QUANTITIES, columns, strict=True)), causality.describe(certificate, config.label())


def main() -> None:
    _, arguments = programs.parser(__doc__, "scripts.initial_statistics").parse_known_args()
    with one_line_errors():
        configs = app.choices(arguments)
        measured = {}
        for choice, config in configs.items():
            print(f"measuring {config.label()}", file=sys.stderr, flush=True)
            measured[choice] = measure_choice(config)
        show(measured)


def show(measured: Mapping[str, tuple[Columns, str]]) -> None:
    """Print the table of the only choice, or one for each quantity, and the lines on causality."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 1000  # more than the tables need, so that nothing is cut
    if len(measured) == 1:
        [(columns, causality_line)] = measured.values()
        console.print(depth_table(columns), crop=False)
        print(causality_line)
        return
    for quantity in QUANTITIES:
        by_choice = {choice: columns[quantity] for choice, (columns, _) in measured.items()}
        console.print(quantity, depth_table(by_choice), crop=False)
    for choice, (_, causality_line) in measured.items():
        print(f"{choice}: {causality_line}")


if __name__ == "__main__":
    main()
