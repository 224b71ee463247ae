"""A run's certificate tests the model in the form in which it trains, and again after training."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data.token_cache import prepare
from diagnostics import causality
from tests.helpers import leaks
from tests.helpers.runs import train_anew
from tests.helpers.wandb_runs import after_row
from training import build, setup
from training.loss import cross_entropy

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


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch warns about its own code
def test_a_leak_of_the_compiled_form_is_found(certificate_of):
    from torch._dynamo.utils import counters  # slow to import

    counters.clear()
    certificate = certificate_of("compiled_only", "compile=true")
    assert counters["stats"]["unique_graphs"] == 1  # that of a step
    for answer in certificate.values():
        assert answer["causal"] is False
        assert answer["train"]["future"] == 0 < answer["train"]["future_compiled"]


def test_the_compiled_form_is_asked_with_tensors_laid_out_as_in_a_step(tiny, monkeypatch):
    """For others the compiler would make other code than that of a step."""
    layouts = set()

    def objective(net, x, y):
        layouts.add((x.stride(), y.stride(), x is y))
        return cross_entropy(net, x, y)

    def recorded(strategy, batch, eager, ranks):
        return replace(eager, objective=objective)

    monkeypatch.setattr(setup, "compile_loss", recorded)
    certificate = json.loads((train_anew(tiny(*SHAPE, "compile=true")) / "certificate.json").read_text())
    assert certificate["end"]["train"]["future_compiled"] == 0
    assert layouts == {((16, 1), (16, 1), False)}


def test_the_first_answer_is_on_random_tokens_and_the_last_on_text_and_both_take_their_share_of_time(
    tiny, monkeypatch
):
    asked, real = [], causality.certificate

    def certificate(model, vocab_size, tokens, rounds, *others, initial):
        asked.append((initial, rounds, tokens[0]))
        return real(model, vocab_size, tokens, rounds, *others, initial=initial)

    monkeypatch.setattr(causality, "certificate", certificate)
    config = tiny(*SHAPE, "train.steps=2000", "model.n_layer=1", "train.eval_windows=1")
    train_anew(config)
    (first, rounds, random_tokens), (last, _, text) = asked
    assert (first, last) == (True, False)
    assert rounds == round((0.03 / 2 * 3 * 2000 - 32) / 2)
    train = prepare(**config.data.model_dump()).train
    windows = {tuple(window) for window in np.lib.stride_tricks.sliding_window_view(train, 16)}
    assert all(tuple(row) in windows for row in text.tolist())
    assert not any(tuple(row) in windows for row in random_tokens.tolist())


def test_both_answers_are_written_at_the_end_even_if_someone_removed_the_first(tiny, monkeypatch):
    config = tiny(*SHAPE)

    def removed():
        [file] = Path(config.runs_dir).glob("*/certificate.json")
        file.unlink()

    after_row(monkeypatch, 5, removed)
    certificate = json.loads((train_anew(config) / "certificate.json").read_text())
    assert certificate["start"]["causal"] is certificate["end"]["causal"] is True
