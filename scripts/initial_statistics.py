"""Measure a model before it is trained: a table by depth, for one choice or for several.

    python -m scripts.initial_statistics norm=layernorm placement=post
    python -m scripts.initial_statistics norm=layernorm,batchnorm placement=pre,post model.n_layer=12

The arguments are those of train.py. The program measures the initial weights on the run's first micro-batch,
in fp32. The table has a row for each block:

    variance            of the stream after the block
    attention / stream  ‖output of the attention‖ / ‖stream‖
    MLP / stream        ‖output of the MLP‖ / ‖stream‖
    gradient            the norm of the gradient of the block's matrices

The line below the table says whether the model is causal."""

import torch

from cli import programs
from cli.compose import choices
from cli.errors import one_line_errors
from cli.schema import RunConfig
from model.seeds import seed_for
from probe import causality, metric_names
from probe.activations import Activations
from probe.statistics import Weights, on_host
from scripts.show import Columns, print_table
from training.batches import training_batch
from training.build import build_and_try
from training.device import choose
from training.loss import Net, cross_entropy
from training.open_run import tokens_of


def measure(config: RunConfig) -> tuple[Columns, str]:
    """Return the columns of the table, and the line about causality."""
    data, T = tokens_of(config), config.model.block_size
    data.check_length(T)
    rows = config.train.batch_size // config.train.grad_accum
    batch = training_batch(data.train, T, rows, seed_for(config.seed, "data", 0))
    x, y = map(torch.from_numpy, batch)

    def loss_of(net: Net) -> torch.Tensor:
        torch.manual_seed(seed_for(config.seed, "dropout", 0, 0))
        return cross_entropy(net, x, y)

    model = build_and_try(config, data.tokenizer.vocab_size, choose("cpu", "fp32"), loss_of)
    certificate = causality.certificate(model, data.tokenizer.vocab_size)
    wanted = metric_names.selection(["act.std", "act.ratio", "grad.norm"], ["*"])
    with Activations(model, wanted) as values:
        loss_of(model).backward()
    numbers = on_host(values | Weights(model, wanted).before())

    def column(metric: str, place: str, *others: str) -> dict[str, float]:
        """Return the numbers of a metric at ``place`` in each block, and at other sites. A user's own
        placement may lack some."""
        places = {f"{i:02d}": f"{i:02d}{place}" for i in range(config.model.n_layer)}
        keys = {site: f"{metric}/{each}" for site, each in (places | {o: o for o in others}).items()}
        return {site: numbers[key] for site, key in keys.items() if key in numbers}

    variances = {site: std**2 for site, std in column("act.std", ".mlp", "embed", "final").items()}
    columns = {
        "variance": variances,
        "attention / stream": column("act.ratio", ".attn.branch"),
        "MLP / stream": column("act.ratio", ".mlp.branch"),
        "gradient": column("grad.norm", "", "embed"),
    }
    return columns, causality.describe(certificate, config.label())


def main() -> None:
    _, arguments = programs.parser(__doc__, "scripts.initial_statistics").parse_known_args()
    with one_line_errors():
        for choice, config in choices(arguments).items():
            columns, about_causality = measure(config)
            print(choice or config.label())
            print_table(columns)
            print(about_causality, flush=True)


if __name__ == "__main__":
    main()
