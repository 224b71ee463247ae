"""B2: every command line ends as a run with these settings, or in one line."""

import contextlib
import math
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from cli.app import key_of
from cli.schema import RunConfig
from system.validate import keys
from tests.conftest import LETTERS, NORMS, PLACEMENTS, TRAIN
from tests.helpers import programs
from tests.helpers.contract import check_refused, contents

NOT_TRIED = ("wandb.", "runs_dir", "data.", "device", "fresh", "compile", "tuned", "precision", "train.steps")
KEYS = [key for key in keys(RunConfig) if not key.startswith(NOT_TRIED) and not key.endswith("_norm")]
NUMBERS = st.one_of(
    st.integers(-3, 40),
    st.integers(),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0, 1e-3, 1e400, 2**40, 2**63, -0.0]),
)
WORDS = st.sampled_from(
    ["null", "true", "false", "auto", "none", "", "[1]", "{a: 1}", "cosine", "xavier", "'", "${x}"]
)
VALUES = st.one_of(NUMBERS.map(str), WORDS, st.text(max_size=8))
OVERRIDES = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["", "", "", "+", "++"]), st.sampled_from(KEYS), VALUES).map(
            lambda parts: f"{parts[0]}{parts[1]}={parts[2]}"
        ),
        st.sampled_from(NORMS).map("norm={}".format),
        st.sampled_from(PLACEMENTS).map("placement={}".format),
        st.sampled_from(KEYS).map("~{}".format),
        st.tuples(st.text("abc.", min_size=1, max_size=6), VALUES).map("=".join),
        st.text(min_size=1, max_size=10),
    ).filter(lambda text: is_override(text)),
    min_size=1,
    max_size=4,
)


def is_override(text: str) -> bool:
    """Return whether the text can be an argument of a program (UTF-8 without a zero) and is no option."""
    return not re.search("[\0\ud800-\udfff]", text) and not text.startswith("-")


def changed_key(override: str) -> str:
    """Return the key that an override sets or deletes."""
    return key_of(override.lstrip("~"))


def same_value(text: str, value: object) -> bool:
    """Return whether the value of a config is that of the command line."""
    text = text.strip()
    if isinstance(value, bool):
        with contextlib.suppress(ValueError):
            return float(text) == value
        return text.lower() in (
            ("true", "t", "yes", "y", "on") if value else ("false", "f", "no", "n", "off")
        )
    with contextlib.suppress(ValueError, TypeError):
        return math.isclose(float(text), float(value))  # type: ignore[arg-type]
    return text == str(value) or yaml.safe_load(text) == value


def check(folder: Path, overrides: list[str]) -> str:
    """Return how the command ended."""
    keys = {changed_key(override) for override in overrides}
    common = [setting for setting in TRAIN if setting.split("=")[0] not in keys]
    before = contents(folder)
    always = ("train.steps=0", "fresh=true")  # a run that has ended would be left as it is
    done = programs.run("train.py", *common, *always, *overrides, cwd=folder, TEST_MEMORY=str(2**31))
    if done.returncode:
        check_refused(done, before=before)
        return "refused"
    assert "Traceback" not in done.stdout + done.stderr
    for i, override in enumerate(overrides):  # only what was added may be deleted
        added = {changed_key(other) for other in overrides[:i] if re.match(r"\+(?!\+)", other)}
        assert not override.startswith("~") or changed_key(override) in added, override
    [run] = {line.split(":")[0] for line in done.stdout.splitlines() if line.startswith("runs/")}
    config = yaml.safe_load((folder / run / "config.yaml").read_text(encoding="utf-8"))
    last = {changed_key(override): override for override in overrides}  # of each key
    for key, override in last.items():
        if override.startswith("~"):
            continue
        value = override.partition("=")[2]
        result = config
        for part in key.split("."):
            result = result[part]
        if key in ("norm", "placement"):
            result = result["_name_"]
        assert same_value(value, result), (key, value, result)
    return "a run"


def tried(folder: Path, examples: int, number: int) -> dict[str, int]:
    (folder / "text.txt").write_text(LETTERS, encoding="utf-8")
    ends = {"refused": 0, "a run": 0}

    @seed(number)
    @settings(
        max_examples=examples,
        database=None,
        suppress_health_check=[*HealthCheck],
        phases=[Phase.generate],  # to make a finding smaller takes hundreds of runs
    )
    @given(OVERRIDES)
    def fuzz(overrides: list[str]) -> None:
        ends[check(folder, overrides)] += 1

    fuzz()
    return ends


@pytest.mark.slow
def test_a_command_line_ends_as_a_run_or_in_one_line(tmp_path):
    ends = tried(tmp_path, 10, 0)
    assert min(ends.values()) > 0


@pytest.mark.faults
@pytest.mark.parametrize("part", range(4))
def test_so_do_2000_command_lines(tmp_path, part, record_property):
    ends = tried(tmp_path, 500, part)
    for end, number in ends.items():
        record_property(f"B2 fuzzed command lines, part {part}: {end}", number)
