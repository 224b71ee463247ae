"""Rules of the house that a machine can check. What may import what is held by import-linter: make check."""

import ast
import re
from collections import Counter
from pathlib import Path

from tests.helpers.tree import project_files

ROOT = Path(__file__).parents[1]
FILES = project_files()
TESTS = sorted((ROOT / "tests").rglob("*.py"))
TREES = {file: ast.parse(file.read_text(encoding="utf-8")) for file in (*FILES, *TESTS)}


def test_there_is_code_to_look_at():
    assert len(FILES) > 100
    assert len(TESTS) > 100


def test_no_function_is_longer_than_60_lines():
    too_long = [
        f"{file.relative_to(ROOT)}:{node.lineno} {node.name}, {node.end_lineno - node.lineno + 1} lines"
        for file, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno - node.lineno >= 60
    ]
    assert too_long == []


def test_no_file_is_longer_than_250_lines_and_none_of_the_tests_than_450():
    lines = {file: file.read_text(encoding="utf-8").count("\n") for file in TREES}
    too_long = [file for file in FILES if lines[file] > 250] + [file for file in TESTS if lines[file] > 450]
    assert {str(file.relative_to(ROOT)): lines[file] for file in too_long} == {}


def test_no_folder_has_more_than_25_files():
    folders = Counter(str(file.parent.relative_to(ROOT)) for file in TREES)
    assert {folder: count for folder, count in folders.items() if count > 25} == {}


def test_a_file_name_occurs_once():
    several = ("__init__.py", "__main__.py")
    names = Counter(f.name for f in FILES if f.parent.name != "bench" and f.name not in several)
    assert [name for name, count in names.items() if count > 1] == []


def imported_modules(tree: ast.Module) -> list[str]:
    """Return the full names of the modules that a file imports, anywhere in it."""
    modules = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom) and node.module:
            modules += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return modules


def test_no_room_imports_a_program():
    """Import-linter cannot take these files as roots."""
    for file in FILES:
        packages = {module.split(".")[0] for module in imported_modules(TREES[file])}
        assert file.parent == ROOT or not packages & {"train", "sample", "compare"}, file


def test_no_test_imports_a_test():
    for file in TESTS:
        modules = [module.split(".") for module in imported_modules(TREES[file])]
        assert not [m for m in modules if m[0] == "tests" and any(part.startswith("test_") for part in m)], (
            file
        )


def test_no_unpickler_and_nothing_that_runs_text():
    unpicklers = {"pickle", "cPickle", "dill", "joblib", "shelve", "marshal", "cloudpickle"}
    runs_text = {"eval", "exec", "torch.load", "torch.save", "yaml.load", "os.system"}
    for file in FILES:
        assert not set(imported_modules(TREES[file])) & unpicklers, file
        for node in ast.walk(TREES[file]):
            if isinstance(node, ast.Call):
                assert ast.unparse(node.func) not in runs_text, f"{file}:{node.lineno}"
                assert not any(keyword.arg == "allow_pickle" for keyword in node.keywords), file


def test_every_file_with_tests_of_faults_is_in_make_test_faults():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    listed = tuple(re.search(r"^FAULTS := (.*)$", makefile, re.M)[1].split())
    assert [path for path in listed if not (ROOT / path).exists()] == []
    for file in TESTS:
        text = file.read_text(encoding="utf-8")
        has_faults = "mark.faults" in text or ("daily(" in text and not re.search(r'"(long|slow)"', text))
        if has_faults and file.name not in ("test_house.py", "conftest.py"):
            assert str(file.relative_to(ROOT)).startswith(listed), file


def test_train_and_the_network_mention_no_norm_and_no_placement_by_name():
    named = {file.stem for group in ("norm", "placement") for file in (ROOT / "conf" / group).glob("*.yaml")}
    for file in ("norms", "batchnorms", "placements"):
        tree = ast.parse((ROOT / "model" / f"{file}.py").read_text())
        named |= {node.name.lower() for node in tree.body if isinstance(node, ast.ClassDef)}
    named -= set("affine none output mix pre post placement slots residual".split())  # everyday words
    assert {"layernorm", "powernorm", "keel", "deepnorm", "dynamictanh"} <= named
    for file in ("train.py", "model/gpt.py"):
        words = set(re.findall(r"\w+", (ROOT / file).read_text().lower()))
        assert not words & named
