"""Find the folders of runs, and of published runs, in folders that the user names."""

import glob
from collections.abc import Iterable
from pathlib import Path

from comparison.load import UnreadableError

FINDINGS = "findings"  # the folder of python -m findings in runs/, compared only if the user names it
SHARED = "shared.json"  # in a folder of published runs: comparison/published.py


def find_runs(paths: Iterable[str]) -> list[Path]:
    """Return the run folders in the folders that paths or globs name. A folder without runs is returned too,
    so that ``load`` reports it. Raises UnreadableError if a path does not exist."""
    folders: list[Path] = []
    for path in paths:
        names = [path] if Path(path).exists() else sorted(glob.glob(path))  # a name may have brackets
        matches = [match for match in map(Path, names) if match.is_dir()]
        if not matches:
            raise UnreadableError(f"{path}: no such folder; train some runs, or name the folder of your runs")
        folders += [run for match in matches for run in runs_below(match)]
    return list(dict.fromkeys(folders))


def runs_below(folder: Path, depth: int = 3) -> list[Path]:
    """Return the run folders in a folder; the folder itself if it is a run or contains no run; [] for a run
    that has not begun, or was ended before it did."""
    try:
        file_names = ("metrics.jsonl", "status.json", "config.yaml", SHARED)
        if depth == 0 or any((folder / name).exists() for name in file_names):
            return [folder]
        if (folder / ".lock").exists():  # of a run that has not begun
            return []
        children = [child for child in sorted(folder.iterdir()) if child.is_dir()]
    except PermissionError:  # ``load`` will report the error
        return [folder]
    children = [child for child in children if child.name != FINDINGS and not child.name.startswith(".")]
    return [run for child in children for run in runs_below(child, depth - 1)] or [folder]
