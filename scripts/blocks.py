"""What a trained model's blocks and norms do: a table by depth, and a picture of its norms' maps.

    python -m scripts.blocks runs/NAME                  the newest checkpoint of a run
    python -m scripts.blocks FILE.safetensors --out maps.png
    python -m scripts.blocks runs/NAME --data my.txt    of one that was trained on data.path=my.txt
    python -m scripts.blocks gpt2 --data my.txt         OpenAI's, or a folder in Hugging Face's layout

For each block, on windows of the run's validation split, in fp32: the loss without the block less the loss
with it; how far it turns the stream (the angular distance, from 0 to 1); and the variance of the stream
behind it. Below that, whether it keeps to the past. The picture has what goes into each norm against what
comes out, before its gain and bias.

A program, as train.py is one, so it may import what these may, and comparison, which draws.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

from cli import messages
from cli.schema import DataConfig
from comparison.figures import FORMATS, Spec, save, spec
from data.token_cache import prepare
from data.windows import fixed_windows
from interop.hub import HUB
from rundir import checkpoint_file
from system import errors, terminal
from system.errors import ConfigError
from training.build import OURS
from training.load_model import from_elsewhere, load_model

if TYPE_CHECKING:
    from torch import Tensor

CACHE = "data/cache"  # where prepared tokens are kept
TOKENS = 4096  # that make the windows, where nobody says how many
POINTS = 400  # of a map that are drawn
Maps = dict[str, tuple["Tensor", "Tensor"]]


def load(path: Path) -> checkpoint_file.Checkpoint:
    """A checkpoint, the newest of a run's, or others' weights. Raises as training.load_model.load."""
    if str(path) in HUB or (path / "config.json").exists():
        return from_elsewhere(str(path))
    return checkpoint_file.load(newest(path))


def newest(path: Path) -> Path:
    """The file of a checkpoint, or the newest of a run's. Raises CheckpointError where there is none."""
    if path.is_file():
        return path
    steps = checkpoint_file.saved_steps(path / "checkpoints")
    if not steps:
        raise errors.CheckpointError(
            f"{path}: no checkpoint there; name a run's folder that has one, or a file"
        )
    return checkpoint_file.path_of(path / "checkpoints", steps[-1])


def text_of(config: DataConfig, path: str | None, elsewhere: bool) -> DataConfig:
    """What to read the text by. A checkpoint may be a stranger's: which file is read, and where tokens are
    kept, it does not say. One from ``elsewhere`` looks at any text.

    Raises:
        ConfigError: it was trained on a text that has to be named.
    """
    if elsewhere:
        config = config.model_copy(
            update={"corpus": "text" if path else "shakespeare", "tokenizer": "init_from"}
        )
    if config.corpus != "shakespeare" and path is None:
        named = f"{config.corpus} {config.path or ''}".strip()
        raise ConfigError(f"--data: it was trained on data={named}; if you know that, give --data PATH")
    return config.model_copy(update={"path": path, "cache": CACHE})


def look(
    path: Path,
    windows: int | None = None,
    data_path: str | None = None,
    trust: str | None = None,
    tell: Callable[[str], None] = lambda doing: None,
) -> tuple[str, list[dict[str, float]], Maps, str]:
    """What was looked at, in words; the numbers of each block, the embedding's first; the maps; and whether
    it keeps to the past. ``tell`` is told what is being done.

    Raises:
        CheckpointError, ConfigError: as training.build.load_model.
        DataError: the run's text is not there.
    """
    import torch

    from diagnostics import block_effects, causality, norm_maps
    from training.loss import cross_entropy

    loaded = load(path)
    config = loaded.meta.config
    elsewhere = not loaded.meta.fingerprint  # trained on nobody knows what
    text = text_of(config.data, data_path, elsewhere)
    spec = loaded.meta.tokenizer if text.tokenizer == "init_from" else None
    data = prepare(**text.model_dump(), spec=spec)
    if not elsewhere and data.fingerprint != loaded.meta.fingerprint:
        raise ConfigError(f"{path}: its text is not the one it was trained on; put that in its place")
    data.check_length(config.model.block_size)
    windows = windows or max(1, TOKENS // config.model.block_size)
    model = load_model(loaded, data.tokenizer.vocab_size, OURS + ((trust,) if trust else ())).eval()
    [batch] = fixed_windows(data.val, config.model.block_size, windows, windows)
    idx, targets = map(torch.from_numpy, batch)

    def loss_of(net: Any) -> float:
        return float(cross_entropy(net, idx, targets))

    with torch.no_grad():
        tell(f"its loss and its stream on {len(idx)} windows of {config.model.block_size} tokens")
        whole, streams = loss_of(model), block_effects.stream(model, idx)
        costs, distances = [], block_effects.angular_distances(streams)
        for cost in block_effects.skip_costs(model, loss_of):
            costs.append(cost)
            tell(f"{len(costs)} of {config.model.n_layer} blocks left out")
        rows = [{"variance": float(x.var())} for x in streams]
        for row, cost, distance in zip(rows[1:], costs, distances, strict=True):
            row |= {"cost": cost, "distance": distance}
        said = f"{config.chosen()}, step {loaded.meta.step:,}: loss {whole:.4f} on {len(idx)} windows"
        tell("what goes into its norms and comes out")
        found = norm_maps.maps(model, idx)
    tell("whether it keeps to the past")
    certificate = causality.certificate(model, data.tokenizer.vocab_size)
    return said, rows, found, causality.describe(certificate, config.chosen())


def table(rows: list[dict[str, float]]) -> Table:
    drawn = Table(box=box.SIMPLE_HEAD)
    drawn.add_column("")
    for name in ("loss without it − with it", "angular distance", "variance behind it"):
        drawn.add_column(name, justify="right")
    for i, row in enumerate(rows):
        cells = (
            f"{row[key]:{form}}" if key in row else ""
            for key, form in (("cost", "+.4f"), ("distance", ".4f"), ("variance", ".3g"))
        )
        drawn.add_row(f"{i - 1:02d}" if i else "embed", *cells)
    return drawn


def picture(found: Maps, columns: int = 4) -> Spec:
    """A panel for each norm, some of its numbers a point each."""
    rows = [
        {"norm": site, "x": a, "y": b}
        for site, (x, y) in found.items()
        for a, b in zip(some(x), some(y), strict=True)
    ]
    axes = {
        axis: {"field": axis, "type": "quantitative", "title": title}
        for axis, title in (("x", "in"), ("y", "out"))
    }
    return spec(
        data={"values": rows},
        facet={"field": "norm", "title": None, "sort": list(found)},
        columns=columns,
        resolve={"scale": {"x": "independent"}},
        spec={
            "width": 130,
            "height": 110,
            "mark": {"type": "point", "filled": True, "size": 5, "opacity": 0.5},
            "encoding": axes,
        },
    )


def some(x: "Tensor") -> list[float]:
    """Numbers from all over it, the same places for every tensor of its size."""
    flat = x.flatten()
    return flat[:: max(1, flat.numel() // POINTS)].tolist()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.blocks",
        description=__doc__.split("\n")[0],
        epilog=__doc__.partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", type=Path, help="a run's folder, or a checkpoint")
    parser.add_argument("--out", type=Path, default=Path("maps.svg"), help="the picture; .svg, .png or .pdf")
    parser.add_argument(
        "--windows", type=int, metavar="N", help=f"of the validation split; else {TOKENS:,} tokens of it"
    )
    parser.add_argument(
        "--data", metavar="PATH", help="the text it was trained on, where that is not data=shakespeare"
    )
    parser.add_argument("--trust", metavar="PACKAGE", help="run this code where the checkpoint names it")
    asked = parser.parse_args()
    if asked.out.suffix not in FORMATS:
        parser.error(f"--out: {asked.out} should end in .svg, .png or .pdf")
    if asked.windows is not None and asked.windows < 1:
        parser.error("--windows: at least 1")
    try:
        with Console(stderr=True).status("reading it") as status:
            said, rows, norm_maps, certificate = look(
                asked.run, asked.windows, asked.data, asked.trust, status.update
            )
        print(terminal.escaped(said))
        Console(highlight=False).print(table(rows))
        print(certificate)
        if norm_maps:
            save(picture(norm_maps), asked.out)
    except Exception as error:
        messages.report(error, [])
        sys.exit(1)
    print(asked.out if norm_maps else "no norm, so no picture")


if __name__ == "__main__":
    main()
