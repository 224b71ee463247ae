"""Variants are measured in turn, and a result holds all that is needed to interpret its numbers."""

import json

import pytest

from bench.child import BenchError


def test_variants_take_turns_and_whole_rounds_outlive_a_failure(bench):
    made, order = bench(rounds=2), []

    def variant(name):
        def take():
            order.append(name)
            if len(order) == 4:
                raise BenchError("it broke")
            return {"seconds": len(order)}

        return take

    with pytest.raises(BenchError, match="B: it broke"):
        made.alternate({"A": variant("A"), "B": variant("B")})
    assert order == ["A", "B", "A", "B"]
    result = json.loads(made.out.read_text())
    assert result["raw"] == {"A": {"seconds": [1.0]}, "B": {"seconds": [2.0]}}
    assert result["complete"] is False


def test_a_ratio_is_the_median_of_the_ratios_of_the_rounds(bench):
    made, values = bench(rounds=3), iter([2.0, 9.0, 4.0])
    bases = iter([1.0, 3.0, 1.0])
    made.alternate({"A": lambda: {"s": next(values)}, "B": lambda: {"s": next(bases), "other": 1.0}})
    made.compare("A", "B", "s", "other")  # A has no other
    made.compare("A", "absent", "s")
    expected = {"of": "A", "to": "B", "metric": "s", "median": 3.0, "min": 2.0, "max": 4.0, "rounds": 3}
    assert made.ratios() == [expected]


def test_a_result_holds_raw_values_medians_machine_and_versions(bench, tmp_path):
    made, values = bench(rounds=3), iter([1.0, 2.0, 4.0])
    made.alternate({"A": lambda: {"seconds": next(values)}})
    made.note("once")
    made.note("once")
    made.save(complete=True)
    result = json.loads(made.out.read_text())
    assert result["raw"] == {"A": {"seconds": [1.0, 2.0, 4.0]}}
    assert result["medians"] == {"A": {"seconds": 2.0}}
    assert (result["complete"], result["rounds"], result["notes"]) == (True, 3, ["once"])
    assert {"processor", "family_model", "cores", "threads", "memory_bytes", "gpu"} <= result[
        "machine"
    ].keys()
    assert {"python", "torch", "ours", "peer"} <= result["versions"].keys()
    assert str(tmp_path) not in made.out.read_text()


def test_a_file_that_cannot_be_written_is_one_line(bench, tmp_path):
    made = bench()
    made.out = tmp_path / "missing" / "result.json"
    with pytest.raises(BenchError, match=r"--out: .*; name another file"):
        made.save(complete=True)
