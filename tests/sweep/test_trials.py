"""The trials of a fair comparison fill the space of the tuned keys; more trials begin with the same ones."""

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import ConfigError
from sweep.trials import draw, space, trial_settings, tuning

KEYS = {
    "a.rate": "tag(log, interval(1e-4, 1e-1))",
    "b": "interval(-1, 3)",
    "c": "x,y",
    "d": "choice(7, 8, 9)",
}


def parsed(*overrides):
    return OverridesParser.create().parse_overrides(list(overrides))


def as_dict(settings):
    return dict(override.split("=") for override in settings)


@settings(max_examples=30)  # the first call imports scipy.stats
@given(st.integers(1, 70), st.integers(0, 2**32 - 1))
def test_trials_are_in_range_and_more_of_them_begin_with_the_same(count, seed):
    drawn = draw(space(KEYS, []), count, seed)
    assert drawn == draw(space(KEYS, []), 70, seed)[:count]
    assert len({*drawn}) == count
    for values in map(as_dict, drawn):
        assert list(values) == list(KEYS)
        assert 1e-4 <= float(values["a.rate"]) <= 1e-1
        assert -1 <= float(values["b"]) <= 3
        assert values["c"] in ("x", "y")
        assert values["d"] in ("7", "8", "9")


@pytest.mark.parametrize("seed", range(5))
def test_sixteen_trials_have_one_value_in_each_sixteenth_of_an_interval(seed):
    drawn = [*map(as_dict, draw(space({"b": "interval(0, 16)", "c": "x,y"}, []), 16, seed))]
    values = sorted(float(settings["b"]) for settings in drawn)  # rounded to three digits
    assert all(i - 0.05 <= value <= i + 1.05 for i, value in enumerate(values))
    assert sum(settings["c"] == "x" for settings in drawn) == 8


def test_logarithmic_intervals_are_drawn_by_their_logarithm():
    drawn = draw(space({"a": "tag(log, interval(1e-4, 1e-2))"}, []), 64, 0)
    assert sum(float(as_dict(settings)["a"]) < 1e-3 for settings in drawn) == 32


def test_a_typed_interval_replaces_that_of_the_preset_and_a_typed_value_is_not_tuned():
    keys = space(KEYS, parsed("b=interval(5,6)", "c=y", "other=1,2"))
    drawn = [as_dict(settings) for settings in draw(keys, 8, 0)]
    assert {tuple(settings) for settings in drawn} == {("a.rate", "b", "d")}
    assert all(5 <= float(settings["b"]) <= 6 for settings in drawn)
    assert draw(space({"a": None}, []), 8, 0) == [()]
    assert draw(space({"c": "x,y"}, []), 16, 0) in ([("c=x",), ("c=y",)], [("c=y",), ("c=x",)])


@pytest.mark.parametrize("value", ["xavier", 3, [1, 2]])
def test_a_tuned_key_with_nothing_to_choose_from_is_refused(value):
    with pytest.raises(ConfigError, match=r"^hydra\.sweeper\.tune\.keys\.b: .* nothing to choose from"):
        space({"a": "1,2", "b": value}, [])


def test_only_the_named_ones_of_the_drawn_settings_are_tried():
    plain = {"keys": {}, "trials": 8, "rounds": [{"trials": 1, "steps": 1, "seeds": 1}], "borrow": False}
    keys = space(KEYS, [])
    drawn = draw(keys, 8, 3)
    assert trial_settings(tuning(plain), keys, 3) == drawn
    assert trial_settings(tuning(plain | {"only": [7, 2]}), keys, 3) == [drawn[1], drawn[6]]
    assert trial_settings(tuning(plain | {"only": [7, 2]}), [], 3) == [()]  # nothing is tuned
    with pytest.raises(ConfigError, match=r"tune\.only: there are only 2 settings; name some of these"):
        trial_settings(tuning(plain | {"only": [7, 2]}), space({"c": "x,y"}, []), 3)


@pytest.mark.parametrize("interval", ["interval(2,1)", "tag(log,interval(0,1))", "interval(1,1)"])
def test_an_empty_interval_is_refused(interval):
    with pytest.raises(ConfigError, match="^b: no interval from"):
        draw(space({"b": interval}, []), 4, 0)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            {"trials": 0},
            "hydra.sweeper.tune.trials: invalid value 0; it should be greater",
        ),
        ({"rounds": []}, "hydra.sweeper.tune.rounds: invalid value"),
        ({"only": [4, 5]}, "hydra.sweeper.tune.only: give one or more numbers from 1 to 4"),
        ({"only": []}, "hydra.sweeper.tune.only: give one or more numbers from 1 to 4"),
        (
            {"rounds": [{"trials": 1, "steps": 2, "seeds": 1}]},
            "hydra.sweeper.tune.rounds.0.steps: invalid value 2",
        ),
        ({"rouns": []}, "hydra.sweeper.tune.rouns"),
    ],
)
def test_an_invalid_value_is_named_with_its_whole_key(change, line):
    plain = {"keys": {}, "trials": 4, "rounds": [{"trials": 1, "steps": 1, "seeds": 1}], "borrow": False}
    assert tuning(plain).trials == 4
    with pytest.raises(ConfigError, match=line):
        tuning(plain | change)


def test_values_that_are_added_or_overridden_by_plus_signs_are_drawn_too():
    drawn = draw(space(KEYS, parsed("++c=u,v")), 20, 0)
    assert {settings[2] for settings in drawn} == {"++c=u", "++c=v"}
