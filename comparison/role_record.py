"""Record what a run is for in a fair comparison (sweep/stages.py), in ``roles`` of its environment.json.

A run may have several roles: the 16 trials of a comparison are also the first of 64. So a role is also added
to a run that has ended.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from comparison.run_files import Role, read_valid
from data.errors import ConfigError
from data.files import write_atomically


def with_role(roles: Sequence[Role], role: Role) -> list[Role]:
    """Return roles with one more at the end; of the same role of several launches the first is kept."""
    same = [each for each in roles if {**each, "written": role["written"]} == role]
    if any(each["written"] <= role["written"] for each in same):
        return [*roles]
    return [each for each in roles if each not in same] + [role]


def add_role(folder: Path, role: Role) -> None:
    """Add a role to a run that has ended. Raises ConfigError if its environment.json cannot be read or is
    invalid, and OSError if it cannot be written."""
    file = folder / "environment.json"
    try:
        environment = read_valid(file)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{file.parent}: {error}; restore the file, or remove this folder to train the run again"
        ) from None
    earlier = environment.get("roles", [])
    roles = with_role(earlier, role)
    if roles != earlier:
        write_atomically(file, json.dumps(environment | {"roles": roles}, indent=1))
