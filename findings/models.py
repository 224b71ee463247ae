"""The models of a finding. They are trained as runs or only initialised, and then measured seed by seed."""

import json
import pkgutil
import re
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cli.compose import compose_all, quoted, search_path
from cli.schema import RunConfig
from data.corpora import shakespeare
from data.errors import ConfigError
from data.files import write_atomically
from data.prepared import Prepared
from findings.finding import Finding, Scalar
from model import GPT
from model.seeds import seed_for
from study.launch import Job, check, default_n_jobs, run_all
from training.batches import fixed_windows, training_batch
from training.build import initial_model
from training.device import choose
from training.environment import processor
from training.identity import folder_of
from training.load_run import load_run
from training.open_run import tokens_of
from training.run_folder import read_rows

EXCERPT = re.compile(r"excerpt of (\d+)")  # a value of data.path: the first N characters of data=shakespeare


@dataclass(frozen=True)
class Model:
    """A model of a finding."""

    config: RunConfig
    data: Prepared
    folder: Path | None  # of the model's run; None if the model is measured as initialised

    def load(self) -> GPT:
        """Return a copy of the model with its last or initial weights: fp32, on the CPU."""
        if self.folder is None:
            return initial_model(self.config, self.data.tokenizer.vocab_size)
        packages = (component.target.split(".")[0] for component in self.config.components().values())
        return load_run(self.folder, which="last", trust=",".join(packages))[0]

    def batch(self, step: int = 0, rows: int | None = None) -> tuple[Tensor, Tensor]:
        """Return the training batch of a step: tokens and targets, both (rows, block_size)."""
        rows, seed = rows or self.config.train.batch_size, seed_for(self.config.seed, "data", step)
        x, y = training_batch(self.data.train, self.config.model.block_size, rows, seed)
        return torch.from_numpy(x), torch.from_numpy(y)

    def windows(self, count: int = 64) -> Tensor:
        """Return evenly spread windows of the validation split, (count, block_size)."""
        [(x, _)] = fixed_windows(self.data.val, self.config.model.block_size, count, count)
        return torch.from_numpy(x)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the run's metrics.jsonl."""
        assert self.folder
        return read_rows(self.folder / "metrics.jsonl")

    def curve(self, metric: str) -> dict[int, float]:
        """Return the finite values of a metric of the run by step."""
        values = {row["step"]: float(row.get(metric, "nan")) for row in self.rows()}
        return {step: value for step, value in values.items() if np.isfinite(value)}

    def loss(self) -> float:
        """Return val/full_loss in nats per token, or the first val/loss if the run ended above it or diverged
        (Wortsman et al. 2023, arXiv 2309.14322, §2.2)."""
        first = next(iter(self.curve("val/loss").values()))
        return min([first, *self.curve("val/full_loss").values()])


Models = dict[str, Any]  # of a seed: arm -> Model; if the finding varies a key, arm -> value -> Model


def models_of(
    finding: Finding, folder: Path, config_dir: str | None = None
) -> tuple[dict[int, Models], list[Job]]:
    """Return the models of each seed, tuning seeds included, and the runs that train them. The runs are in
    ``folder``. Raises ConfigError if a setting is invalid, DataError if the text is missing."""
    key, values = next(iter(finding.over.items()), ("", [None]))
    cells = [*product(finding.arms, values)]
    words = []
    for arm, value in cells:
        overrides = finding.all | finding.arms[arm] | ({key: value} if key else {})
        words.append([override(*pair, folder) for pair in overrides.items()])
    configs = compose_all([[*each, *search_path(config_dir)] for each in words])
    by_seed: dict[int, Models] = {seed: {} for seed in (*finding.seeds, *finding.tuning_seeds)}
    jobs = []
    for (arm, value), arm_words, config in zip(cells, words, configs, strict=True):
        data, precision = tokens_of(config), choose(config.device, config.precision).precision
        for seed, models in by_seed.items():
            seeded = config.model_copy(update={"seed": seed, "runs_dir": str(folder)})
            run = folder_of(seeded, precision, data.fingerprint) if finding.trains else None
            model = Model(seeded, data, run)
            if key:
                models.setdefault(arm, {})[value] = model
            else:
                models[arm] = model
            if run:
                jobs.append(Job(run.name, (*arm_words, f"seed={seed}", quoted("runs_dir", str(folder)))))
    return by_seed, jobs


def override(key: str, value: Scalar, folder: Path) -> str:
    """Return ``key=value`` as a user would type it. If the value is an excerpt, write its text into
    ``folder``."""
    if match := EXCERPT.fullmatch(str(value)):
        file = folder / f"shakespeare-{match[1]}.txt"
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(file, shakespeare()[: int(match[1])])
        return quoted(key, str(file))
    return f"{key}={value if isinstance(value, str) else json.dumps(value)}"


def measure(finding: Finding, folder: Path, config_dir: str | None = None) -> dict[str, Any]:
    """Return a finding's result, as ``read_result`` describes it. Its runs are in ``folder``; unfinished ones
    are trained first, several at once. Raises ConfigError, DataError, and Interrupted at a signal."""
    try:
        function = pkgutil.resolve_name(finding.measure)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"measure: {finding.measure} cannot be imported ({error}); check it") from None
    folder = folder.resolve()
    models, jobs = models_of(finding, folder, config_dir)
    if jobs:
        logs = folder / "logs"
        check(run_all(jobs, folder, logs, default_n_jobs("auto"), config_dir), logs)
    torch.use_deterministic_algorithms(True)
    tuning = [models[seed] for seed in finding.tuning_seeds]
    options = finding.options | ({"tuning": tuning} if tuning else {})
    measured = {seed: function(models[seed], **options) for seed in finding.seeds}
    for values, _ in measured.values():
        if missing := finding.expected.keys() - values.keys():
            raise ConfigError(f"expected: {finding.measure} returns {', '.join(values)}, not {min(missing)}")
    return {
        "conditions": finding.conditions(),
        "by_seed": {str(seed): values for seed, (values, _) in measured.items()},
        "rows": [
            (arm, x, y)
            for _, points in measured.values()
            for arm, pairs in points.items()
            for x, y in (pairs.items() if isinstance(pairs, dict) else pairs)
        ],
        "where": {"processor": processor(), "torch": torch.__version__},
    }
