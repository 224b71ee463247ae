"""Rules of the house that a machine can check."""

import ast
import re
from pathlib import Path

import pytest

from tests.helpers.tree import ours

ROOT = Path(__file__).parents[1]
OURS = ours()


def test_every_file_with_tests_of_faults_is_in_make_test_faults():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    listed = tuple(re.search(r"^FAULTS := (.*)$", makefile, re.M)[1].split())
    for file in sorted({*ROOT.glob("tests/**/test_*.py")} - {Path(__file__)}):
        text = file.read_text(encoding="utf-8")
        some = "mark.faults" in text or ("daily(" in text and '"long"' not in text)
        assert not some or str(file.relative_to(ROOT)).startswith(listed), file


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


def test_no_room_imports_a_program():
    """Import-linter holds the floors among packages; it cannot take these files as roots."""
    for file in OURS:
        if file.parent != ROOT:
            for node in ast.walk(ast.parse(file.read_text())):
                modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                assert not {module.split(".")[0] for module in modules} & {"train", "sample", "compare"}


def test_a_file_name_occurs_once():
    names = [
        f.name for f in OURS if f.parent.name != "bench" and f.name not in ("__init__.py", "__main__.py")
    ]
    assert sorted(names) == sorted(set(names))


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
