"""Every benchmark says what it is, and refuses what is wrong in one line."""

import importlib
import json
import re

import pytest

from bench.plot import draw

NAMES = ("train", "sample", "norms", "statistics", "startup", "ablation", "quality", "scaling")
NEED_DATA = [name for name in NAMES if name != "norms"]


def started(name: str, *arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Its exit status, in this process."""
    monkeypatch.setattr("sys.argv", [f"bench.{name}", *arguments])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"bench.{name}").main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize("name", NAMES)
def test_help_says_what_it_measures(name, monkeypatch, capsys):
    assert started(name, "--help", monkeypatch=monkeypatch) == 0
    text = capsys.readouterr().out
    assert f"python -m bench.{name}" in text
    assert all(option in text for option in ("--peer", "--data", "--out", "--rounds"))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--rounds", "0"), "argument --rounds: '0' is not a whole number of at least 1"),
        (("--nonsense",), "unrecognized arguments: --nonsense"),
        (("--peer", "nowhere"), "--peer: nowhere: no such folder; give a checkout of nanoGPT"),
        (("--data", "nowhere"), "--data: nowhere: no such file; give tinyshakespeare's text"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(name, arguments, said, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert started(name, *arguments, monkeypatch=monkeypatch) == 2
    error = capsys.readouterr().err
    assert re.fullmatch(rf"error: {re.escape(said)}.*\n", error)


@pytest.mark.parametrize("name", NEED_DATA)
def test_the_text_is_asked_for_where_it_is_needed(name, monkeypatch, capsys, tmp_path):
    more = ["--preset", "nanogpt_cpu"] if name == "quality" else []
    assert started(name, "--out", str(tmp_path / "x.json"), *more, monkeypatch=monkeypatch) == 2
    assert (
        capsys.readouterr().err == "error: --data: is needed here; give the file of tinyshakespeare's text\n"
    )


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("norms", ("--norm", "nonorm"), "--norm: there is no 'nonorm'; choose one of"),
        ("quality", ("--preset", "nopreset"), "--preset: conf/experiment has no nopreset.yaml"),
        ("train", ("--size", "nosize"), "argument --size: invalid choice: 'nosize'"),
    ],
)
def test_what_does_not_exist(name, arguments, said, monkeypatch, capsys):
    assert started(name, *arguments, monkeypatch=monkeypatch) == 2
    assert capsys.readouterr().err.startswith(f"error: {said}")


def test_the_figure_of_scaling(bench, tmp_path):
    made = bench()
    points = [("depth", 1), ("depth", 2), ("width", 64)]
    made.found["points"] = [
        {"axis": axis, "value": value, "program": "ours", "part": f"{axis} {value}: ours"}
        for axis, value in points
    ]
    made.raw = {f"{axis} {value}: ours": {"tokens_per_s": [1e4, 2e4]} for axis, value in points}
    made.found["memory"] = [{"step": 0, "resident_bytes": 10**8, "own_bytes": None}]
    draw(made, tmp_path / "figure.svg")
    drawn = (tmp_path / "figure.svg").read_text()
    assert drawn.startswith("<svg")
    assert all(title in drawn for title in ("layers", "channels", "memory, MB"))
    assert "context, tokens" not in drawn


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "arguments", "parts"),
    [
        ("train", ("--size", "cpu", "--steps", "3"), {"cpu: nanoGPT", "cpu: ours, auto, compiled"}),
        ("train", ("--curves", "--steps", "2", "--seeds", "2"), {"nanoGPT", "ours, bf16", "ours, fp32"}),
        ("sample", ("--size", "cpu", "--length", "64"), {"cpu: nanoGPT", "cpu: ours"}),
        ("startup", (), {"nanoGPT", "ours", "ours, a sweep"}),
    ],
)
def test_a_small_one_side_by_side(name, arguments, parts, monkeypatch, nanogpt, tinyshakespeare, tmp_path):
    out = tmp_path / "result.json"
    shared = ["--peer", str(nanogpt), "--data", str(tinyshakespeare), "--rounds", "1", "--out", str(out)]
    monkeypatch.setattr("bench.curves.EVALUATED", 2)
    monkeypatch.setattr("sys.argv", [f"bench.{name}", *shared, *arguments])
    importlib.import_module(f"bench.{name}").main()
    result = json.loads(out.read_text())
    assert result["complete"]
    assert parts <= result["raw"].keys()
    assert str(nanogpt) not in out.read_text()
    assert str(tinyshakespeare) not in out.read_text()
