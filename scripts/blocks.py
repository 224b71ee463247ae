"""Show what the blocks and norms of a trained model do: a table by depth, and a figure of the norms' maps.

    python -m scripts.blocks runs/NAME                  the newest checkpoint of a run
    python -m scripts.blocks FILE.safetensors --out maps.png
    python -m scripts.blocks runs/NAME --data my.txt    if the run's text is no longer at data.path
    python -m scripts.blocks gpt2 --data my.txt         GPT-2, or a folder in its layout

The table has a row for each block, computed in fp32 on some 4,000 tokens of the run's validation split:

    cost of removal    by how much the loss rises if the block is left out
    angular distance   how far the block turns the stream, from 0 to 1
    variance           of the stream after the block

The line below the table says whether the model is causal. The figure plots each norm's output, before gain
and bias, against its input."""

import sys
from pathlib import Path
from typing import Any

import altair as alt
import torch
from torch import Tensor

from cli import programs
from cli.errors import checked, one_line_errors
from cli.schema import DataConfig, ModelSource
from data.errors import ConfigError
from data.prepared import Prepared, prepare
from interop.pretrained import HUB
from model import GPT
from probe import block_effects, causality, norm_maps
from scripts.show import Columns, check_format, print_table
from study.figures import save
from training import load_run
from training.batches import fixed_windows
from training.checkpoint import Checkpoint
from training.loss import Net, cross_entropy

CACHE = "data/cache"  # folder of prepared tokens: a stranger's checkpoint must not choose it
TOKENS = 4096  # of the validation split
POINTS = 400  # in a panel of the figure
Maps = dict[str, tuple[Tensor, Tensor]]  # site of a norm -> its inputs, its outputs


def load(name: str) -> Checkpoint:
    """Load a checkpoint, the newest checkpoint of a run, or pretrained weights. Raises UserError."""
    path = Path(name)
    kind = "checkpoint" if path.is_file() else "run"
    kind = "init_from" if name in HUB or any(path.glob("*.safetensors")) else kind
    source: dict[str, Any] = dict.fromkeys(("run", "checkpoint", "init_from")) | {kind: name}
    return load_run.load(ModelSource(**source, which="last", runs_dir="."))


def tokens_of(loaded: Checkpoint, path: str | None) -> Prepared:
    """Return the tokens of the text that a checkpoint was trained on. ``path`` is where the text is now, if
    it has moved. With pretrained weights it may be any text. Raises ConfigError and DataError."""
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
        "cost of removal": dict(zip(blocks, block_effects.skip_costs(model, loss_of), strict=True)),
        "angular distance": dict(zip(blocks, block_effects.angular_distances(streams), strict=True)),
        "variance": {site: float(x.var()) for site, x in zip(["embed", *blocks], streams, strict=True)},
    }
    return loss_of(model), columns, norm_maps.maps(model, idx)


def maps_figure(maps: Maps) -> alt.FacetChart:
    """Return a figure with a panel per norm: POINTS of its outputs against their inputs."""
    rows = []
    for site, pair in maps.items():
        places = torch.randperm(pair[0].numel(), generator=torch.Generator().manual_seed(0))[:POINTS]
        points = zip(*(values.flatten()[places].tolist() for values in pair), strict=True)
        rows += [{"norm": site, "in": x, "out": y} for x, y in points]
    chart = alt.Chart(alt.InlineData(values=rows), width=130, height=110).encode(x="in:Q", y="out:Q")
    chart = chart.mark_point(filled=True, size=5, opacity=0.5)
    facet = alt.Facet("norm:N", title=None, sort=[*maps])
    return chart.facet(facet, columns=4).resolve_scale(x="independent")


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
        check_format(args.out)
        loaded = load(args.run)
        data, config = tokens_of(loaded, args.data), loaded.meta.config
        model = load_run.load_model(loaded, data.tokenizer.vocab_size, args.trust).eval()
        rows = max(1, TOKENS // config.model.block_size)
        [batch] = fixed_windows(data.val, config.model.block_size, rows, rows)
        idx, targets = map(torch.from_numpy, batch)
        print(f"measuring {config.model.n_layer} blocks", file=sys.stderr, flush=True)
        loss, columns, maps = measure(model, idx, targets)
        print(f"{config.label()}, step {loaded.meta.step:,}: ", end="")
        print(f"loss {loss:.4f} on {len(idx)} windows of {config.model.block_size} tokens")
        print_table(columns, ".4g")
        print("testing whether the model is causal", file=sys.stderr, flush=True)
        certificate = causality.certificate(model, data.tokenizer.vocab_size, initial=False)
        print(causality.describe(certificate, config.label()))
        if maps:
            save(maps_figure(maps), args.out)
        print(args.out if maps else "the model has no norm, so there is no figure")


if __name__ == "__main__":
    main()
