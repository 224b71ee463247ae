"""A run's certificate tests the model in the form in which it trains, and again after training."""

import json

import pytest

from tests.helpers import leaks
from tests.helpers.runs import train_anew
from training import build

SHAPE = ("model.block_size=16", "train.steps=40", "train.eval_every=0", "stats.every=0", "fresh=true")


@pytest.fixture
def certificate_of(tiny, monkeypatch):
    """Train a run whose norm is one of the leaks, and return its certificate."""

    def make(name: str, *overrides: str) -> dict:
        real = build.bind

        def bind(group, component, packages=None):
            return (
                (leaks.LEAKS | leaks.PUBLISHED)[name]["norm"]
                if group == "norm"
                else real(group, component, packages)
            )

        monkeypatch.setattr(build, "bind", bind)
        folder = train_anew(tiny(*SHAPE, *overrides))
        return json.loads((folder / "certificate.json").read_text())

    return make


@pytest.mark.parametrize("name", ["late_schedule", "prepbn"])
def test_a_leak_that_begins_while_the_run_trains_is_found_at_its_end(certificate_of, name):
    certificate = certificate_of(name)
    assert certificate["start"]["causal"] is True
    assert certificate["end"]["causal"] is False


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch warns about its own code
def test_a_leak_of_the_compiled_form_is_found(certificate_of):
    certificate = certificate_of("compiled_only", "compile=true")
    for answer in certificate.values():
        assert answer["causal"] is False
        assert answer["train"]["future"] == 0 < answer["train"]["future_compiled"]
