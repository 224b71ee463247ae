"""Say what the runs of a stage are for in a fair comparison (sweep/stages.py), and record it in them."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from cli.errors import error_line
from comparison.role_record import add_role
from comparison.run_files import Role
from data.errors import ConfigError, described
from data.files import digest
from sweep.job import Job

RoleName = Literal["trial", "compared", "borrowed"]


@dataclass(frozen=True)
class Part:
    """What the roles of a stage's runs have in common.

    Attributes:
        trials: everything that determines the trials of an arm, apart from the arm.
        keys, seeds: the tuned keys, and the seeds of the trials.
        written: when the comparison was launched, ISO 8601.
    """

    role: RoleName
    trials: dict[str, Any]
    keys: list[str]
    seeds: list[int]
    written: str

    def as_role(self, role: RoleName) -> Self:
        return replace(self, role=role)

    @property
    def ignored(self) -> list[str]:
        """The keys in which trials and compared runs of an arm differ."""
        return [*self.keys, "train.steps"]

    def role_of(self, arm: str) -> Role:
        """Return the role of a run of ``arm``, an arm's hash, which covers the code of norm and placement."""
        return {
            "role": self.role,
            "tuning": digest({"arm": arm} | self.trials)[:8],
            "keys": self.keys,
            "seeds": self.seeds,
            "written": self.written,
        }

    def record(self, ended: Iterable[Job]) -> None:
        """Record in the runs of jobs what they are for; an error is the job's."""
        for job in ended:
            if job.run:
                try:
                    add_role(job.run, self.role_of(job.arm))
                except (ConfigError, OSError) as error:
                    job.error, job.done = error_line(error) or described(error), False
