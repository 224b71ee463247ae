"""A run records its processor, and the commit of its code."""

import os
import subprocess

import pytest

from rundir import environment

PUBLISHED = ["results/atlas/runs.jsonl", "bench/results/train.json"]


@pytest.mark.parametrize("numbers", [("25", "1"), ("25", "17"), (None, None)])
def test_processors_of_one_name_are_told_apart_by_family_and_model(monkeypatch, numbers):
    values = dict(zip(("cpu family", "model"), numbers, strict=True)) | {"model name": "AMD EPYC"}
    monkeypatch.setattr(environment, "cpuinfo", values.get)
    assert environment.processor_generation().split() == ["AMD", "EPYC", *filter(None, numbers)]


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    def git(*arguments):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True, capture_output=True)

    for name in [name for name in os.environ if name.startswith("GIT_")]:  # git sets some for its hooks
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    for name in ["train.py", *PUBLISHED]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("pass\n")
    git("init")
    git("add", ".")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-m", "a")
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    environment.git_state.cache_clear()
    yield tmp_path
    environment.git_state.cache_clear()


@pytest.mark.parametrize("name", ["train.py", "own_norm.py", "conf/norm/own.yaml"])
def test_a_changed_or_new_file_is_a_change_of_the_commit(checkout, name):
    (checkout / name).parent.mkdir(parents=True, exist_ok=True)
    (checkout / name).write_text("1\n")
    assert environment.git_state()["diff"] != ""


@pytest.mark.parametrize("name", [*PUBLISHED, "results/mine/runs.jsonl", "bench/results/train-mine.json"])
def test_published_results_are_no_change_of_the_commit(checkout, name):
    """A benchmark must not call the code changed because the one before it wrote its result."""
    (checkout / name).parent.mkdir(parents=True, exist_ok=True)
    (checkout / name).write_text("1\n")
    assert environment.git_state()["diff"] == ""
