"""Show what a trained model's blocks and norms do: a table by depth, and a figure of the norms' maps.

    python -m scripts.blocks runs/NAME                  the newest checkpoint of a run
    python -m scripts.blocks FILE.safetensors --out maps.png
    python -m scripts.blocks runs/NAME --data my.txt    if the text of the run, data.path, is elsewhere now
    python -m scripts.blocks gpt2 --data my.txt         GPT-2, or a folder in its layout

The table has, for each block, on some 4,000 tokens of the run's validation split, in fp32: the loss without
the block minus the loss with all blocks; how far the block turns the stream (the angular distance, from 0 to
1); and the variance of the stream after the block. The line below the table tells whether the model is
causal. The figure shows the outputs of each norm, before gain and bias, against its inputs."""

import sys
from pathlib import Path
from typing import Any

import altair as alt
import torch
from rich import box
from rich.console import Console
from rich.table import Column, Table
from torch import Tensor

from cli import programs
from cli.errors import checked, one_line_errors
from cli.schema import DataConfig, ModelSource
from data.errors import ConfigError
from data.prepared import Prepared, prepare
from interop.pretrained import HUB
from model import GPT
from probe import block_effects, causality, norm_maps
from study.figures import FORMATS, save
from training.batches import fixed_windows
from training.checkpoint import Checkpoint
from training.load_run import load as load_chosen
from training.load_run import load_model
from training.loss import Net, cross_entropy

CACHE = "data/cache"  # folder of prepared tokens; a checkpoint of others does not choose it
TOKENS = 4096  # number of tokens taken from the validation split
POINTS = 400  # number of points in a panel of the figure
COST, DISTANCE, VARIANCE = "loss without it − with it", "angular distance", "variance after it"
FORMATS_OF = {COST: "+.4f", DISTANCE: ".4f"}  # the other columns have three digits
Columns = dict[str, dict[str, float]]  # title -> site -> number; a site is embed, a block as 00, or final
Maps = dict[str, tuple[Tensor, Tensor]]  # site of a norm -> its inputs, its outputs


def load(name: str) -> Checkpoint:
    """Load a checkpoint, a run's newest checkpoint, or pretrained weights. Raises what
    training.load_run.load raises."""
    path = Path(name)
    kind = "checkpoint" if path.is_file() else "run"
    kind = "init_from" if name in HUB or any(path.glob("*.safetensors")) else kind
    source: dict[str, Any] = dict.fromkeys(("run", "checkpoint", "init_from")) | {kind: name}
    return load_chosen(ModelSource(**source, which="last", runs_dir="."))


def text_of(loaded: Checkpoint, path: str | None) -> Prepared:
    """Return the tokens of the text on which a checkpoint was trained, which is at ``path`` now if that is
    given; those of any text for pretrained weights. Raises ConfigError and DataError."""
    meta = loaded.meta
    values = meta.config.data.model_dump() | {"cache": CACHE} | ({"path": path} if path else {})
    if not meta.fingerprint:  # pretrained
        values |= {"corpus": "text" if path else "shakespeare", "tokenizer": "init_from"}
    config = checked(DataConfig, values)
    data = prepare(**config.model_dump(), spec=meta.tokenizer if config.tokenizer == "init_from" else None)
    if meta.fingerprint not in ("", data.fingerprint):
        raise ConfigError(
            f"--data: the text is not the one that {loaded.path} was trained on; give the path of that text"
        )
    data.check_length(meta.config.model.block_size)
    return data


@torch.no_grad()
def measure(model: GPT, idx: Tensor, targets: Tensor) -> tuple[float, Columns, Maps]:
    """Return the loss of a model in evaluation mode, the columns of the table, and the norms' maps."""

    def loss_of(net: Net) -> float:
        return float(cross_entropy(net, idx, targets))

    blocks = [f"{i:02d}" for i in range(len(model.blocks))]
    streams = block_effects.stream(model, idx)
    columns = {
        COST: dict(zip(blocks, block_effects.skip_costs(model, loss_of), strict=True)),
        DISTANCE: dict(zip(blocks, block_effects.angular_distances(streams), strict=True)),
        VARIANCE: {site: float(x.var()) for site, x in zip(["embed", *blocks], streams, strict=True)},
    }
    return loss_of(model), columns, norm_maps.maps(model, idx)


def print_table(columns: Columns) -> None:
    """Print a row for the embedding, for each block, and for the final norm."""
    order = {"embed": 0, "final": 2}  # before and after the blocks 00, 01, …, 100
    sites = {site for column in columns.values() for site in column}
    table = Table("", *(Column(title, justify="right") for title in columns), box=box.SIMPLE_HEAD)
    for site in sorted(sites, key=lambda site: (order.get(site, 1), len(site), site)):
        numbers = {title: column[site] for title, column in columns.items() if site in column}
        cells = {title: format(number, FORMATS_OF.get(title, ".3g")) for title, number in numbers.items()}
        table.add_row(site, *(cells.get(title, "") for title in columns))
    Console(highlight=False).print(table, crop=False)


def maps_figure(maps: Maps) -> alt.FacetChart:
    """Return a figure with a panel per norm: POINTS of its outputs against their inputs."""
    rows = []
    for site, (x, y) in maps.items():
        places = torch.randperm(x.numel(), generator=torch.Generator().manual_seed(0))[:POINTS]
        pairs = zip(x.flatten()[places].tolist(), y.flatten()[places].tolist(), strict=True)
        rows += [{"norm": site, "in": x_value, "out": y_value} for x_value, y_value in pairs]
    points = alt.Chart(alt.InlineData(values=rows), width=130, height=110).encode(x="in:Q", y="out:Q")
    points = points.mark_point(filled=True, size=5, opacity=0.5)
    facet = alt.Facet("norm:N", title=None, sort=[*maps])
    return points.facet(facet, columns=4).resolve_scale(x="independent")


def main() -> None:
    parser = programs.parser(__doc__, "scripts.blocks")
    parser.add_argument("run", help="a run's folder, a checkpoint, or weights in GPT-2's layout")
    parser.add_argument("--out", type=Path, default="maps.svg", help="file of the figure: .svg, .png or .pdf")
    parser.add_argument("--data", metavar="PATH", help="the text that the run was trained on")
    parser.add_argument(
        "--trust", metavar="PACKAGE", help="packages, A,B, whose code the checkpoint may name"
    )
    args = parser.parse_args()
    with one_line_errors():
        if args.out.suffix not in FORMATS:
            raise ConfigError(f"--out: {args.out} is of an unknown format; use .svg, .png or .pdf")
        loaded = load(args.run)
        data, config = text_of(loaded, args.data), loaded.meta.config
        model = load_model(loaded, data.tokenizer.vocab_size, args.trust).eval()
        rows = max(1, TOKENS // config.model.block_size)
        [batch] = fixed_windows(data.val, config.model.block_size, rows, rows)
        idx, targets = map(torch.from_numpy, batch)
        print(f"leaving out each of {config.model.n_layer} blocks", file=sys.stderr, flush=True)
        loss, columns, maps = measure(model, idx, targets)
        windows = f"{len(idx)} windows of {config.model.block_size} tokens"
        print(f"{config.label()}, step {loaded.meta.step:,}: loss {loss:.4f} on {windows}")
        print_table(columns)
        print("testing whether the model is causal", file=sys.stderr, flush=True)
        certificate = causality.certificate(model, data.tokenizer.vocab_size, initial=False)
        print(causality.describe(certificate, config.label()))
        if maps:
            save(maps_figure(maps), args.out)
        print(args.out if maps else "the model has no norm, so there is no figure")


if __name__ == "__main__":
    main()
