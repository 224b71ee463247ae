"""Untrusted runs are compared as any others: their names and texts run nowhere, steer no terminal, and take
neither all memory nor for ever."""

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

from comparison import load
from comparison.drawing.page import page
from comparison.report import build_report
from tests.conftest import daily, some_slow
from tests.helpers import programs
from tests.helpers.browser import browser, needs_browser  # noqa: F401 a fixture
from tests.helpers.contract import contents
from tests.helpers.run_folders import made
from tests.helpers.waiting import until

SCRIPT = "</script><img src=x onerror=window.owned=1>\"'`${1}[[js]]<script>window.owned=1</script>"
ESCAPE = "\x1b]0;owned\x07\x1b[31m\u202e[bold red]"
ODD = ESCAPE + SCRIPT


def untrusted_run(parent: Path, seed: int) -> Path:
    """Write a run in which every name and text is a script with control characters."""
    curve = {step: {"train/loss": 3.0, f"act.rms/{ODD}": 1.0, f"{ODD}/00.mlp": 2.0} for step in (5, 10, 20)}
    run = made(parent, "norm=layernorm", f"seed={seed}", final=2.0 + seed / 100, curve=curve, group="odd")
    for name in ("config.yaml", "environment.json", "status.json", "certificate.json"):
        values = yaml.safe_load((run / name).read_text())
        odd = spoilt(values, keep=("state", "precision", "fingerprint", "optim", "group", "train", "eval"))
        text = yaml.safe_dump(odd) if name == "config.yaml" else json.dumps(odd)
        (run / name).write_text(text, encoding="utf-8")
    return run.rename(run.with_name(ODD.replace("/", "") + str(seed)))


def spoilt(value, keep=()):
    if isinstance(value, str):
        return ODD
    if isinstance(value, dict):
        return {key: inner if key in keep else spoilt(inner) for key, inner in value.items()} | {ODD: ODD}
    return value


@pytest.fixture
def runs(tmp_path):
    for seed in (0, 1):
        untrusted_run(tmp_path / "runs", seed)
    return tmp_path / "runs"


@pytest.mark.slow
def test_the_terminal_and_the_files_show_names_as_text(runs, tmp_path):
    (runs / ("broken" + ESCAPE)).mkdir()
    (runs / ("broken" + ESCAPE) / "metrics.jsonl").write_text("")
    done = programs.succeed("compare.py", cwd=tmp_path)
    assert "Traceback" not in done.stderr
    output = done.stdout + done.stderr
    assert all(c.isprintable() or c == "\n" for c in output)
    assert "\\x1b]0;owned" in output
    html = (tmp_path / "report/index.html").read_text(encoding="utf-8")
    assert "window.owned=1>" not in html
    assert "\x1b" not in html
    assert [file for file, content in contents(tmp_path / "report").items() if b"\x1b" in content] == []


@needs_browser
def test_the_page_runs_no_script_of_a_run(runs, browser, tmp_path):
    loaded = [load.load(run)[0] for run in sorted(runs.iterdir())]
    file = tmp_path / "index.html"
    file.write_text(page(build_report(loaded)), encoding="utf-8")
    browser.get(file.as_uri())
    until(lambda: browser.execute_script("return document.body.dataset.drawn"))
    assert browser.execute_script("return window.owned") is None
    assert browser.execute_script("return document.querySelectorAll('img[src=x]').length") == 0


def leaves(value, path=()):
    """Return the keys that lead to each value that is no table."""
    if isinstance(value, dict) and value:
        return [leaf for key, inner in value.items() for leaf in leaves(inner, (*path, key))]
    return [path]


def replaced(value, path, by):
    return by if not path else value | {path[0]: replaced(value[path[0]], path[1:], by)}


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.just(10**400),
    st.just("x: ["),
)
ANYTHING |= st.lists(ANYTHING, max_size=3) | st.dictionaries(st.text(max_size=3), ANYTHING, max_size=3)
FILES = ("config.yaml", "status.json", "environment.json", "certificate.json")


@pytest.mark.parametrize("examples", daily([40, 2000]))
def test_a_run_with_any_values_is_compared_or_passed_over(tmp_path_factory, examples, record_property):
    seen = {"compared": 0, "passed over": 0}
    parent = tmp_path_factory.mktemp("runs")
    good, bad = made(parent, "seed=0"), made(parent, "seed=1", "norm=none")
    texts = {name: (bad / name).read_text(encoding="utf-8") for name in FILES}

    @seeded(0)
    @settings(max_examples=examples, database=None, suppress_health_check=[*HealthCheck])
    @given(st.sampled_from(FILES), st.randoms(use_true_random=False), ANYTHING)
    def fuzz(name, draw, value):
        values = yaml.safe_load(texts[name])
        spoilt = replaced(values, draw.choice(leaves(values)), value)
        dump = yaml.safe_dump if name == "config.yaml" else json.dumps
        (bad / name).write_text(dump(spoilt), encoding="utf-8")
        try:
            runs = [load.load(folder)[0] for folder in (good, bad)]
            page(build_report(runs, mixed=True))
        except load.UnreadableError:
            seen["passed over"] += 1
        else:
            seen["compared"] += 1
        finally:
            (bad / name).write_text(texts[name], encoding="utf-8")

    fuzz()
    for end, number in seen.items():
        record_property(f"B1 runs with some odd value, {end}", number)
    assert min(seen.values()) > 0


BOMBS = {  # what the test above and tests/comparison/test_load.py do not try
    "aliases of aliases": (
        "config.yaml",
        "b0: &b0 [x, x]\n" + "".join(f"b{i}: &b{i} [*b{i - 1}, *b{i - 1}]\n" for i in range(1, 30)),
    ),
    "a config that is deep": ("config.yaml", "[" * 100_000),
    "an object of Python": ("config.yaml", "!!python/object/apply:os.system ['touch owned']"),
    "a config of 100 MB": ("config.yaml", "a: " + "x" * 100_000_000),
    "a status that is deep": ("status.json", "[" * 100_000),
    "metrics of a million empty lines": ("metrics.jsonl", "\n" * 1_000_000),
    "an environment of a million errors": ("environment.json", json.dumps({"overrides": [1] * 400_000})),
    "metrics of lists": ("metrics.jsonl", '{"step": [], "tokens": {}, "seconds": "x"}\n' * 3),
    "metrics that are deep": ("metrics.jsonl", "[" * 100_000 + "\n"),
    "metrics of one line without an end": ("metrics.jsonl", '{"step": 1, ' + '"x": 1, ' * 1_000_000),
}


@pytest.mark.parametrize("name", daily(BOMBS, others=some_slow))
def test_a_foreign_folder_is_passed_over_and_named(tmp_path, name):
    made(tmp_path / "runs", "seed=0")
    bad = made(tmp_path / "runs", "seed=1")
    file, content = BOMBS[name]
    before = (bad / file).read_text() if name == "aliases of aliases" else ""  # with all that it needs
    (bad / file).write_text(before + content)
    done = programs.succeed("compare.py", cwd=tmp_path, timeout=programs.PATIENCE)
    assert done.peak < 2**30
    assert "Traceback" not in done.stderr
    assert bad.name in done.stdout
    assert not (tmp_path / "owned").exists()
