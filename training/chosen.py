"""Which model a program is to look at: a run's, a checkpoint, or one from elsewhere."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from training import checkpoint, cli, runs
from training.checking import Checked
from training.config import RunConfig
from training.pickles import first_pickle, pickled
from training.pretrained import pretrained


class Chosen(Checked):
    """The keys that say it; conf/sample.yaml explains each."""

    run: str | None
    checkpoint: str | None
    init_from: Annotated[str, Field(min_length=1)] | None
    which: Literal["best", "last"]
    runs_dir: str

    @model_validator(mode="after")
    def one_source(self) -> "Chosen":
        given = [key for key in ("run", "checkpoint", "init_from") if getattr(self, key) is not None]
        if len(given) > 1:
            raise ValueError(f"{given[0]}: and {given[1]}= both say what to load; give one of them")
        return self


def find_checkpoint(config: Chosen) -> Path:
    """The file of a run's checkpoint. Raises ConfigError or CheckpointError where there is none."""
    if config.checkpoint is not None:
        return Path(config.checkpoint)
    folder = Path(config.run) if config.run is not None else runs.newest_run(config.runs_dir)
    steps = checkpoint.saved_steps(folder / "checkpoints")
    if not steps:
        other = first_pickle(folder)
        said = f"{folder}: no checkpoint there; name a run's folder that has one"
        raise checkpoint.CheckpointError(pickled(other) if other else said)
    best = (runs.read_status(folder).get("best") or {}).get("step")
    return checkpoint.path_of(
        folder / "checkpoints", best if config.which == "best" and best in steps else steps[-1]
    )


def load(config: Chosen) -> checkpoint.Checkpoint:
    """What was chosen. Raises ConfigError, CheckpointError or DataError where it cannot be had."""
    if config.init_from is None:
        return checkpoint.load(find_checkpoint(config))
    return from_elsewhere(config.init_from)


def from_elsewhere(name: str) -> checkpoint.Checkpoint:
    """What ``init_from`` names, as a checkpoint. Raises as ``load``."""
    [config] = cli.composed_all("config", RunConfig, [[cli.as_text("init_from", name)]])
    return pretrained(name).checkpoint(config)
