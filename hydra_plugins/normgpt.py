"""The launchers of conf/hydra/launcher. For ``python train.py -m …`` they train each run of a sweep as a
process or as a Slurm job.

Hydra looks for launchers in a package of this name and imports this file at every start. To keep the start
fast, functions import study/, which does the work.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from cli.compose import key_of, without_hydras_part
from cli.errors import checked
from cli.schema import RunConfig
from data.errors import ConfigError

if TYPE_CHECKING:
    from study.launch import Job


class OnceSweeper(BasicSweeper):
    """Hydra's sweeper without its check of the jobs: the check composes every job a second time."""

    def validate_batch_is_legal(self, batch: Any) -> None:
        pass


class RunLauncher(Launcher):
    """Checks the jobs of a sweep and trains those that have not ended."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.loader, self.config = hydra_context.config_loader, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from study.launch import check

        configs = [*self.configs(job_overrides)]
        if len({config.runs_dir for config in configs}) > 1:
            raise ConfigError("runs_dir: a sweep has one folder; give one value")
        jobs = [self.job(*pair) for pair in zip(job_overrides, configs, strict=True)]
        sources = self.config.hydra.runtime.config_sources
        config_dir = next((source.path for source in sources if source.provider == "command-line"), None)
        logs = Path(self.config.hydra.sweep.dir)
        if again := len(jobs) - len({job.name for job in jobs}):
            why = "they differ only in settings that do not change a run, such as threads"
            print(f"{again} of {len(jobs)} jobs repeat a run: {why}")
        check(self.run_all(jobs, configs[0], logs, config_dir), logs)
        print(f"compare them: python compare.py {configs[0].runs_dir}")
        return [JobReturn(overrides=job, status=JobStatus.COMPLETED) for job in job_overrides]

    def configs(self, jobs: Iterable[Sequence[str]]) -> Iterator[RunConfig]:
        """Yield the config of each job. Jobs that differ only in their seed are composed once."""
        from study.trials import replaced

        composed: dict[tuple[str, ...], RunConfig] = {}
        for job in jobs:
            words = {key_of(word): word for word in job}
            seed = words.pop("seed", None)
            if (others := tuple(words.values())) not in composed:
                whole = self.loader.load_sweep_config(self.config, [*job])
                composed[others] = checked(RunConfig, without_hydras_part(whole))
            config = composed[others]
            yield replaced(config, {}, yaml.safe_load(seed.partition("=")[2])) if seed else config

    def job(self, overrides: Sequence[str], config: RunConfig) -> "Job":
        """Return the job of a run. Hydra has removed its own keys from ``overrides``."""
        from study.launch import Job
        from training.identity import folder_of
        from training.open_run import tokens_of

        tokens = tokens_of(config)
        tokens.check_length(config.model.block_size)
        hydras = [word for word in self.config.hydra.overrides.hydra if word.startswith("hydra.searchpath=")]
        threads = [f"train.threads={config.train.threads}"] if config.train.threads else []
        name = folder_of(config, self.precision(config), tokens.fingerprint).name
        return Job(name, (*overrides, *threads, *hydras))

    def precision(self, config: RunConfig) -> str:
        if config.precision != "auto":
            return config.precision
        from training import device  # imports torch

        return device.choose(config.device, "auto").precision

    @abstractmethod
    def run_all(
        self, jobs: Sequence["Job"], config: RunConfig, logs: Path, config_dir: str | None
    ) -> dict[str, int]:
        """Train the runs. Return the exit status of each by name."""


class ProcessLauncher(RunLauncher):
    """Trains ``n_jobs`` runs at once on this machine."""

    def __init__(self, n_jobs: int | None) -> None:
        if n_jobs is not None and not (isinstance(n_jobs, int) and n_jobs > 0):
            raise ConfigError(f"hydra.launcher.n_jobs: invalid value {n_jobs}; give an integer of at least 1")
        self.n_jobs = n_jobs

    def run_all(
        self, jobs: Sequence["Job"], config: RunConfig, logs: Path, config_dir: str | None
    ) -> dict[str, int]:
        from study.launch import default_n_jobs, run_all

        n_jobs = self.n_jobs or default_n_jobs(config.device)
        return run_all(jobs, Path(config.runs_dir), logs, n_jobs, config_dir)


class SlurmLauncher(RunLauncher):
    """Submits the runs as one array and waits for them."""

    def __init__(self, **options: Any) -> None:
        self.options = options

    def precision(self, config: RunConfig) -> str:
        from study.launch import AUTO_ON_A_CLUSTER

        if config.fresh:
            raise ConfigError("fresh: a requeued run would start over; remove the runs' folders instead")
        if config.precision == "auto":
            raise ConfigError(AUTO_ON_A_CLUSTER)
        return config.precision

    def run_all(
        self, jobs: Sequence["Job"], config: RunConfig, logs: Path, config_dir: str | None
    ) -> dict[str, int]:
        from study import slurm

        return slurm.run_all(jobs, Path(config.runs_dir), logs, config_dir, self.options)
