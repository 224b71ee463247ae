"""Norms and a placement outside the project, as docs/own-norm.md has them: a class and a YAML, and no edit of
the project. Those that leak are found."""

import re

import pytest
import torch

from data.errors import ConfigError
from tests.conftest import LETTERS, ROOT, TINY
from tests.helpers import programs
from tests.helpers.contract import check_refused
from tests.helpers.runs import metric_rows, train_anew
from training.run_folder import read_json, read_status

SECTION = (ROOT / "docs/own-norm.md").read_text(encoding="utf-8")
LEAKING = (ROOT / "results/leaking_placement.md").read_text(encoding="utf-8")


def block(kind, page=SECTION):
    """Return a page's first block of this language, such as "python"."""
    return re.search(rf"^```{kind}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)[1]


def write(home, group, name, options, module, code):
    (home / "mine" / group).mkdir(parents=True, exist_ok=True)
    (home / "mine" / group / f"{name}.yaml").write_text(options)
    (home / "mine" / f"{module}.py").write_text(code)


@pytest.fixture
def home(tmp_path):
    """A folder with the norm of the page and a text."""
    (tmp_path / "text.txt").write_text(LETTERS)
    write(tmp_path, "norm", "l1", block("yaml"), "mynorms", block("python"))
    return tmp_path


def run(home, program, *words, check=True):
    start = programs.succeed if check else programs.run
    return start(program, *words, cwd=home, PYTHONPATH="mine")


def trained(home, *words):
    """Train a run with the norms of ``home``. Return what the program printed, and the run's folder."""
    usual = (*TINY, "data=text", "data.path=text.txt", "--config-dir", "mine")
    done = run(home, "train.py", *words, *usual)
    [status] = home.glob("runs/*/status.json")
    assert read_status(status.parent)["state"] == "finished"
    return done.stdout, status.parent


def test_it_stands_at_every_site_and_is_certified_and_its_statistics_are_taken(home):
    sites = ("norm=l1", "placement=peri", "model.qk_norm=l1", "model.embedding_norm=l1", "stats=all")
    _, folder = trained(home, *sites)
    assert folder.name.startswith("l1-peri-s0-")
    assert (folder / "config.yaml").read_text().count("_target_: mynorms.L1Norm") == 3
    for answer in read_json(folder / "certificate.json").values():
        assert (answer["causal"], answer["independent_rows"]) == (True, True)
    first = metric_rows(folder)[0]
    assert first["norm.gain/01.mlp.pre"] == 1
    assert {"act.rms/01.mlp.pre.in", "act.rms/01.mlp.pre.out", "leak.future/train"} <= first.keys()


@pytest.mark.slow
def test_the_check_of_a_norm_prints_what_the_page_shows_and_names_what_is_broken(home):
    command = ("scripts/check_norm.py", "--config-dir", "mine")
    assert f"```\n{run(home, *command, 'norm=l1').stdout}```" in SECTION
    broken = block("python").replace("return (x", "return x.mul_(2), (x")
    write(home, "norm", "broken", "_target_: broken.L1Norm\n", "broken", broken)
    done = run(home, *command, "norm=broken", "model.n_layer=1", check=False)
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
    check_refused(run(home, "sample.py", f"run={folder}", check=False), "add trust=measured")
    [command] = re.findall("sample from it: python (sample.py .*)", printed)
    assert command.endswith(" trust=measured,wired")
    assert run(home, *command.split(), "max_new_tokens=5", "prompt=Now").stdout.startswith("Now")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # by einx
def test_a_residual_of_another_library_is_a_placement_and_its_leak_is_found(home):
    others = pytest.importorskip("x_transformers", reason="pip install 'x-transformers==2.31.*'")
    write(home, "placement", "mvsplit", block("yaml", LEAKING), "mvsplit", block("python", LEAKING))
    printed, folder = trained(home, "placement=mvsplit")
    assert printed.count(" LEAKS: a logit moves in training by up to ") == 2  # at the start and the end
    assert run(home, "compare.py", str(folder)).stdout.count("LEAKS in ") == 1
    for answer in read_json(folder / "certificate.json").values():
        assert (answer["causal"], answer["independent_rows"]) == (False, True)
        assert min(answer[mode]["future"] for mode in ("train", "eval")) > 1e-3
    moved = []  # in the library's own decoder, without the option and with it
    for split in (False, True):
        torch.manual_seed(0)
        layers = others.Decoder(dim=64, depth=2, heads=4, mv_split_residual=split)
        gpt = others.TransformerWrapper(num_tokens=65, max_seq_len=32, attn_layers=layers).eval()
        idx = torch.randint(65, (4, 32))
        other = torch.cat([idx[:, :20], (idx[:, 20:] + 1) % 65], dim=1)
        with torch.no_grad():
            moved.append(float((gpt(other) - gpt(idx))[:, :20].abs().max() / gpt(idx).std()))
    assert moved == [0, pytest.approx(0.022, rel=0.2)]  # other versions of torch


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


def test_a_norm_that_a_shorter_window_breaks_is_refused_and_one_whose_buffers_overflow_is_not_saved(
    tiny, tmp_path, monkeypatch, capsys
):
    (tmp_path / "odd.py").write_text(ODD)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="norm="):
        train_anew(tiny("norm=none", "norm._target_=odd.PerStep"))
    assert not list(tmp_path.glob("runs/*"))
    train_anew(tiny("norm=none", "norm._target_=odd.Overflowing"))
    printed = capsys.readouterr()
    assert "no checkpoint of step 6: blocks.0.attn.pre.product is not finite" in printed.err
    assert "sample from it" not in printed.out
