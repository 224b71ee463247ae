"""The models that a finding is about: of each seed, one for every arm and every value of what is varied."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli import app
from cli.schema import RunConfig
from comparison import load
from data import windows
from data.token_files import Prepared
from findings.finding import Finding, Scalar, override
from rundir import checkpoint_file
from rundir.identity import short_hash
from sweep.job import folder_of
from system.errors import ConfigError
from system.files import write_atomically
from training import device
from training.load_data import tokens_of

if TYPE_CHECKING:
    from torch import Tensor

    from model import GPT

# Of every model that is trained: where and how it is watched, no part of its conditions.
TRAINING = ("hydra/launcher=joblib", "wandb.mode=disabled", "train.threads=1")
UNSEEN = 1_000_000  # steps from here on no run has made, so their batches are new
EXCERPT = re.compile(r"excerpt of (\d+)")  # as data.path: so many characters of data=shakespeare


@dataclass
class Case:
    """One model.

    Attributes:
        arm, value: which it is: its arm, and the value of what is varied, None where nothing is.
        typed: train.py's arguments that make it.
        folder: of its run, where it is trained; else None, and the model is as it begins.
    """

    arm: str
    value: Scalar
    typed: list[str]
    config: RunConfig
    data: Prepared = field(repr=False)
    folder: Path | None

    @property
    def seed(self) -> int:
        return self.config.seed

    @property
    def precision(self) -> str:
        """That it was trained in; it is looked at in fp32."""
        return device.choose(self.config.device, self.config.precision).precision if self.folder else "fp32"

    def model(self) -> "GPT":
        """A new copy of it, in fp32 on the CPU: with its last weights, or those it begins with; in training
        mode."""
        from training.build import OURS, initial_model
        from training.load_model import load_model

        vocab_size = self.data.tokenizer.vocab_size
        if self.folder is None:
            return initial_model(self.config, vocab_size)
        steps = checkpoint_file.saved_steps(self.folder / "checkpoints")
        if self.run.diverged:
            raise ConfigError(f"{self.folder}: it diverged, so it has no last weights to look at")
        if not steps:
            raise ConfigError(f"{self.folder}: its checkpoints are gone; delete the folder, and run it again")
        loaded = checkpoint_file.load(checkpoint_file.path_of(self.folder / "checkpoints", steps[-1]))
        asked = (component.target.split(".")[0] for component in self.config.components().values())
        return load_model(loaded, vocab_size, (*OURS, *asked))

    def batch(self, step: int = 0, rows: int | None = None) -> tuple["Tensor", "Tensor"]:
        """Tokens and targets, (rows, block_size) int64 both: the training batch of a step."""
        import torch

        from model.seeds import seed_for

        rows = rows or self.config.train.batch_size
        seed = seed_for(self.seed, "data", step)
        x, y = windows.training_batch(self.data.train, self.config.model.block_size, rows, seed)
        return torch.from_numpy(x), torch.from_numpy(y)

    def windows(self, count: int) -> tuple["Tensor", "Tensor"]:
        """The same of the validation split: so many windows, evenly spread."""
        import torch

        T = self.config.model.block_size
        [(x, y)] = windows.fixed_windows(self.data.val, T, count, count)
        return torch.from_numpy(x), torch.from_numpy(y)

    @cached_property
    def run(self) -> load.Run:
        """Its run, read back. Raises ConfigError where that cannot be."""
        assert self.folder
        try:
            return load.load(self.folder)[0]
        except load.UnreadableError as error:
            raise ConfigError(f"{self.folder}: {error}; delete the folder, and run it again") from None

    def loss(self) -> float:
        """val/full_loss at the end, of a run that diverged at most the first val/loss, as Wortsman et al.
        2023 (arXiv 2309.14322, §2.2) count it; nats per token."""
        first = float(self.run.curve("val/loss")[1][0])
        return min(first, self.run.last("val/full_loss")) if not self.run.diverged else first


@dataclass
class Cases:
    """All models of one seed.

    ``cases["pre"]`` is that of the arm where nothing is varied, ``cases.over("pre")`` each by its value.
    """

    seed: int
    every: list[Case]
    others: list["Cases"] = field(default_factory=list, repr=False)  # of the other seeds

    @property
    def arms(self) -> list[str]:
        return list(dict.fromkeys(case.arm for case in self.every))

    def __getitem__(self, arm: str) -> Case:
        [case] = self.over(arm).values()
        return case

    def over(self, arm: str) -> dict[Any, Case]:
        return {case.value: case for case in self.every if case.arm == arm}


@dataclass(frozen=True)
class Found:
    """What was measured of one seed.

    Attributes:
        values: by quantity.
        rows: points for the picture: (arm, x, y).
    """

    values: Mapping[str, float]
    rows: list[tuple[str, Any, float]]


def excerpt(characters: int, folder: Path) -> Path:
    """A file with so many of data=shakespeare's first characters, made where it is not there."""
    from data.corpora import shakespeare

    file = folder / f"shakespeare-{characters}.txt"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(file, shakespeare()[:characters])
    return file.resolve()


def watched(config: RunConfig) -> str:
    """A name for how runs are watched, which is no part of what they are: a finding finds those of another
    only if they were watched as it needs."""
    how = config.stats.model_dump() | config.train.model_dump(include={"eval_every", "eval_windows"})
    return short_hash(how)


def all_cases(finding: Finding, out: Path, config_dir: str | None = None) -> list[Cases]:
    """The models of a finding, seed by seed. Raises ConfigError, and DataError where there is no such
    text."""
    key, values = next(iter(finding.over.items()), ("", [None]))
    made: list[tuple[str, Scalar, list[str]]] = []
    for (arm, own), value in product(finding.arms.items(), values):
        overrides = finding.all | own
        if key:
            overrides[key] = value
        if few := EXCERPT.fullmatch(str(overrides.get("data.path"))):
            overrides["data.path"] = str(excerpt(int(few[1]), out / "texts"))
        made.append((arm, value, [app.quoted(override(*pair)) for pair in overrides.items()]))
    search_path = app.search_path(config_dir)
    composed = app.composed_all("config", RunConfig, [[*typed, *search_path] for *_, typed in made])
    texts: dict[str, Prepared] = {}
    by_seed = {seed: Cases(seed, []) for seed in finding.seeds}
    for (arm, value, typed), config in zip(made, composed, strict=True):
        text = config.data.model_dump_json()
        data = texts.get(text) or texts.setdefault(text, tokens_of(config))
        data.check_length(config.model.block_size)
        runs_dir = str(out / "runs" / watched(config))
        for seed, models in by_seed.items():
            seeded = config.model_copy(update={"seed": seed, "runs_dir": runs_dir})
            folder = folder_of(seeded, data.fingerprint) if finding.trains else None
            whole = [*typed, f"seed={seed}", app.quoted(f"runs_dir={runs_dir}")]
            models.every.append(Case(arm, value, whole, seeded, data, folder))
    for one in by_seed.values():
        one.others = [other for other in by_seed.values() if other is not one]
    return [*by_seed.values()]


def each(cases: list[Cases]) -> Iterator[Case]:
    return (case for one in cases for case in one.every)
