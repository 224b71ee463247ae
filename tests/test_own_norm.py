"""Norms and a placement outside the project, as docs/own-norm.md has them: a class and a YAML, and no edit of
the project. Those that leak are found."""

import json
import re
from pathlib import Path

import pytest
import torch

from data.errors import ConfigError
from tests.conftest import LETTERS, ROOT, TINY
from tests.helpers import programs
from tests.helpers.contract import check_refused
from tests.helpers.runs import metric_rows, train_anew

SECTION = (ROOT / "docs/own-norm.md").read_text(encoding="utf-8")
LEAKING = (ROOT / "results/leaking_placement.md").read_text(encoding="utf-8")


def blocks(kind: str, page: str = SECTION) -> list[str]:
    """Return a page's blocks of this language, such as "python"."""
    return re.findall(rf"^```{kind}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


@pytest.fixture
def home(tmp_path):
    """A folder with the norm of the page and a text."""
    (tmp_path / "text.txt").write_text(LETTERS)
    write(tmp_path, "norm", "l1", blocks("yaml")[0], "mynorms", blocks("python")[0])
    return tmp_path


def write(home: Path, group: str, name: str, options: str, module: str, code: str) -> None:
    (home / "mine" / group).mkdir(parents=True, exist_ok=True)
    (home / "mine" / group / f"{name}.yaml").write_text(options)
    (home / "mine" / f"{module}.py").write_text(code)


def trained(home: Path, *words: str) -> tuple[str, Path]:
    """Train a run with the norms of ``home``. Return what the program printed, and the run's folder."""
    usual = (*TINY, "data=text", "data.path=text.txt", "--config-dir", "mine")
    done = programs.succeed("train.py", *words, *usual, cwd=home, PYTHONPATH="mine")
    [status] = home.glob("runs/*/status.json")
    assert json.loads(status.read_text())["state"] == "finished"
    return done.stdout, status.parent


def test_it_stands_at_every_site_and_is_certified_and_its_statistics_are_taken(home):
    sites = ("norm=l1", "placement=peri", "model.qk_norm=l1", "model.embedding_norm=l1", "stats=all")
    _, folder = trained(home, *sites)
    assert folder.name.startswith("l1-peri-s0-")
    assert (folder / "config.yaml").read_text().count("_target_: mynorms.L1Norm") == 3
    for answer in json.loads((folder / "certificate.json").read_text()).values():
        assert (answer["causal"], answer["independent_rows"]) == (True, True)
    first = metric_rows(folder)[0]
    assert first["norm.gain/01.mlp.pre"] == 1
    assert {"act.rms/01.mlp.pre.in", "act.rms/01.mlp.pre.out", "leak.future/train"} <= first.keys()


@pytest.mark.slow
def test_the_check_of_a_norm_prints_what_the_page_shows_and_names_what_is_broken(home):
    command = ("scripts/check_norm.py", "--config-dir", "mine")
    done = programs.succeed(*command, "norm=l1", cwd=home, PYTHONPATH="mine")
    assert f"```\n{done.stdout}```" in SECTION
    broken = blocks("python")[0].replace("return (x", "return x.mul_(2), (x")
    write(home, "norm", "broken", "_target_: broken.L1Norm\n", "broken", broken)
    done = programs.run(*command, "norm=broken", "model.n_layer=1", cwd=home, PYTHONPATH="mine")
    assert done.returncode == 1
    assert re.search("shape +NO +returns a tuple", done.stdout)


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
def test_a_norm_that_computes_numbers_and_a_placement_that_wires_itself_are_sampled_if_trusted(home):
    write(home, "norm", "measured", "_target_: measured.Measured\n", "measured", MEASURED)
    write(home, "placement", "wired", "_target_: wired.Wired\n", "wired", WIRED)
    printed, folder = trained(home, "norm=measured", "placement=wired")
    refused = programs.run("sample.py", f"run={folder}", cwd=home, PYTHONPATH="mine")
    check_refused(refused, "add trust=measured")
    [command] = re.findall("sample from it: python (sample.py .*)", printed)
    assert command.endswith(" trust=measured,wired")
    text = programs.succeed(
        *command.split(), "max_new_tokens=5", "prompt=Now", cwd=home, PYTHONPATH="mine"
    ).stdout
    assert text.startswith("Now")


@pytest.mark.slow
def test_a_residual_of_another_library_is_a_placement_and_its_leak_is_found(home):
    pytest.importorskip("x_transformers", reason="pip install 'x-transformers==2.31.*'")
    code, options = blocks("python", LEAKING)[0], blocks("yaml", LEAKING)[0]
    write(home, "placement", "mvsplit", options, "mvsplit", code)
    printed, folder = trained(home, "placement=mvsplit")
    assert printed.count(" LEAKS: a logit moves in training by up to ") == 2  # at the start and the end
    compared = programs.succeed("compare.py", str(folder), cwd=home)
    assert compared.stdout.count("LEAKS in ") == 1
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


ODD = """
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


class PerStep(nn.Module):
    def __init__(self, n_features):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8, 1))

    def forward(self, x):
        return self.weight * x
"""


def test_a_step_whose_buffers_are_not_finite_has_no_checkpoint_and_the_run_says_so(
    tiny, tmp_path, monkeypatch, capsys
):
    (tmp_path / "odd.py").write_text(ODD)
    monkeypatch.syspath_prepend(tmp_path)
    train_anew(tiny("norm=none", "norm._target_=odd.Overflowing"))
    printed = capsys.readouterr()
    assert "no checkpoint of step 6: blocks.0.attn.pre.product is not finite" in printed.err
    assert "sample from it" not in printed.out


def test_a_norm_that_the_last_shorter_window_breaks_is_refused_before_training(tiny, tmp_path, monkeypatch):
    (tmp_path / "odd.py").write_text(ODD)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="norm="):
        train_anew(tiny("norm=none", "norm._target_=odd.PerStep"))
    assert not list(tmp_path.glob("runs/*"))
