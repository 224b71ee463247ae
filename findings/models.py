"""The models of a finding: for each seed, one model per arm and value of the varied key."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cli import compose as app
from cli.schema import ModelSource, RunConfig
from data.errors import ConfigError
from data.files import digest, write_atomically
from data.prepared import Prepared
from findings.finding import Finding, Scalar, override
from training import batches, device
from training.identity import folder_of
from training.open_run import tokens_of
from training.run_folder import read_json, read_rows

if TYPE_CHECKING:
    from torch import Tensor

    from model import GPT

T = TypeVar("T")
# Overrides that say how models are trained and watched; they are not part of a finding's conditions.
TRAINING = ("wandb.mode=disabled", "train.threads=1")
UNSEEN = 1_000_000  # no run reaches this step, so the batches from here on are new to every model
EXCERPT = re.compile(r"excerpt of (\d+)")  # as data.path: the first N characters of data=shakespeare


@dataclass(frozen=True)
class Run:
    """A run that has ended."""

    diverged: bool
    environment: dict[str, Any]
    rows: list[dict[str, Any]]  # of metrics.jsonl, where a non-finite number is a word, "NaN"

    def curve(self, metric: str) -> dict[int, float]:
        """Return the finite values of a metric by step."""
        pairs = ((row["step"], float(row[metric])) for row in self.rows if metric in row)
        return {step: value for step, value in pairs if math.isfinite(value)}

    def last(self, metric: str) -> float:
        """Return the last value of a metric; NaN if the run does not have it."""
        return next((float(row[metric]) for row in reversed(self.rows) if metric in row), math.nan)


@dataclass
class Case:
    """A model, trained or as initialised, that a finding measures."""

    arm: str
    value: Scalar  # the varied key's value; None if no key is varied
    arguments: list[str]  # the arguments of train.py that train the model
    config: RunConfig
    data: Prepared
    folder: Path | None  # the run folder; None if the model is measured as initialised

    @property
    def precision(self) -> str:
        """The precision in which the model was trained; all models are measured in fp32."""
        return device.choose(self.config.device, self.config.precision).precision if self.folder else "fp32"

    def model(self) -> "GPT":
        """Return a copy of the model with its last or initial weights: fp32, on the CPU, in training mode."""
        from training import load_run as load_model
        from training.build import initial_model

        vocab_size = self.data.tokenizer.vocab_size
        if self.folder is None:
            return initial_model(self.config, vocab_size)
        if self.run.diverged:
            raise ConfigError(f"{self.folder}: the run diverged, so it has no last weights to measure")
        source = dict.fromkeys(("checkpoint", "init_from")) | {"run": str(self.folder), "which": "last"}
        loaded = load_model.load(ModelSource(**source, runs_dir="."))
        packages = (component.target.split(".")[0] for component in self.config.components().values())
        return load_model.load_model(loaded, vocab_size, *packages)

    def batch(self, step: int = 0, rows: int | None = None) -> tuple["Tensor", "Tensor"]:
        """Return the training batch of a step: tokens and targets, both (rows, block_size) int64."""
        import torch

        from model.seeds import seed_for

        rows = rows or self.config.train.batch_size
        seed = seed_for(self.config.seed, "data", step)
        x, y = batches.training_batch(self.data.train, self.config.model.block_size, rows, seed)
        return torch.from_numpy(x), torch.from_numpy(y)

    def windows(self, count: int) -> tuple["Tensor", "Tensor"]:
        """Return ``count`` evenly spread windows of the validation split."""
        import torch

        [(x, y)] = batches.fixed_windows(self.data.val, self.config.model.block_size, count, count)
        return torch.from_numpy(x), torch.from_numpy(y)

    @cached_property
    def run(self) -> "Run":
        """The model's run, read from its folder, which has ended."""
        assert self.folder
        status, environment = (read_json(self.folder / f"{name}.json") for name in ("status", "environment"))
        return Run(status["state"] == "diverged", environment, read_rows(self.folder / "metrics.jsonl"))

    def loss(self) -> float:
        """Return min(last val/full_loss, first val/loss), in nats per token; the first val/loss for a run
        that diverged (Wortsman et al. 2023, arXiv 2309.14322, §2.2)."""
        first = next(iter(self.run.curve("val/loss").values()))
        return min(first, self.run.last("val/full_loss")) if not self.run.diverged else first


@dataclass
class Cases:
    """All models of one seed. ``cases["pre"]`` is the model of the arm ``pre``, if no key is varied;
    ``cases.over("pre")`` is a dict from each value of the varied key to the arm's model."""

    seed: int
    members: list[Case] = field(default_factory=list)
    tuning: list["Cases"] = field(default_factory=list)  # the models of tuning_seeds

    @property
    def arms(self) -> list[str]:
        return list(dict.fromkeys(case.arm for case in self.members))

    def __getitem__(self, arm: str) -> Case:
        [case] = self.over(arm).values()
        return case

    def by_arm(self, measure: Callable[[Case], T]) -> dict[str, T]:
        """Return what ``measure`` returns for each arm's model."""
        return {arm: measure(self[arm]) for arm in self.arms}

    def over(self, arm: str) -> dict[Any, Case]:
        return {case.value: case for case in self.members if case.arm == arm}


Points = Mapping[Any, float] | Sequence[tuple[Any, float]]  # x -> y


@dataclass(frozen=True)
class Measured:
    """The measurement of one seed: values by quantity, and the picture's points by arm."""

    values: Mapping[str, float]
    points: Mapping[str, Points]


def write_excerpt(characters: int, folder: Path) -> Path:
    """Return a file with the first ``characters`` characters of data=shakespeare; write it if missing."""
    from data.corpora import shakespeare

    file = folder / f"shakespeare-{characters}.txt"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(file, shakespeare()[:characters])
    return file.resolve()


def all_cases(finding: Finding, out: Path, config_dir: str | None = None) -> list[Cases]:
    """Return the models of a finding, for each of its seeds. Raises ConfigError, and DataError if the text
    is missing."""
    key, values = next(iter(finding.over.items()), ("", [None]))
    models: list[tuple[str, Scalar, list[str]]] = []
    for (arm, arm_overrides), value in product(finding.arms.items(), values):
        overrides = finding.all | arm_overrides | ({key: value} if key else {})
        if match := EXCERPT.fullmatch(str(overrides.get("data.path"))):
            overrides["data.path"] = app.quoted("", str(write_excerpt(int(match[1]), out / "texts")))[1:]
        models.append((arm, value, [override(*pair) for pair in overrides.items()]))
    search_path = app.search_path(config_dir)
    configs = app.compose_all([[*arguments, *search_path] for *_, arguments in models])
    prepared: dict[str, Prepared] = {}
    by_seed = {seed: Cases(seed) for seed in (*finding.seeds, *finding.tuning_seeds)}
    for (arm, value, arguments), config in zip(models, configs, strict=True):
        text_settings = config.data.model_dump_json()
        data = prepared.get(text_settings) or prepared.setdefault(text_settings, tokens_of(config))
        data.check_length(config.model.block_size)
        # A run's identity ignores what is logged, so findings that log other things use another folder.
        logged = config.stats.model_dump() | config.train.model_dump(include={"eval_every", "eval_windows"})
        runs_dir = str(out / "runs" / digest(logged)[:8])
        precision = device.choose(config.device, config.precision).precision
        for seed, cases in by_seed.items():
            seeded = config.model_copy(update={"seed": seed, "runs_dir": runs_dir})
            folder = folder_of(seeded, precision, data.fingerprint) if finding.trains else None
            all_arguments = [*arguments, f"seed={seed}", app.quoted("runs_dir", runs_dir)]
            cases.members.append(Case(arm, value, all_arguments, seeded, data, folder))
    for cases in by_seed.values():
        cases.tuning = [by_seed[seed] for seed in finding.tuning_seeds]
    return [by_seed[seed] for seed in finding.seeds]


def each_case(cases: list[Cases]) -> Iterator[Case]:
    """Return the models of all seeds, those that choose a value included."""
    seeds = {each.seed: each for seed_cases in cases for each in (seed_cases, *seed_cases.tuning)}
    return (case for seed_cases in seeds.values() for case in seed_cases.members)
