"""Find the folder of a run: one that has ended, by its config; or the newest. Torch is not imported here."""

from pathlib import Path

from cli.schema import RunConfig
from rundir.checkpoint_file import saved_steps
from rundir.environment import asked_for, auto_conditions
from rundir.folder import has_ended
from rundir.identity import run_folder
from rundir.run_files import read_json
from system.errors import ConfigError


def ended_folder(config: RunConfig, fingerprint: str) -> Path | None:
    """Return the folder of this run if it has ended and torch is not needed to find it, else None.

    Resolving ``precision=auto`` would import torch; an ended run on this machine shows its value.
    """
    is_auto = config.precision == "auto"
    for precision in ("bf16", "fp32") if is_auto else (config.precision,):
        folder = run_folder(config, precision, fingerprint)
        recorded = read_json(folder / "environment.json")
        resolves_alike = recorded.get("machine") == auto_conditions()
        is_same = resolves_alike and recorded.get("asked") == asked_for(config)
        if has_ended(folder) and (is_same or not is_auto):
            return folder
    return None


def newest_run(runs_dir: str) -> Path:
    """Return the folder of the run that wrote its status last, of those that have a checkpoint, if there are
    any. Raises ConfigError if there is no run."""
    files = [*Path(runs_dir).glob("*/status.json")]
    files = [file for file in files if saved_steps(file.parent / "checkpoints")] or files
    if not files:
        raise ConfigError(f"runs_dir: {runs_dir} has no run; train one, or name one with run=FOLDER")
    return max(files, key=lambda file: file.stat().st_mtime).parent
