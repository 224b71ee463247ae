"""Hydra's plugins, which must be in a package of this name: the sweeper of conf/hydra/sweeper/runs.yaml and
the launcher of conf/hydra/launcher/slurm.yaml.

Hydra imports this file at every start, so the work is done in sweep/runner.py and sweep/slurm.py, which are
imported when needed.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, ListConfig, OmegaConf, read_write

from data.errors import ConfigError


class RunSweeper(Sweeper):
    def __init__(
        self,
        params: Mapping[str, Any],
        arms: Any,
        tune: Any,
        final: Mapping[str, Any],
        dry_run: bool,
    ) -> None:
        self.params, self.arms, self.final = params, arms, final
        self.dry_run = dry_run
        self.tune: Any = OmegaConf.to_container(tune) if tune else None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from sweep.launch import gpus_for

        self.hydra_context, self.config = hydra_context, config
        n_jobs = config.hydra.launcher.get("n_jobs")
        if n_jobs == -1 and (gpus := gpus_for(config.device)):
            n_jobs = gpus  # on GPUs, a process for each core would fill their memory
        if n_jobs is not None:
            with read_write(config.hydra):
                config.hydra.launcher.n_jobs = n_jobs or 1
        from sweep.job_record import recorded

        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=partial(recorded, task_function), config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        from sweep.runner import Sweep
        from sweep.stages import run_stages

        assert self.hydra_context
        assert self.config
        assert self.launcher
        loader = self.hydra_context.config_loader
        parser = OverridesParser.create(loader)
        params, final = (pairs(key, value) for key, value in (("params", self.params), ("final", self.final)))
        arms = lists("arms", self.arms)
        if not all(isinstance(arm, ListConfig) for arm in arms):
            raise ConfigError('hydra.sweeper.arms: give a list for each arm, as [["norm=none"],["norm=dyt"]]')
        run_stages(
            Sweep(
                partial(loader.load_sweep_config, self.config),
                self.launcher.launch,
                self.config.hydra,
                self.dry_run,
            ),
            parser.parse_overrides(params),
            parser.parse_overrides(arguments),
            [[*arm] for arm in arms],
            self.tune,
            parser.parse_overrides(final),
        )


def pairs(key: str, value: Any) -> list[str]:
    """Return a mapping of hydra.sweeper as overrides; null is empty. Raises ConfigError for another value."""
    if not (value is None or isinstance(value, Mapping | DictConfig)):
        raise ConfigError(f"hydra.sweeper.{key}: {value} gives no keys; write {{KEY: VALUE}}")
    return [f"{name}={'null' if text is None else text}" for name, text in (value or {}).items()]


def lists(key: str, value: Any) -> list[Any]:
    """Return a list of hydra.sweeper; null is empty. Raises ConfigError for another value."""
    if not (value is None or isinstance(value, ListConfig)):
        raise ConfigError(f"hydra.sweeper.{key}: {value} is no list; write [{value}]")
    return [*(value or [])]


class SlurmLauncher(Launcher):
    """Hydra's launcher for Slurm, except that sweep/slurm.py submits and watches the jobs."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from hydra_plugins.hydra_submitit_launcher.submitit_launcher import SlurmLauncher as Submitit

        from sweep import slurm

        slurm.check()
        self.submitit = Submitit(**self.settings)
        self.submitit.setup(hydra_context=hydra_context, task_function=task_function, config=config)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from sweep import slurm

        arguments = [
            (list(overrides), "hydra.sweep.dir", number, f"job_id_for_{number}", Singleton.get_state())
            for number, overrides in enumerate(job_overrides, initial_job_idx)
        ]
        slurm.run_jobs(
            self.submitit, self.submitit.params, arguments, [*map(record_folder_of, job_overrides)]
        )
        return []


def record_folder_of(overrides: Sequence[str]) -> Path:
    """Return the folder of a job's record, from the last two overrides, which Sweep.arguments adds."""
    folder, name = OverridesParser.create().parse_overrides(list(overrides[-2:]))
    return Path(str(folder.value()), str(name.value()))
