"""The record of a run's machine tells processors apart."""

import pytest

from rundir import environment


@pytest.mark.parametrize("numbers", [("25", "1"), ("25", "17"), (None, None)])
def test_processors_of_one_name_are_told_apart_by_family_and_model(monkeypatch, numbers):
    values = dict(zip(("cpu family", "model"), numbers, strict=True)) | {"model name": "AMD EPYC"}
    monkeypatch.setattr(environment, "cpuinfo", values.get)
    assert environment.processor_generation().split() == ["AMD", "EPYC", *filter(None, numbers)]
