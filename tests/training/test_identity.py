"""A run's folder is named by what determines its result, and by nothing else."""

from pathlib import Path

import pytest

from data.prepared import prepare
from training import identity
from training.identity import parsed, source

CHANGING = """
    norm=none placement=post norm.eps=1e-6 model.n_layer=3 model.dropout=0.1 seed=1 optim.learning_rate=1e-3
    schedule=linear train.steps=7 train.batch_size=8 train.grad_accum=2 train.grad_clip=0 precision=bf16
    data.val_fraction=0.2 model.block_size=4 data.tokenizer=bpe
""".split()
NOT_CHANGING = """
    device=auto compile=true fresh=true train.threads=2 train.eval_every=3 train.eval_windows=9
    train.log_every=7 train.checkpoint_every=3 wandb.mode=offline stats.every=0
""".split()


def folder_of(config) -> Path:
    return identity.folder_of(config, config.precision, prepare(**config.data.model_dump()).fingerprint)


@pytest.mark.slow
def test_a_setting_that_changes_the_result_gives_another_folder(tiny):
    folders = {folder_of(tiny()), *(folder_of(tiny(override)) for override in CHANGING)}
    assert len(folders) == 1 + len(CHANGING)


def test_a_setting_that_does_not_change_the_result_gives_the_same_folder(tiny):
    assert {folder_of(tiny(override)) for override in NOT_CHANGING} == {folder_of(tiny())}


def test_an_edited_norm_is_a_new_run_and_an_edited_comment_is_not(tiny, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    code = "from torch import nn\n\n\nclass Mine(nn.LayerNorm):\n    '''A norm.'''\n    factor = 1\n"
    folders = []
    for edited in (code, code.replace("A norm", "My norm"), code.replace("factor = 1", "factor = 2")):
        (tmp_path / "mine.py").write_text(edited)
        source.cache_clear()  # as in another process
        parsed.cache_clear()
        config = tiny("norm=torch_layernorm", "norm._target_=mine.Mine")
        folders.append(identity.folder_of(config, "fp32", "f"))
    assert folders[0] == folders[1] != folders[2]
