"""Parts are measured in turn, every round is written, and a result says all that a number needs."""

import json

import pytest

from bench.measure import BenchError


def test_parts_take_turns_and_each_round_is_in_the_file(bench):
    made, order, files = bench(rounds=2), [], []

    def part(name, value):
        def take():
            order.append(name)
            files.append(json.loads(made.out.read_text())["raw"] if made.out.exists() else None)
            return {"seconds": value * len(order)}

        return take

    made.alternate({"A": part("A", 1.0), "B": part("B", 10.0)})
    assert order == ["A", "B", "A", "B"]
    assert made.raw == {"A": {"seconds": [1.0, 3.0]}, "B": {"seconds": [20.0, 40.0]}}
    assert files == [None, None, *[{"A": {"seconds": [1.0]}, "B": {"seconds": [20.0]}}] * 2]


def test_a_result_has_what_a_number_needs(bench, capsys):
    made = bench(rounds=3)
    values = iter([1.0, 2.0, 4.0])
    made.alternate(
        {"A": lambda: {"seconds": next(values)}, "B": lambda: {"seconds": 2.0, "other": float("inf")}}
    )
    made.compare("A", "B", "seconds", "other")  # A has no other: there is no such ratio
    made.compare("A", "absent", "seconds")
    made.save(complete=True)
    result = json.loads(made.out.read_text())
    assert result["complete"] is True
    assert result["rounds"] == 3
    assert result["medians"] == {"A": {"seconds": 2.0}, "B": {"seconds": 2.0, "other": "inf"}}
    expected = {"median": 1.0, "min": 0.5, "max": 2.0, "rounds": 3}
    assert result["ratios"] == [{"of": "A", "to": "B", "metric": "seconds"} | expected]
    assert {"processor", "cores", "threads", "memory_bytes", "gpu"} <= result["machine"].keys()
    assert {"python", "torch", "ours", "peer"} <= result["versions"].keys()
    assert {"date", "what", "settings", "notes"} <= result.keys()
    made.show([("seconds", "seconds", 1), ("other", "in thousands", 1000)])
    shown = capsys.readouterr().out
    assert "2 (1-4)" in shown
    assert "0.500-2.000" in shown


def test_what_was_measured_outlives_a_failure(bench):
    made, calls = bench(rounds=2), []

    def take():
        calls.append(1)
        if len(calls) == 2:
            raise BenchError("it broke")
        return {"seconds": 1.0}

    with pytest.raises(BenchError, match="A: it broke"):
        made.alternate({"A": take})
    result = json.loads(made.out.read_text())
    assert result["raw"] == {"A": {"seconds": [1.0]}}
    assert result["complete"] is False


def test_a_file_that_cannot_be_written_is_one_line(bench, tmp_path):
    made = bench()
    (tmp_path / "a-file").write_text("")
    made.out = tmp_path / "a-file" / "result.json"
    with pytest.raises(BenchError, match="--out: "):
        made.save(complete=True)
