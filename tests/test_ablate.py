"""ablate.py from the command line to the table: declared, trained, chosen, judged, and gone on with."""

import json
from types import SimpleNamespace

import pytest
from filelock import FileLock

from data.errors import ConfigError
from study import plan
from tests.conftest import TRAIN
from tests.helpers.contract import check_refused
from tests.helpers.own_norm import write_norm
from training import identity, try_arms
from training.run_folder import read_status

SHORT = [*(word for word in TRAIN if not word.startswith("train.steps")), "train.steps=3"]
TWO = ["study=norms", "norm=layernorm,none", "placement=pre", *SHORT]
OWN = "super().__init__(); self.inner = nn.LayerNorm(n); self.forward = self.inner.forward"


def files(folder):
    return {file.name: file.read_text() for file in folder.glob("*.json")}


@pytest.mark.slow
def test_a_tuned_study_from_the_words_to_the_table(succeed, command, text_file, tmp_path):
    words = [*TWO, "seeds=3", "trials=2", "tune={optim.learning_rate: log 1e-3 1e-2}"]
    folder = tmp_path / "studies" / "norms"
    planned = succeed("ablate.py", *words, "--dry-run").stdout
    assert planned.count("train.py") == 4  # two settings of each arm
    assert not folder.exists()

    done = succeed("ablate.py", *words, "n_jobs=2").stdout
    first, _, rest = done.partition("2 runs at once")
    assert "2 arms, fp32; baseline: norm=layernorm placement=pre" in first
    assert "4 trials, and 2 of the best on other seeds; 6 compared runs, on 3 seeds" in first
    assert "Of 1 arm" in rest
    assert rest.endswith("page: studies/norms/index.html\n")
    assert "Loss curves" in (folder / "index.html").read_text(encoding="utf-8")
    before = files(folder)
    study, chosen = (json.loads(before[f"{name}.json"]) for name in ("study", "chosen"))
    for arm in chosen["arms"].values():
        assert arm["settings"] in study["trials"]
        states = [read_status(tmp_path / "runs" / name)["state"] for name in arm["runs"]]
        assert states == ["finished"] * 3
    assert len([*(tmp_path / "runs").iterdir()]) == 4 + 2 + 6

    again = succeed("ablate.py", *words).stdout
    assert again.partition("Of 1 arm")[2] == rest.partition("Of 1 arm")[2]
    assert files(folder) == before
    chosen["arms"]["norm=none placement=pre"]["settings"]["norm._target_"] = "evil.Norm"
    (folder / "chosen.json").write_text(json.dumps(chosen))
    check_refused(command("ablate.py", *words), "has settings that were not tried")
    other = command("ablate.py", *words, "train.steps=4")
    assert other.returncode == 1
    assert other.stderr.startswith("error: studies/norms: was declared with another train.steps")


@pytest.mark.slow
def test_seeds_are_doubled_once_and_a_second_start_is_one_line(succeed, command, text_file, tmp_path):
    words = [*TWO, "seeds=1"]
    succeed("ablate.py", *words)
    folder = tmp_path / "studies" / "norms"
    before = files(folder)
    assert succeed("ablate.py", *words, "--dry-run").stdout.endswith("all runs have ended\n")
    assert succeed("ablate.py", *words, "extend=true", "--dry-run").stdout.count("train.py") == 2
    assert files(folder) == before
    extended = succeed("ablate.py", *words, "extend=true").stdout
    assert "The seeds were doubled" in extended
    assert len([*(tmp_path / "runs").iterdir()]) == 4
    assert succeed("ablate.py", *words).stdout.partition("Of 1 arm")[2] == extended.partition("Of 1 arm")[2]
    assert files(folder) | before == files(folder)
    with FileLock(folder / ".lock"):
        second = command("ablate.py", *words)
    assert second.stderr == "error: studies/norms: another process runs this study; wait for it or end it\n"


@pytest.fixture
def declare(tmp_path, text_file, monkeypatch):
    """Return a function that declares a study of these words in an empty folder, and tries its arms in this
    process."""

    def here(words, *, input, **_):
        answers = [try_arms.answer(config) for config in json.loads(input)]
        return SimpleNamespace(returncode=0, stdout=json.dumps(answers))

    monkeypatch.setattr(plan, "subprocess", SimpleNamespace(run=here, PIPE=None))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return lambda *words: plan.declare(["study=norms", "--config-dir", ".", *SHORT, *words]).study


def test_an_edited_norm_is_another_study_and_a_broken_one_is_named_before_the_first_run(declare, tmp_path):
    write_norm(tmp_path, "broken", f"{OWN}; self.forward = lambda x: x[:, :1]")
    with pytest.raises(
        ConfigError, match=r"norm=broken placement=pre: Own: returns \(4, 1, 16\) for \(4, 8, 16"
    ):
        declare("norm=layernorm,broken", "placement=pre")
    assert not (tmp_path / "studies").exists()

    write_norm(tmp_path, "own", OWN)
    assert declare("norm=layernorm,own", "placement=pre").arms[1].title == "norm=own placement=pre"
    write_norm(tmp_path, "own", OWN.replace("LayerNorm(n)", "LayerNorm(n, eps=1e-3)"))
    for remembered in (identity.source, identity.parsed):
        remembered.cache_clear()
    with pytest.raises(
        ConfigError, match="studies/norms: was declared with another norm=own placement=pre: its"
    ):
        declare("norm=layernorm,own", "placement=pre")


def test_arms_that_compute_the_same_are_one(declare):
    """Without a norm, pre and post are; in rezero all norms are at first, but no further."""
    made = declare("norm=layernorm,none", "placement=pre,post")
    assert [arm.same_as for arm in made.arms] == [[], [], ["norm=none placement=post"]]
    made = declare("norm=layernorm,batchnorm", "placement=rezero", "baseline=placement=rezero", "name=rezero")
    assert len(made.arms) == 2
