"""Rules of the house that a machine can check."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = [
    file
    for pattern in (
        "*.py",
        "model/*.py",
        "data/*.py",
        "training/*.py",
        "diagnostics/*.py",
        "comparison/*.py",
        "bench/*.py",
        "reproduction/*.py",
        "plain/*.py",
        "hydra_plugins/*.py",
    )
    for file in sorted(ROOT.glob(pattern))
]
ROOMS = {
    "model": {"model"},
    "plain": {"plain"},
    "data": {"data", "plain"},
    "diagnostics": {"diagnostics"},
    "comparison": {"comparison", "plain"},
    "training": {"training", "diagnostics", "data", "model", "plain"},
    "": {"training", "diagnostics", "data", "model", "plain"},
    "compare": {"comparison", "plain"},
    "reproduction": {"reproduction", "comparison", "training", "diagnostics", "data", "model", "plain"},
    "findings": {"reproduction", "comparison", "training"},
    "checkpoint": {"comparison", "diagnostics", "training", "data", "plain"},
    "bench": {"bench", "comparison", "training", "data", "model", "plain"},
    "hydra_plugins": {"training", "hydra_plugins"},  # others' plugins are in a package of that name, too
}


def test_every_file_with_tests_of_faults_is_in_make_test_faults():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    listed = tuple(re.search(r"^FAULTS := (.*)$", makefile, re.M)[1].split())
    for file in sorted({*ROOT.glob("tests/**/test_*.py")} - {Path(__file__)}):
        text = file.read_text(encoding="utf-8")
        some = "mark.faults" in text or ("daily(" in text and '"long"' not in text)
        assert not some or str(file.relative_to(ROOT)).startswith(listed), file


# Started by python -m; the last draws, too.
PROGRAMS = {ROOT / "diagnostics" / name for name in ("init.py", "certificates.py", "checkpoint.py")}


def test_there_is_code_to_look_at():
    assert len(OURS) > 15


@pytest.mark.parametrize("file", OURS, ids=lambda file: str(file.relative_to(ROOT)))
def test_no_unpickler_and_nothing_that_runs_text(file):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = {alias.name for alias in node.names} | {getattr(node, "module", None)}
            assert not names & {"pickle", "cPickle", "dill", "joblib", "shelve", "marshal", "cloudpickle"}
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in {"eval", "exec", "torch.load", "torch.save", "yaml.load", "os.system"}
            assert not any(keyword.arg == "allow_pickle" for keyword in node.keywords)


@pytest.mark.parametrize("file", OURS, ids=lambda file: str(file.relative_to(ROOT)))
def test_imports_go_one_way(file):
    room = "" if file.parent == ROOT or file in PROGRAMS else file.parent.name
    if file in {ROOT / "compare.py", ROOT / "findings.py", ROOT / "diagnostics" / "checkpoint.py"}:
        room = file.stem
    for node in ast.walk(ast.parse(file.read_text())):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        modules += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        for top in {module.split(".")[0] for module in modules} & {
            "model",
            "data",
            "training",
            "diagnostics",
            "comparison",
            "reproduction",
            "plain",
            "train",
            "sample",
            "compare",
            "hydra_plugins",
        }:
            assert top in ROOMS[room], f"{room or 'a program'} imports {top}"


def test_train_and_the_network_mention_no_norm_and_no_placement_by_name():
    named = {file.stem for group in ("norm", "placement") for file in (ROOT / "conf" / group).glob("*.yaml")}
    for file in ("norms", "batchnorms", "placements"):
        tree = ast.parse((ROOT / "model" / f"{file}.py").read_text())
        named |= {node.name.lower() for node in tree.body if isinstance(node, ast.ClassDef)}
    named -= {
        "affine",
        "none",
        "output",
        "mix",
        "pre",
        "post",
        "placement",
        "slots",
        "residual",
    }  # everyday words
    assert {"layernorm", "powernorm", "keel", "deepnorm", "dynamictanh"} <= named
    for file in ("train.py", "model/gpt.py"):
        words = set(re.findall(r"\w+", (ROOT / file).read_text().lower()))
        assert not words & named


def test_what_only_watches_is_the_same_to_runs_and_to_their_comparison():
    from comparison.folders import WATCHING
    from training import runs

    assert {f"train.{key}" for key in runs.WATCHING} == {key for key in WATCHING if key.startswith("train.")}
