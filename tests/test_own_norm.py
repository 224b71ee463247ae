"""Norms and a placement outside the project, as docs/own-norm.md has them: a class and a YAML, and no edit of
the project. Those that leak are found."""

import json
import re

import pytest
import torch

from tests.conftest import LETTERS, ROOT, TINY
from tests.helpers import programs
from tests.helpers.contract import check_refused
from tests.helpers.runs import metric_rows

SECTION = (ROOT / "docs/own-norm.md").read_text(encoding="utf-8")
LEAKING = (ROOT / "results/leaking_placement.md").read_text(encoding="utf-8")
NAME, DOTTED = "l1", "mynorms.L1Norm"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder that holds what it says, a text, and the runs of an ablation of it."""
    home = tmp_path_factory.mktemp("home")
    (home / "mine" / "norm").mkdir(parents=True)
    code, options = blocks("python")[0], blocks("yaml")[0]
    assert f"_target_: {DOTTED}" in options
    (home / "mine" / "mynorms.py").write_text(code)
    (home / "mine" / "norm" / f"{NAME}.yaml").write_text(options)
    (home / "text.txt").write_text(LETTERS)
    started(home, "train.py", "-m", f"norm=layernorm,{NAME}", "seed=0,1", "stats=all", *usual(home))
    return home


def blocks(kind: str = "", page: str = SECTION) -> list[str]:
    """Return a page's blocks of this language, such as "python"."""
    return re.findall(rf"^```{kind}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


def usual(home) -> tuple[str, ...]:
    return (*TINY, "data=text", f"data.path={home}/text.txt", "--config-dir", "mine")


def started(home, program: str, *arguments: str):
    return programs.succeed(program, *arguments, cwd=home, PYTHONPATH="mine")


def test_it_trains_and_is_certified_and_its_statistics_are_taken(home):
    folders = sorted((home / "runs").glob(f"{NAME}-pre-s*"))
    assert len(folders) == 2
    for folder in folders:
        assert json.loads((folder / "status.json").read_text())["state"] == "finished"
        certificate = json.loads((folder / "certificate.json").read_text())
        for answer in (certificate["start"], certificate["end"]):
            assert (answer["causal"], answer["independent_rows"]) == (True, True)
        first = metric_rows(folder)[0]
        assert first["norm.gain/01.mlp.pre"] == 1
        assert {"act.rms/01.mlp.pre.in", "act.rms/01.mlp.pre.out", "leak.future/train"} <= first.keys()


OVERFLOWING = """
import torch
from torch import nn


class Overflowing(nn.LayerNorm):
    def __init__(self, n_features):
        super().__init__(n_features)
        self.register_buffer("product", torch.ones(()))

    def forward(self, x):
        if self.training:
            self.product = self.product * 1e30
        return super().forward(x)
"""


def test_a_run_says_that_a_step_has_no_checkpoint_if_a_buffer_is_not_finite(home):
    (home / "mine" / "overflowing.py").write_text(OVERFLOWING)
    (home / "mine" / "norm" / "overflowing.yaml").write_text("_target_: overflowing.Overflowing\n")
    done = started(home, "train.py", "norm=overflowing", *usual(home))
    steps = next(word.partition("=")[2] for word in TINY if word.startswith("train.steps="))
    assert f"warning: no checkpoint of step {steps}: blocks.0.attn.pre.product is not finite" in done.stderr
    assert "sample from it" not in done.stdout


@pytest.mark.slow
def test_its_text_needs_trust(home):
    [folder, *_] = sorted((home / "runs").glob(f"{NAME}-pre-s*"))
    refused = programs.run("sample.py", f"run={folder}", "max_new_tokens=2", cwd=home, PYTHONPATH="mine")
    check_refused(refused, "add trust=mynorms")
    trusted = started(home, "sample.py", f"run={folder}", "max_new_tokens=5", "trust=mynorms", "prompt=Now")
    assert trusted.stdout.startswith("Now")


def test_it_stands_at_other_sites_and_in_every_placement(home):
    elsewhere = ("model.qk_norm=l1", "model.embedding_norm=l1", "placement=peri", "train.steps=2")
    started(home, "train.py", *elsewhere, *usual(home))
    [folder] = (home / "runs").glob("layernorm-peri-s0-*")
    assert f"_target_: {DOTTED}" in (folder / "config.yaml").read_text()
    unknown = programs.run("train.py", "model.qk_norm=l2", *usual(home), cwd=home, PYTHONPATH="mine")
    line = "model.qk_norm: there is no 'l2'; choose one of same, batchnorm, "
    check_refused(unknown, line, f" {NAME}, ")


@pytest.mark.slow
def test_the_check_of_a_norm_prints_what_the_page_shows(home):
    arguments = ("--config-dir", "mine", f"norm={NAME}")
    done = programs.run("scripts/check_norm.py", *arguments, cwd=home, PYTHONPATH="mine")
    assert done.returncode == 0, done.stderr
    assert f"```\n{done.stdout}```" in SECTION


def check_marked(home, output: str, folder) -> None:
    """Check that a run printed, at its start and its end, that it LEAKS, and that compare.py marks it."""
    assert output.count(" LEAKS: a logit moves in training by up to ") == 2
    assert "finished, val/full_loss" in output
    compared = started(home, "compare.py", str(folder), "--out", f"report-{folder.name}")
    assert compared.stdout.count("LEAKS in ") == 1


@pytest.mark.slow
def test_a_residual_of_another_library_is_a_placement_and_its_leak_is_found(home):
    pytest.importorskip("x_transformers", reason="pip install 'x-transformers==2.31.*'")
    (home / "mine" / "placement").mkdir()
    (home / "mine" / "mvsplit.py").write_text(blocks("python", LEAKING)[0])
    (home / "mine" / "placement" / "mvsplit.yaml").write_text(blocks("yaml", LEAKING)[0])
    done = started(home, "train.py", "placement=mvsplit", *usual(home))
    [folder] = home.glob("runs/layernorm-mvsplit-s0-*")
    check_marked(home, done.stdout, folder)
    for answer in json.loads((folder / "certificate.json").read_text()).values():
        assert (answer["causal"], answer["independent_rows"]) == (False, True)
        assert min(answer[mode]["future"] for mode in ("train", "eval")) > 1e-3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # by einx
def test_the_decoder_of_that_library_is_causal_without_the_option():
    others = pytest.importorskip("x_transformers", reason="pip install 'x-transformers==2.31.*'")
    moved = {}
    for split in (False, True):
        torch.manual_seed(0)
        layers = others.Decoder(dim=64, depth=2, heads=4, mv_split_residual=split)
        gpt = others.TransformerWrapper(num_tokens=65, max_seq_len=32, attn_layers=layers).eval()
        idx = torch.randint(65, (4, 32))
        other = idx.clone()
        other[:, 20:] = (idx[:, 20:] + 1) % 65
        with torch.no_grad():
            logits = gpt(idx)
            moved[split] = float((gpt(other) - logits)[:, :20].abs().max() / logits.std())
    assert moved[False] == 0
    assert moved[True] == pytest.approx(0.022, rel=0.2)  # other versions of torch


@pytest.mark.slow
def test_the_check_of_a_norm_that_breaks_the_contract_ends_with_status_1(home):
    (home / "mine" / "broken.py").write_text(blocks("python")[0].replace("return (x", "return x.mul_(2), (x"))
    (home / "mine" / "norm" / "broken.yaml").write_text("_target_: broken.L1Norm\n")
    arguments = ("--config-dir", "mine", "norm=broken", "model.n_layer=1")
    done = programs.run("scripts/check_norm.py", *arguments, cwd=home, PYTHONPATH="mine")
    assert done.returncode == 1
    shape = "shape        NO   returns a tuple; return one tensor\n"
    assert shape in done.stdout
    assert "nothing else was tested" in done.stdout.splitlines()[-1]  # as all else raises


FIXED_LENGTH = """
import torch
from torch import nn


class PerStep(nn.Module):
    def __init__(self, n_features, steps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(steps, 1))

    def forward(self, x):
        return self.weight * x
"""


def test_a_norm_that_the_last_shorter_window_breaks_is_refused_before_training(tmp_path):
    (tmp_path / "mine" / "norm").mkdir(parents=True)
    (tmp_path / "mine" / "perstep.py").write_text(FIXED_LENGTH)
    yaml = "_target_: perstep.PerStep\nsteps: ${model.block_size}\n"
    (tmp_path / "mine" / "norm" / "perstep.yaml").write_text(yaml)
    (tmp_path / "text.txt").write_text(LETTERS)
    failed = programs.run("train.py", "norm=perstep", *usual(tmp_path), cwd=tmp_path, PYTHONPATH="mine")
    check_refused(failed, "norm=perstep")
    assert not list(tmp_path.glob("runs/*"))


MEASURED = """
import torch
from torch import nn


class Measured(nn.LayerNorm):
    def __init__(self, n_features):
        super().__init__(n_features)
        self.size = float(torch.tensor(float(n_features)).sqrt())
"""
WIRED = """
from torch import nn

from model.placements import Pre


class Wired(Pre):
    def __call__(self, branch, norm, layer, site):
        return nn.Sequential(norm("norm"), branch)

    def slots(self, layer, site):
        raise NotImplementedError("its module has no slots")
"""


@pytest.mark.slow
def test_a_norm_that_computes_numbers_and_a_placement_that_wires_itself_are_sampled(home):
    (home / "mine" / "measured.py").write_text(MEASURED)
    (home / "mine" / "wired.py").write_text(WIRED)
    (home / "mine" / "placement").mkdir(exist_ok=True)
    (home / "mine" / "norm" / "measured.yaml").write_text("_target_: measured.Measured\n")
    (home / "mine" / "placement" / "wired.yaml").write_text("_target_: wired.Wired\n")
    done = started(home, "train.py", "norm=measured", "placement=wired", *usual(home))
    [command] = re.findall("sample from it: python (sample.py .*)", done.stdout)
    assert command.endswith(" trust=measured,wired")
    text = started(home, *command.split(), "max_new_tokens=5", "prompt=Now").stdout
    assert text.startswith("Now")
