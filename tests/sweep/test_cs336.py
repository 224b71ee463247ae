"""experiment=cs336 and its four ablations: the assignment's sizes, and small runs of each."""

import re

import pytest
import yaml

from cli.compose import choices
from tests.conftest import CONF, ROOT, TINY, configured
from training.build import build_model
from training.run_folder import read_status
from training.schedule import Schedule

ABLATIONS = {  # what an ablation takes away, from what
    "layer_norm": ("norm", "rmsnorm", "none"),
    "pre_norm": ("placement", "pre", "post"),
    "no_pos_emb": ("model.positions", "rotary", "none"),
    "swiglu": ("model.activation", "swiglu", "silu"),
}
V = 100  # tokens of the models whose parameters are counted, so that they are soon built
SMALL = [setting for setting in TINY if not setting.startswith("train.steps")]


def sweep_of(preset: str) -> dict[str, str]:
    """Return the values of each key that a preset varies."""
    text = (CONF / "experiment" / f"{preset}.yaml").read_text(encoding="utf-8")
    sweeper = yaml.safe_load(text)["hydra"]["sweeper"]
    values = {key: str(value) for key, value in sweeper["params"].items()}
    arms = [dict(word.split("=") for word in arm) for arm in sweeper.get("arms", [])]
    keys = dict.fromkeys(key for arm in arms for key in arm)
    return values | {key: ",".join(dict.fromkeys(arm[key] for arm in arms)) for key in keys}


def number_of_parameters(*overrides: str) -> int:
    model = build_model(configured("experiment=cs336", "model.n_layer=1", *overrides), V)
    return sum(p.numel() for p in model.parameters())


def test_the_baseline_has_the_parameters_of_the_assignment():
    """The handout's block by hand; its hidden layer has 1,344 features, ours 8·⌈512/3⌉ = 1,368."""
    C, hidden = 512, 1368
    block = 4 * C * C + 3 * C * hidden + 2 * C  # attention, gated MLP, two gains
    assert number_of_parameters() == 2 * V * C + block + C
    assert number_of_parameters("norm=none") == 2 * V * C + block - 2 * C
    assert number_of_parameters("model.positions=none") == number_of_parameters()
    plain = number_of_parameters("model.activation=silu")
    assert plain == 2 * V * C + 4 * C * C + 2 * C * 4 * C + 2 * C + C
    assert plain == pytest.approx(number_of_parameters(), rel=2e-3)


def test_the_baseline_trains_as_the_assignment_does():
    config = configured("experiment=cs336")
    assert (config.model.n_layer, config.model.n_embd, config.model.tie) == (4, 512, False)
    assert (config.model.n_head, config.model.block_size, config.data.vocab_size) == (16, 256, 10_000)
    assert (config.train.grad_clip, config.optim.kind, config.model.bias) == (1.0, "adamw", False)
    steps = config.train.steps
    rate = Schedule(config.schedule, config.optim.learning_rate, steps)
    rates = [rate(step) for step in range(steps)]
    assert rates == [*sorted(rates[:25]), *sorted(rates[25:], reverse=True)]  # warm-up, then decay
    assert (max(rates), rates[-1]) == (1e-3, pytest.approx(1e-4, rel=1e-3))
    longer = configured("experiment=cs336", "train.steps=5000", "train.batch_size=256")
    assert longer.train.steps * longer.train.batch_size * longer.model.block_size == 327_680_000  # its tokens


@pytest.mark.parametrize("name", ABLATIONS)
def test_an_ablation_compares_the_baseline_with_it_but_for_one_part(name):
    key, whole, without = ABLATIONS[name]
    sweep = sweep_of(f"cs336_{name}")
    assert sweep[key] == f"{whole},{without}"
    assert sweep.keys() - {key, "seed"} == ({"optim.learning_rate"} if name == "layer_norm" else set())
    arms = choices([f"experiment=cs336_{name}", f"{key}={whole},{without}"])
    for value in (whole, without):
        expected = configured("experiment=cs336", f"{key}={value}", "train.threads=1")
        assert arms[f"{key}={value}"] == expected


def page_commands(program: str) -> list[list[str]]:
    """Return the arguments of each command of docs/cs336.md that runs a program."""
    page = (ROOT / "docs" / "cs336.md").read_text(encoding="utf-8").replace("\\\n", " ")
    return [line.partition("#")[0].split()[2:] for line in re.findall(rf"^python {program}.*$", page, re.M)]


@pytest.mark.long
def test_the_page_compares_the_four_ablations_in_one_table(succeed, text_file, tmp_path):
    ablations = [words for words in page_commands("train.py") if words[0].startswith("experiment=cs336_")]
    assert len(ablations) == len(ABLATIONS)
    small = [setting for setting in SMALL if not setting.startswith("train.batch_size")]
    for words in ablations:
        succeed("train.py", *words, *small, "train.steps=2", "data=text", f"data.path={text_file}", "seed=0")
    statuses = [read_status(file.parent) for file in tmp_path.glob("runs/*/status.json")]
    assert [status["state"] for status in statuses] == ["finished"] * 6  # the baseline is trained once
    [words] = page_commands("compare.py")
    table = succeed("compare.py", *words).stdout
    rows = [line for line in table.splitlines() if re.match(r" (none|rmsnorm) ", line)]
    assert len(rows) == 5
    [baseline] = [row for row in rows if "baseline" in row and "--where hides" not in row]
    assert all(word in baseline for word in ("rmsnorm", "pre", "rotary", "swiglu"))
    assert "no baseline" not in table
