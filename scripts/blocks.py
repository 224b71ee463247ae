"""Show what a trained model's blocks and norms do: a table by depth, and a figure of the norms' maps.

    python -m scripts.blocks runs/NAME                  the newest checkpoint of a run
    python -m scripts.blocks FILE.safetensors --out maps.png
    python -m scripts.blocks runs/NAME --data my.txt    if the run was trained on data.path=my.txt
    python -m scripts.blocks gpt2 --data my.txt         GPT-2, or a folder in its layout

The table has, for each block, on windows of the run's validation split, in fp32: the loss without the block
minus the loss with all blocks; how far the block turns the stream (the angular distance, from 0 to 1); and
the variance of the stream after the block. If --windows is more than the default, it is for the loss alone.
The line below the table tells whether the model is causal. The figure shows the outputs of each norm, before
gain and bias, against its inputs."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import altair as alt
from rich import box
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from cli import programs
from cli.errors import one_line_errors
from cli.schema import ModelSource
from data.errors import ConfigError
from data.prepared import Prepared, prepare
from interop.hub import HUB
from study.figures import FORMATS, save
from training.checkpoint import Checkpoint
from training.load_run import load as load_chosen
from training.load_run import load_model

if TYPE_CHECKING:
    from torch import Tensor

CACHE = "data/cache"  # folder of prepared tokens
TOKENS = 4096  # default number of tokens taken from the validation split
POINTS = 400  # number of points in a panel of the figure
COST, DISTANCE, VARIANCE = "loss without it − with it", "angular distance", "variance after it"
Columns = dict[str, dict[str, float]]  # title -> site -> number; a site is embed, a block as 00, or final
Maps = dict[str, tuple["Tensor", "Tensor"]]  # site of a norm -> its inputs, its outputs


@dataclass
class Measurements:
    headline: str
    columns: Columns
    maps: Maps
    certificate: str


def load(name: str) -> Checkpoint:
    """Load a checkpoint, a run's newest checkpoint, or pretrained weights. Raises what
    training.load_model.load raises."""
    path = Path(name)
    kind = "checkpoint" if path.is_file() else "run"
    kind = "init_from" if name in HUB or (path / "config.json").exists() else kind
    source: dict[str, Any] = dict.fromkeys(("run", "checkpoint", "init_from")) | {kind: name}
    return load_chosen(ModelSource(**source, which="last", runs_dir="."))


def load_data(name: str, loaded: Checkpoint, path: str | None) -> Prepared:
    """Return the tokens of the text on which a checkpoint was trained, or of any text for pretrained weights.
    The checkpoint may be untrusted: it chooses neither the file that is read nor the folder of the cache.
    Raises ConfigError and DataError."""
    meta = loaded.meta
    updates = {"path": path, "cache": CACHE}
    if not meta.fingerprint:
        updates |= {"corpus": "text" if path else "shakespeare", "tokenizer": "init_from"}
    config = meta.config.data.model_copy(update=updates)
    if config.corpus == "shakespeare" and path is not None:
        raise ConfigError(f"--data: {name} was trained on data=shakespeare, which is read; leave --data out")
    was_downloaded = config.corpus == "tinyshakespeare" and (Path(CACHE) / "tinyshakespeare.txt").exists()
    if config.corpus != "shakespeare" and not was_downloaded and path is None:
        text = f"{config.corpus} {meta.config.data.path or ''}".strip()
        raise ConfigError(f"--data: {name} was trained on data={text}; if you trust that, give --data PATH")
    data = prepare(**config.model_dump(), spec=meta.tokenizer if config.tokenizer == "init_from" else None)
    if meta.fingerprint not in ("", data.fingerprint):
        raise ConfigError(f"{name}: the text is not the one that the model was trained on; restore that text")
    data.check_length(meta.config.model.block_size)
    return data


def measure_model(name: str, windows: int | None, data_path: str | None, trust: str | None) -> Measurements:
    """Measure a model; stderr says what takes long. Raises CheckpointError, ConfigError and DataError."""
    import torch

    from probe import block_effects, causality, norm_maps
    from training.batches import fixed_windows
    from training.loss import cross_entropy

    print("loading the model", file=sys.stderr, flush=True)
    loaded = load(name)
    data = load_data(name, loaded, data_path)
    config, vocab_size = loaded.meta.config, data.tokenizer.vocab_size
    T = config.model.block_size
    rows = max(1, TOKENS // T)
    windows = windows or rows
    model = load_model(loaded, vocab_size, trust).eval()
    batches = [[*map(torch.from_numpy, batch)] for batch in fixed_windows(data.val, T, windows, rows)]
    count = sum(len(idx) for idx, _ in batches)
    # for the stream and the maps, which are kept in memory
    [idx] = (torch.from_numpy(idx) for idx, _ in fixed_windows(data.val, T, min(windows, rows), rows))

    def loss_of(net: Any) -> float:
        return sum(len(idx) * float(cross_entropy(net, idx, targets)) for idx, targets in batches) / count

    with torch.no_grad():
        print(
            f"measuring the loss and the stream on {count} windows of {T} tokens", file=sys.stderr, flush=True
        )
        loss, streams = loss_of(model), block_effects.stream(model, idx)
        blocks = [f"{i:02d}" for i in range(config.model.n_layer)]
        print(f"leaving out each of {len(blocks)} blocks", file=sys.stderr, flush=True)
        costs = block_effects.skip_costs(model, loss_of)
        columns: Columns = {
            COST: dict(zip(blocks, costs, strict=True)),
            DISTANCE: dict(zip(blocks, block_effects.angular_distances(streams), strict=True)),
            VARIANCE: {site: float(x.var()) for site, x in zip(["embed", *blocks], streams, strict=True)},
        }
        print("recording the inputs and outputs of the norms", file=sys.stderr, flush=True)
        maps = norm_maps.maps(model, idx)
    print("testing whether the model is causal", file=sys.stderr, flush=True)
    certificate = causality.certificate(model, vocab_size, initial=False)
    headline = f"{config.label()}, step {loaded.meta.step:,}: loss {loss:.4f} on {count} windows"
    return Measurements(headline, columns, maps, causality.describe(certificate, config.label()))


def depth_table(columns: Columns, formats: Mapping[str, str] | None = None) -> Table:
    """Return a table for a terminal: a row for the embedding, for each block, and for the final norm.
    ``formats``: title -> format of the column, by default .3g."""
    order = {"embed": 0, "final": 2}  # before and after the blocks 00, 01, …, 100
    found = {site for column in columns.values() for site in column}
    sites = sorted(found, key=lambda site: (order.get(site, 1), len(site), site))
    forms = {title: (formats or {}).get(title, ".3g") for title in columns}
    cells = {
        title: [format(column[site], forms[title]) if site in column else "" for site in sites]
        for title, column in columns.items()
    }
    table = Table(Column(no_wrap=True), box=box.SIMPLE_HEAD, pad_edge=False)
    for title, numbers in cells.items():  # where there is no room titles wrap, and numbers do not
        table.add_column(Text(title), justify="right", overflow="fold", min_width=max(map(len, numbers)))
    for row in zip(sites, *cells.values(), strict=True):
        table.add_row(*row)
    return table


def maps_figure(maps: Maps) -> alt.FacetChart:
    """Return a figure with a panel per norm: POINTS of its outputs against their inputs."""
    rows = [
        {"norm": site, "in": x_value, "out": y_value}
        for site, pair in maps.items()
        for x_value, y_value in zip(*(sampled(x.flatten()).tolist() for x in pair), strict=True)
    ]
    points = alt.Chart(alt.InlineData(values=rows), width=130, height=110).encode(x="in:Q", y="out:Q")
    points = points.mark_point(filled=True, size=5, opacity=0.5)
    facet = alt.Facet("norm:N", title=None, sort=[*maps])
    return points.facet(facet, columns=4).resolve_scale(x="independent")


def sampled(values: "Tensor") -> "Tensor":
    """Return POINTS of the values, or all if there are fewer: always of the same places."""
    import torch

    return values[torch.randperm(len(values), generator=torch.Generator().manual_seed(0))[:POINTS]]


def main() -> None:
    parser = programs.parser(__doc__, "scripts.blocks")
    add = parser.add_argument
    add("run", help="a run's folder, or a checkpoint")
    add("--out", type=Path, default=Path("maps.svg"), help="file of the figure: .svg, .png or .pdf")
    add(
        "--windows",
        type=programs.positive,
        metavar="N",
        help=f"number of validation windows; default: as many as have {TOKENS:,} tokens",
    )
    add(
        "--data",
        metavar="PATH",
        help="the text that the run was trained on, unless data=shakespeare or tinyshakespeare",
    )
    add("--trust", metavar="PACKAGE", help="packages, A,B, whose code the checkpoint may name")
    args = parser.parse_args()
    if args.out.suffix not in FORMATS:
        parser.error(f"--out: {args.out} should end in .svg, .png or .pdf")
    with one_line_errors():
        result = measure_model(args.run, args.windows, args.data, args.trust)
        print(result.headline)
        Console(highlight=False).print(
            depth_table(result.columns, {COST: "+.4f", DISTANCE: ".4f"}), crop=False
        )
        print(result.certificate)
        if result.maps:
            print("drawing", file=sys.stderr, flush=True)
            save(maps_figure(result.maps), args.out)
        print(args.out if result.maps else "the model has no norm, so there is no figure")


if __name__ == "__main__":
    main()
