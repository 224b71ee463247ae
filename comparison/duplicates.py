"""Find runs that are in several folders: a copy is used once, and two results of one run are refused."""

from collections.abc import Sequence

from comparison.groups import ComparisonError, is_compared
from comparison.load import Run
from comparison.plans import first_plan
from rundir.role_record import with_role
from system.terminal import escaped

TIMES = {"train/tokens_per_s", "stats/overhead"}  # metrics that depend on the clock


def unique(runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """Return the runs without copies, and a line about each copy. Runs are the same run if group and seed
    are the same. Raises ComparisonError if the same run has different results."""
    first: dict[tuple[str, int], Run] = {}
    copies = []
    for run in runs:
        original = first.setdefault((run.group, run.seed), run)
        if original is run:
            continue
        first_folder, folder = escaped(str(original.folder)), escaped(str(run.folder))
        if not are_equal(original, run):
            raise ComparisonError(
                f"{first_folder}, {folder}: the same run (group and seed) with different results; "
                "remove one of them, or name only the folders to compare"
            )
        original.environment["plan"] = first_plan([original, run])
        for role in run.roles:
            original.environment["roles"] = with_role(original.roles, role)
        copies.append(f"{folder}: the same run as {first_folder}, with the same results; used once")
    return [*first.values()], copies


def are_equal(a: Run, b: Run) -> bool:
    """Return True if settings and outcome are the same, and all numbers that both logged at the same step."""
    keys = [key for key in {*a.config, *b.config} if is_compared(key)]
    if a.diverged != b.diverged or any(a.config.get(key) != b.config.get(key) for key in keys):
        return False
    for metric in a.metrics.keys() & b.metrics.keys() - TIMES:
        values, others = (dict(zip(*run.curve(metric), strict=True)) for run in (a, b))
        if any(values[step] != others[step] for step in values.keys() & others.keys()):
            return False
    return repr(a.last("val/full_loss")) == repr(b.last("val/full_loss"))  # NaN is NaN, if both diverged
