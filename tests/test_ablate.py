"""ablate.py from the command line to the table: declared, trained, chosen, judged, and gone on with."""

import json

import pytest
from filelock import FileLock

from tests.conftest import TRAIN
from tests.helpers.own_norm import write_norm
from training.run_folder import read_status

SHORT = [*(word for word in TRAIN if not word.startswith("train.steps")), "train.steps=3"]
OWN = "super().__init__(); self.inner = nn.LayerNorm(n); self.forward = self.inner.forward"


@pytest.mark.slow
def test_a_tuned_study_from_the_words_to_the_table(succeed, command, text_file, tmp_path):
    words = ["study=norms", "norm=layernorm,none", "placement=pre", "seeds=3", *SHORT]
    words += ["trials=2", "tune={optim.learning_rate: log 1e-3 1e-2}"]
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
    study, chosen = (json.loads((folder / f"{name}.json").read_text()) for name in ("study", "chosen"))
    for title, arm in chosen["arms"].items():
        assert arm["settings"] in study["trials"]
        assert len(arm["runs"]) == 3
        assert all(read_status(tmp_path / "runs" / name)["state"] == "finished" for name in arm["runs"]), (
            title
        )
    assert len([*(tmp_path / "runs").iterdir()]) == 4 + 2 + 6

    before = {file: file.read_text() for file in folder.glob("*.json")}
    again = succeed("ablate.py", *words).stdout
    assert again.partition("Of 1 arm")[2] == rest.partition("Of 1 arm")[2]
    assert {file: file.read_text() for file in folder.glob("*.json")} == before
    other = command("ablate.py", *words, "train.steps=4")
    assert other.returncode == 1
    assert other.stderr.startswith("error: studies/norms: the study has another train.steps")


def test_an_edited_norm_is_another_study_and_a_broken_one_is_named_before_the_first_run(
    succeed, command, text_file, tmp_path
):
    write_norm(tmp_path, "own", OWN)
    words = ["study=norms", "norm=layernorm,own", "placement=pre", *SHORT, "--config-dir", str(tmp_path)]
    environ = {"PYTHONPATH": str(tmp_path)}
    broken = ["norm=layernorm,broken", *(word for word in words if not word.startswith("norm="))]
    write_norm(tmp_path, "broken", f"{OWN}; self.forward = lambda x: x[:, :1]")
    done = command("ablate.py", *broken, **environ)
    assert done.stderr.startswith("error: norm=broken placement=pre: Own: returns (4, 1, 16) for (4, 8, 16)")
    assert not (tmp_path / "studies").exists()

    declared = succeed("ablate.py", *words, "seeds=1", "verdicts=false", **environ).stdout
    assert "own" in declared
    write_norm(tmp_path, "own", OWN.replace("LayerNorm(n)", "LayerNorm(n, eps=1e-3)"))
    edited = command("ablate.py", *words, "seeds=1", "verdicts=false", **environ)
    assert edited.returncode == 1
    assert edited.stderr.startswith("error: studies/norms: the study has another norm=own placement=pre: its")


@pytest.mark.slow
@pytest.mark.parametrize(("placements", "arms"), [("pre,post", 3), ("rezero", 2)])
def test_arms_that_compute_the_same_are_one(placements, arms, succeed, text_file, tmp_path):
    """Without a norm, pre and post are; in rezero all norms are at first, but no further."""
    norms = "layernorm,batchnorm" if arms == 2 else "layernorm,none"
    words = [f"norm={norms}", f"placement={placements}", f"baseline=placement={placements.split(',')[0]}"]
    printed = succeed("ablate.py", "study=norms", *words, *SHORT, "--dry-run").stdout
    assert f"\n{arms} arms, fp32; baseline" in printed
    merged = "norm=none placement=post is the same model as norm=none placement=pre: one arm"
    assert (merged in printed) == (arms == 3)


@pytest.mark.slow
def test_seeds_are_doubled_once_and_a_second_start_is_one_line(succeed, command, text_file, tmp_path):
    words = ["study=norms", "norm=layernorm,none", "placement=pre", "seeds=1", *SHORT]
    succeed("ablate.py", *words)
    folder = tmp_path / "studies" / "norms"
    before = {file: file.read_text() for file in folder.glob("*.json")}
    assert succeed("ablate.py", *words, "--dry-run").stdout.endswith("all runs have ended\n")
    assert succeed("ablate.py", *words, "extend=true", "--dry-run").stdout.count("train.py") == 2
    assert {file: file.read_text() for file in folder.glob("*.json")} == before
    extended = succeed("ablate.py", *words, "extend=true").stdout
    assert "The seeds were doubled" in extended
    assert len([*(tmp_path / "runs").iterdir()]) == 4
    assert succeed("ablate.py", *words).stdout.partition("Of 1 arm")[2] == extended.partition("Of 1 arm")[2]
    assert {file: file.read_text() for file in before} == before
    with FileLock(folder / ".lock"):
        second = command("ablate.py", *words)
    assert second.stderr == "error: studies/norms: another process runs this study; wait for it or end it\n"
