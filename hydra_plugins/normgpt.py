"""Hydra looks for plugins in a package of this name: the sweeper that conf/hydra/sweeper/runs.yaml chooses.

It does its work in training/sweep.py; here is only what Hydra asks for, as it is imported at every start.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class RunSweeper(Sweeper):
    def __init__(self, params: Mapping[str, Any], tune: str | None, final: Mapping[str, Any]) -> None:
        self.params, self.tune, self.final = dict(params), tune, dict(final)

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.config = hydra_context, config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        from training.stages import sweep
        from training.sweep import Sweep

        assert self.hydra_context
        assert self.config
        assert self.launcher
        loader = self.hydra_context.config_loader
        parser = OverridesParser.create(loader)
        sweep(
            Sweep(partial(loader.load_sweep_config, self.config), self.launcher.launch, self.config.hydra),
            parser.parse_overrides([f"{key}={value}" for key, value in self.params.items()]),
            parser.parse_overrides(arguments),
            self.tune,
            parser.parse_overrides([f"{key}={value}" for key, value in self.final.items()]),
        )
