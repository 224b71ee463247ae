"""Record, before the first run of a sweep, which arms the sweep compares and by how many seeds.

An arm is what is compared: runs that differ only in seed, learning rate and tuned settings. The number of
seeds must not depend on results, or a verdict is worth less than it says (comparison/verdicts.py). So each
run of a sweep carries the sweep's plan, in its environment.json:

    written       when the plan was written, ISO 8601
    arms          the hash of every arm of the sweep
    arm, seeds    the hash of the run's arm, and that arm's seeds
    ended_before  seeds of the arm that had ended before the plan was written, in this sweep or another;
                  without those of the trials that chose its settings, which are not compared
    baseline      norm and placement with which the sweep's other arms are compared, by default
"""

import datetime
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from comparison.plans import USUAL
from sweep.job import Job
from training.run_folder import has_ended, read_json


def plans(jobs: Sequence[Job]) -> dict[str, dict[str, Any]]:
    """Return the plan of each arm's runs, by arm."""
    members = defaultdict(list)
    for job in jobs:
        if job.config and job.run:
            members[job.arm].append((job, job.config))
    sweep = {
        "written": datetime.datetime.now(datetime.UTC).isoformat(),
        "arms": [*members],
        "baseline": usual_values(jobs),
    }
    environment_of = cache(lambda folder: read_json(folder / "environment.json"))  # of runs of all groups
    result = {}
    for arm, arm_members in members.items():
        seeds = sorted({config.seed for _, config in arm_members})
        ended = ended_seeds([job for job, _ in arm_members], environment_of)
        result[arm] = sweep | {"arm": arm, "seeds": seeds, "ended_before": ended}
    return result


def usual_values(jobs: Sequence[Job]) -> dict[str, str]:
    """Return the norm and placement of the baseline, as far as the jobs have them."""
    configs = [job.config for job in jobs if job.config]
    names = {"norm": {c.norm.name for c in configs}, "placement": {c.placement.name for c in configs}}
    return {key: USUAL[key] for key in names if USUAL[key] in names[key]}


def ended_seeds(jobs: Sequence[Job], environment_of: Callable[[Path], dict[str, Any]]) -> list[int]:
    """Return the seeds of the runs in ``runs_dir`` that have ended, that differ from these jobs only in their
    seed, and that are compared with them, unlike a trial at the settings that it chose."""
    seeds = set()
    for group, job in {job.group: job for job in jobs}.items():
        assert job.run
        prefix = job.run.name.rpartition("-s")[0]
        for folder in job.run.parent.glob(f"{prefix}-s*"):
            environment = environment_of(folder)
            roles = {role["role"] for role in environment.get("roles", [])}
            name = re.fullmatch(re.escape(prefix) + r"-s(\d+)-\w+", folder.name)
            if name and environment.get("group") == group and has_ended(folder) and roles != {"trial"}:
                seeds.add(int(name[1]))
    return sorted(seeds)
