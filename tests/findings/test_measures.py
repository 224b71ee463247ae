"""Each finding's function measures what the finding expects: on small models, and on runs of known losses."""

import json
import re
from pkgutil import resolve_name

import numpy as np
import pytest

from data.errors import ConfigError
from findings.document import RESULTS
from findings.finding import Finding, load_findings, read_result
from findings.models import Models, measure, models_of
from study.trials import replaced
from tests.conftest import configured

FINDINGS = load_findings()
UNTRAINED = [name for name, finding in FINDINGS.items() if not finding.trains]
SMALL = {"model.n_layer": 4, "model.n_head": 2, "model.n_embd": 16, "train.batch_size": 4}
NUMBER = re.compile(r"(?!norm|placement)[\w.]+=-?[\d.]+(e-?\d+)?")  # a word that sets one
LOSSES = {  # of the runs that ``write_runs`` writes
    "batchnorm_batch_size": (2.6 - 2.4, 0.4),
    "detached_statistics": (0.15,),
    "dyt_data_regime": (0.15 / 2, 0.15 / 2.45, 0.15 / 2.6),
    "init_scale": (np.log10(1 / 0.03) * (1 - 0.5 / 0.6),),
    "no_norm": (0.0375, 0.15 / 2),
    "shallow_post_is_pre": (0.15 / 2,),
    "steps_to_loss": (1 / 0.7,),
    "alpha_follows_std": (1, 1),
}


@pytest.fixture(autouse=True)
def composed_once(monkeypatch):
    """Set numbers after composing, which is slow: what differs in numbers alone shares it."""

    def compose(jobs):
        for words in jobs:
            numbers = {word.split("=")[0]: word.split("=")[1] for word in words if NUMBER.fullmatch(word)}
            others = configured(*(word for word in words if not NUMBER.fullmatch(word)))
            yield replaced(others, {key: json.loads(value) for key, value in numbers.items()}, seed=0)

    monkeypatch.setattr("findings.models.compose_all", lambda jobs: [*compose(jobs)])


def small(finding: Finding, folder: str, **settings: object) -> Finding:
    """Return a finding with three values of its key, seed 5, and small models of a small text."""
    text = {"data": "text", "data.path": f"{folder}/text.txt", "data.val_fraction": 0.5}
    over = {key: [values[0], values[len(values) // 2], values[-1]] for key, values in finding.over.items()}
    overrides = finding.all | text | {"data.cache": f"{folder}/cache"} | settings
    return finding.model_copy(update={"all": overrides, "over": over, "seeds": [5]})


def values_of(finding: Finding, models: dict[int, Models]) -> list[float]:
    tuning = {"tuning": [models[seed] for seed in finding.tuning_seeds]} if finding.tuning_seeds else {}
    values, points = resolve_name(finding.measure)(models[5], **finding.options, **tuning)
    assert points
    return [values[quantity] for quantity in finding.expected]


@pytest.mark.parametrize("name", sorted(FINDINGS.keys() - LOSSES.keys()))
def test_a_function_that_loads_models_measures_small_ones(name, tmp_path, text_file):
    finding = small(FINDINGS[name], tmp_path, **SMALL).model_copy(update={"trains": False})
    models, jobs = models_of(finding, tmp_path)
    assert np.isfinite(values_of(finding, models)).all()
    assert not jobs


def test_a_quantity_that_the_function_does_not_measure_is_refused(tmp_path, text_file):
    finding = small(FINDINGS["cancellation"], tmp_path)
    expected = {"largest error": finding.expected["layernorm: largest error"]}
    wrong = finding.model_copy(update={"expected": expected})
    with pytest.raises(ConfigError, match="layernorm: largest error, .*, not largest error"):
        measure(wrong, tmp_path)


def write_runs(models: dict[int, Models], tuned: bool) -> None:
    """Write runs whose loss falls in a straight line from 4: to 2 for the first arm, and 0.15 more for each
    further one. 0.6 more at the first value of a varied key, 0.4 more at the last. If a key is ``tuned``, the
    first value is the best of the measured seed, but not of the tuning seeds."""
    for seed, by_arm in models.items():
        for number, of_arm in enumerate(by_arm.values()):
            by_value = [*of_arm.values()] if isinstance(of_arm, dict) else [None, of_arm]
            first = -0.1 if tuned and seed == 5 else 0.6
            for model, more in zip(by_value, (first, 0, 0.4), strict=False):
                loss = 2 + 0.15 * number + more
                last = {"step": 100, "val/loss": loss, "val/full_loss": loss}
                rows = [{"step": 0, "val/loss": 4.0}, {"step": 50, "val/loss": (4 + loss) / 2}, last]
                for site, row in ((site, row) for site in "abc" for row in rows):
                    std = 1 + row["step"] + ord(site)
                    row |= {f"norm.alpha/{site}": 1 / std, f"act.std/{site}.in": std}
                if model:
                    model.folder.mkdir(parents=True)
                    (model.folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))


@pytest.mark.parametrize("name", LOSSES)
def test_a_function_that_reads_runs_measures_known_losses(name, tmp_path, text_file):
    """Tuning seeds choose the learning rates, though another one is better on the measured seed."""
    finding = small(FINDINGS[name], tmp_path)
    models, jobs = models_of(finding, tmp_path / "runs")
    write_runs(models, tuned=bool(finding.tuning_seeds))
    assert values_of(finding, models) == pytest.approx(LOSSES[name])
    assert {job.name for job in jobs} == {folder.name for folder in (tmp_path / "runs").glob("*-s?-*")}


@pytest.mark.slow
@pytest.mark.parametrize("name", UNTRAINED)
def test_measured_again_without_training_it_has_the_published_numbers(name, tmp_path):
    """On the first seed; tolerances allow for the rounding of other processors."""
    seed, file = FINDINGS[name].seeds[0], RESULTS / f"{name}.json"
    again = measure(FINDINGS[name].model_copy(update={"seeds": [seed]}), tmp_path)["by_seed"]
    published = read_result(FINDINGS[name], file)["by_seed"]
    assert again[str(seed)] == pytest.approx(published[str(seed)], rel=0.02, abs=2e-4)
