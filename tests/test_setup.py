"""The files that say what is to be installed agree."""

import re
import tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import ROOT


def lines(file: str) -> list[str]:
    """Return the lines of a file without comments, options and empty lines."""
    texts = (
        line.partition("#")[0].strip() for line in (ROOT / file).read_text(encoding="utf-8").splitlines()
    )
    return [text for text in texts if text and not text.startswith("-")]


def test_uv_installs_what_pip_installs():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["dependencies"] == lines("requirements.txt")
    assert not project["tool"]["uv"]["package"]


def test_the_tested_versions_are_names_and_versions_alone_and_fulfil_every_requirement():
    tested = dict(line.split("==") for line in lines("constraints.txt"))
    assert all(re.fullmatch(r"[a-z0-9-]+", name) and re.fullmatch(r"[\w.]+", v) for name, v in tested.items())
    for file in sorted(ROOT.glob("requirements*.txt")):
        for requirement in map(Requirement, lines(file.name)):
            assert tested[canonicalize_name(requirement.name)] in requirement.specifier, requirement


def test_the_versions_of_the_project_are_one():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {project['version']}\n" in citation
