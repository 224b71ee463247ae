"""Find runs that are in several folders. A copy is used once; of a run that two machines trained the first is
used; two results of one run on one machine are refused."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from comparison.groups import ComparisonError, differing, join
from comparison.load import Run
from comparison.plans import first_plan
from comparison.run_files import Role

MACHINE = ("processor", "device", "gpu", "threads", "ranks", "compile", "deterministic")
TIMES = {"train/tokens_per_s", "stats/overhead"}  # metrics that depend on the clock


def unique(runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """Return the runs without copies, and lines about the copies. Runs are the same run if group and seed are
    the same. Raises ComparisonError if the same run has different results on the same machine."""
    first: dict[tuple[str, int], Run] = {}
    lines = []
    copies: dict[tuple[Path, Path], list[str]] = defaultdict(list)  # by the folders of both runs
    for run in runs:
        original = first.setdefault((run.group, run.seed), run)
        if original is run:
            continue
        first_folder, folder = str(original.folder), str(run.folder)
        if are_equal(original, run):
            folders = original.folder.parent, run.folder.parent
            copies[folders].append(f"{folder}: the same run as {first_folder}")
        elif others := elsewhere(original, run):
            how = f"with another {join(others)}: {end(run)}, there {end(original)}, which is used"
            lines.append(f"{folder}: the same run as {first_folder}, {how}")
        else:
            raise ComparisonError(
                f"{first_folder}, {folder}: the same run (group and seed) with different results; "
                "remove one of them, or name only the folders to compare"
            )
        original.environment["plan"] = first_plan([original, run])
        for role in run.roles:
            original.environment["roles"] = with_role(original.roles, role)
    for (first_parent, parent), same in copies.items():
        if len(same) > 1 and parent != first_parent:
            where = str(first_parent)
            same = [f"{parent!s}: {len(same)} runs are the same as in {where}"]
        lines += [f"{line}, with the same results; used once" for line in same]
    return [*first.values()], lines


def with_role(roles: Sequence[Role], role: Role) -> list[Role]:
    """Return roles with one more at the end; of the same role of several launches the first is kept."""
    same = [each for each in roles if {**each, "written": role["written"]} == role]
    if any(each["written"] <= role["written"] for each in same):
        return [*roles]
    return [each for each in roles if each not in same] + [role]


def elsewhere(a: Run, b: Run) -> list[str]:
    """Return in what the machines of two runs with the same settings differ; [] if the settings differ."""
    if differing([a, b]):
        return []
    machine, other = machine_of(a), machine_of(b)
    others = [key for key in machine if machine[key] != other[key]]
    has_other_code = a.environment.get("code") != b.environment.get("code")
    return others + ["code"] * (has_other_code and bool(others))


def machine_of(run: Run) -> dict[str, Any]:
    """Return on what the last bits of a run depend, besides its settings and the code."""
    torch = run.environment["packages"].get("torch")
    return {key: run.environment.get(key) for key in MACHINE} | {"torch": torch}


def end(run: Run) -> str:
    return "diverged" if run.diverged else f"val/full_loss {run.last('val/full_loss'):.4f}"


def are_equal(a: Run, b: Run) -> bool:
    """Return True if settings and outcome are the same, and all numbers that both logged at the same step."""
    if a.diverged != b.diverged or differing([a, b]):
        return False
    for metric in a.metrics.keys() & b.metrics.keys() - TIMES:
        values, others = (dict(zip(*run.curve(metric), strict=True)) for run in (a, b))
        if any(values[step] != others[step] for step in values.keys() & others.keys()):
            return False
    return repr(a.last("val/full_loss")) == repr(b.last("val/full_loss"))  # NaN is NaN, if both diverged
