"""A run that has ended gets another role, and an environment that cannot be read is not replaced."""

import json

import pytest

from rundir.role_record import add_role
from system.errors import ConfigError
from tests.helpers.fair_runs import NEAR, fair_runs

ROLE = {"role": "trial", "tuning": "x", "keys": [], "seeds": [0], "written": "2026-01-01"}


def test_a_role_is_added_once_as_first_written_and_the_rest_is_kept(tmp_path):
    [run, *_] = fair_runs(tmp_path, "layernorm", NEAR, [2.0])
    file = run.folder / "environment.json"
    before = json.loads(file.read_text())
    for written in ("2026-01-02", "2026-01-01", "2026-01-03"):
        add_role(run.folder, ROLE | {"written": written})
    after = json.loads(file.read_text())
    assert after.pop("roles") == [*before.pop("roles", []), ROLE]
    assert after == before


def test_an_invalid_environment_is_refused_and_kept(tmp_path):
    [run, *_] = fair_runs(tmp_path, "layernorm", NEAR, [2.0])
    file = run.folder / "environment.json"
    file.write_text(file.read_text().replace('"group": "', '"group": 7, "g": "', 1))
    before = file.read_bytes()
    with pytest.raises(ConfigError, match=r"environment\.json: "):
        add_role(run.folder, ROLE)
    assert file.read_bytes() == before


def test_a_role_that_a_run_has_is_not_written_again(tmp_path):
    [run, *_] = fair_runs(tmp_path, "layernorm", NEAR, [2.0])
    add_role(run.folder, ROLE)
    file = run.folder / "environment.json"
    before = file.stat()
    add_role(run.folder, ROLE | {"written": "2026-01-02"})
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
