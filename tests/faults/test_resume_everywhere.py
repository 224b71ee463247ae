"""R4: a run resumed from any step ends with the same bits, whatever its norm and placement."""

import shutil

import pytest

from rundir import checkpoint_file
from tests.helpers.runs import (
    final_tensors,
    rows_without_clocks,
    same_tensors,
    train_or_resume,
    with_runs_dir,
)

CARD = [(norm, p) for norm in ("layernorm", "torch_layernorm", "batchnorm", "none") for p in ("pre", "post")]
BUFFERS = ("torch_batchnorm", "batchnorm_running", "batchnorm_position", "powernorm")  # they have some
STEPS = 30


@pytest.mark.faults
@pytest.mark.parametrize(("norm", "placement"), [*CARD, *((norm, "pre") for norm in BUFFERS)])
def test_resuming_from_every_step(tiny, tmp_path, monkeypatch, norm, placement, record_property):
    options = ("model.dropout=0.1", f"train.steps={STEPS}", "train.checkpoint_every=1", "train.eval_every=7")
    config = tiny(f"norm={norm}", f"placement={placement}", *options)
    monkeypatch.setattr(checkpoint_file, "KEEP", STEPS + 1)
    uninterrupted = train_or_resume(config)
    monkeypatch.undo()
    same_bits = 0
    for step in range(1, STEPS):
        copy = tmp_path / f"from{step}" / uninterrupted.name
        shutil.copytree(uninterrupted, copy)
        (copy / "status.json").unlink()
        for later in range(step + 1, STEPS + 1):
            checkpoint_file.path_of(copy / "checkpoints", later).unlink()
        assert train_or_resume(with_runs_dir(config, copy.parent)) == copy
        same_rows = rows_without_clocks(copy) == rows_without_clocks(uninterrupted)
        same_bits += same_rows and same_tensors(final_tensors(copy), final_tensors(uninterrupted))
    record_property(f"R4 steps resumed from, same bits: {norm} {placement}", f"{same_bits} of {STEPS - 1}")
    assert same_bits == STEPS - 1
