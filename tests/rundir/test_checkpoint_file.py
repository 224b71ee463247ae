"""Saved tensors are restored bit for bit, and a damaged file is never accepted as a checkpoint."""

import errno
import hashlib
import os
import re
import resource

import pytest
import torch
from torch import nn

from model.batchnorms import BatchNorm
from rundir import checkpoint_file
from system.errors import CheckpointError, ConfigError, NoCheckpointError
from tests.helpers.configs import meta
from training import state


class Small(nn.Module):
    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.norm = BatchNorm(width)
        self.map = nn.Linear(width, 2)


def write(folder, step=1, best=None, model=None):
    model = model or Small()
    tensors = state.model_tensors(model)
    return checkpoint_file.save(folder, meta(step), tensors, best)


def test_parameters_buffers_optimizer_and_metadata_come_back_bit_for_bit(tmp_path):
    model = Small()
    optimizer = torch.optim.AdamW(model.parameters())
    model.map(model.norm(torch.randn(4, 5, 3))).sum().backward()
    optimizer.step()
    tensors = state.model_tensors(model) | state.optimizer_state(model, [optimizer])[0]
    loaded = checkpoint_file.load(checkpoint_file.save(tmp_path, meta(7), tensors, None))
    assert loaded.meta == meta(7)
    assert loaded.tensors.keys() == tensors.keys()
    assert {"norm.num_batches_tracked", "optimizer/map.weight/exp_avg_sq"} <= tensors.keys()
    assert all(torch.equal(value, tensors[name]) for name, value in loaded.tensors.items())
    other = Small()
    state.restore_model(other, loaded)
    for name, value in state.model_tensors(model).items():
        assert torch.equal(value, state.model_tensors(other)[name])


def test_a_flipped_bit_anywhere_is_noticed(tmp_path, record_property):
    path = write(tmp_path)
    whole = path.read_bytes()
    assert len(whole) < 4000
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(CheckpointError, match=path.name):
            checkpoint_file.load(path)
    record_property("R3 bytes with a flipped bit, all noticed", len(whole))
    path.write_bytes(whole)
    checkpoint_file.load(path)


def test_a_file_cut_anywhere_or_with_something_after_it_is_noticed(tmp_path, record_property):
    path = write(tmp_path)
    whole = path.read_bytes()
    for damaged in [*(whole[:length] for length in range(len(whole))), whole + b"\0"]:
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=path.name):
            checkpoint_file.load(path)
    record_property("R3 lengths that a file was cut to, all noticed", len(whole))


@pytest.mark.parametrize(
    ("place", "key"),
    [("{", '"map.bias":0,'), ('"normgpt":"{', r"\"step\":0,"), (r"\"config\": {", r"\"seed\":9,")],
)
def test_a_key_that_occurs_twice_makes_a_file_unusable(tmp_path, place, key):
    """Programs differ in which of two values they take. The digest of the file is right."""
    path = write(tmp_path)
    content = path.read_bytes()[8:].replace(place.encode(), (place + key).encode(), 1)
    sha256 = re.search(rb'"sha256":"([0-9a-f]{64})', content)
    length = (int.from_bytes(path.read_bytes()[:8], "little") + len(key)).to_bytes(8, "little")
    blank = length + content[: sha256.start(1)] + b"0" * 64 + content[sha256.end(1) :]
    path.write_bytes(blank.replace(b"0" * 64, hashlib.sha256(blank).hexdigest().encode(), 1))
    with pytest.raises(CheckpointError, match="damaged"):
        checkpoint_file.load(path)


def test_an_error_of_the_system_sets_no_checkpoint_aside(tmp_path, monkeypatch):
    files = [write(tmp_path, step) for step in (1, 2)]

    def too_many_open_files(path):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    monkeypatch.setattr(checkpoint_file, "digest", too_many_open_files)
    with pytest.raises(ConfigError, match=f"{files[1].name}: Too many open files"):
        checkpoint_file.newest(tmp_path, "a-run")
    assert all(file.exists() for file in files)


def test_a_checkpoint_that_is_removed_meanwhile_is_left_out(tmp_path, monkeypatch):
    files = [write(tmp_path, step) for step in (1, 2)]
    load = checkpoint_file.load

    def load_and_lose(path):
        if path == files[1]:
            path.unlink()
        return load(path)

    monkeypatch.setattr(checkpoint_file, "load", load_and_lose)
    assert checkpoint_file.newest(tmp_path, meta(1).run).meta.step == 1


def test_a_file_that_is_not_a_checkpoint_is_reported(tmp_path):
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(2)}, tmp_path / "foreign.safetensors")
    (tmp_path / "header.safetensors").write_bytes(b"\xff" * 100)
    for name, message in (("foreign", "not a checkpoint"), ("header", "damaged"), ("nope", "no such")):
        with pytest.raises(CheckpointError, match=message):
            checkpoint_file.load(tmp_path / f"{name}.safetensors")


def test_the_newest_two_and_the_best_are_kept(tmp_path):
    for step in (10, 20, 30, 40, 100):
        write(tmp_path, step, best=20)
    assert checkpoint_file.saved_steps(tmp_path) == [20, 40, 100]
    assert not [*tmp_path.glob(".*")]


def test_a_failed_save_leaves_the_older_checkpoints_and_no_partial_file(tmp_path):
    write(tmp_path, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # bytes per file: acts like a full disk
    try:
        with pytest.raises(
            CheckpointError, match=r"step-00000002.* \(.*too large .*; \d+ bytes are needed, "
        ):
            write(tmp_path, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-00000001.safetensors"]
    checkpoint_file.load(checkpoint_file.path_of(tmp_path, 1))


def test_a_checkpoint_has_the_permissions_that_the_umask_allows(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "plain").write_text("")
    path = write(tmp_path / "checkpoints")
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("map.bias"), "tensor map.bias is missing"),
        (
            lambda tensors: tensors.update(extra=torch.zeros(1)),
            "tensor extra is .*, but the model has no such tensor",
        ),
        (
            lambda tensors: tensors.update({"map.bias": torch.zeros(9)}),
            r"map.bias is torch.float32 of shape \(9,\), but the model has torch.float32 of shape \(2,\)",
        ),
        (lambda tensors: tensors.update({"map.bias": torch.zeros(2).half()}), "map.bias is torch.float16"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused_by_the_tensors_name(tmp_path, change, message):
    loaded = checkpoint_file.load(write(tmp_path))
    change(loaded.tensors)
    with pytest.raises(CheckpointError, match=message):
        state.restore_model(Small(), loaded)


OTHER = {"format": checkpoint_file.FORMAT, "step": 1, "config": {}, "tokenizer": {}, "fingerprint": "f"}


@pytest.mark.parametrize(
    "said", [[1], {}, None, OTHER | {"step": "abc"}, OTHER | {"format": 1}, OTHER | {"config": {"seed": 0}}]
)
def test_metadata_that_is_not_ours_is_refused_by_the_files_name(tmp_path, monkeypatch, said):
    path = write(tmp_path)
    monkeypatch.setattr(checkpoint_file.Meta, "model_dump", lambda self, **_: said)
    write(tmp_path)  # the SHA-256 is valid, the metadata is not
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match=path.name):
        checkpoint_file.load(path)


def test_a_checkpoint_beyond_the_runs_last_step_is_passed_over(tmp_path, capsys):
    one, beyond = write(tmp_path), checkpoint_file.path_of(tmp_path, 10**9)
    not_checked = meta(1).model_copy(update={"step": 10**9})
    checkpoint_file.write(beyond, not_checked, state.model_tensors(Small()))
    with pytest.raises(CheckpointError, match=r"step: 1000000000 is beyond the last one, \d+; use "):
        checkpoint_file.load(beyond)
    assert checkpoint_file.newest(tmp_path, "r").path == one
    assert "step: 1000000000 is beyond the last one" in capsys.readouterr().err


def test_a_checkpoint_with_keys_of_an_earlier_version_is_read():
    plain = meta(1).model_dump(by_alias=True)
    earlier = plain["config"] | {"tuned": ["model.init"], "settings_of": None}
    assert checkpoint_file.Meta.model_validate(plain | {"config": earlier}) == meta(1)


def test_a_file_that_is_replaced_while_it_is_read_is_no_checkpoint(tmp_path, monkeypatch):
    path, other = write(tmp_path), write(tmp_path, 2)
    digest = checkpoint_file.digest

    def replaced_after(file):
        answer = digest(file)
        other.replace(path)
        return answer

    monkeypatch.setattr(checkpoint_file, "digest", replaced_after)
    with pytest.raises(NoCheckpointError):
        checkpoint_file.load(path)


def test_weights_that_are_not_finite_are_not_restored(tmp_path):
    model = Small()
    with torch.no_grad():
        model.map.bias[0] = torch.nan
    with pytest.raises(CheckpointError, match="map.bias is not finite"):
        state.restore_model(Small(), checkpoint_file.load(write(tmp_path, model=model)))


def test_the_newest_of_this_run_is_found_and_anothers_is_not(tmp_path):
    assert checkpoint_file.newest(tmp_path, "r") is None
    for step in (1, 2):
        write(tmp_path, step)
    assert checkpoint_file.newest(tmp_path, "r").meta.step == 2
    with pytest.raises(
        CheckpointError, match=r"step-00000002.safetensors: of another run or step, and no older"
    ):
        checkpoint_file.newest(tmp_path, "another")
    assert checkpoint_file.saved_steps(tmp_path) == [1, 2]
    one, two = (checkpoint_file.path_of(tmp_path, step) for step in (1, 2))
    two.write_bytes(one.read_bytes())
    assert checkpoint_file.newest(tmp_path, "r").path == one


def test_other_names_and_folders_are_left_alone(tmp_path):
    (tmp_path / "step-00000009.safetensors").mkdir()
    (tmp_path / "step-7.safetensors").write_text("mine")
    for step in (1, 2, 3):
        write(tmp_path, step)
    assert checkpoint_file.saved_steps(tmp_path) == [2, 3]
    assert checkpoint_file.newest(tmp_path, "r").meta.step == 3
    assert (tmp_path / "step-7.safetensors").read_text() == "mine"


def test_a_file_that_cannot_be_removed_is_reported_and_the_save_succeeds(tmp_path, monkeypatch, capsys):
    def refuse(self, missing_ok=False):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(type(tmp_path), "unlink", refuse)
    for step in (1, 2, 3):
        write(tmp_path, step)
    assert checkpoint_file.saved_steps(tmp_path) == [1, 2, 3]
    assert "step-00000001.safetensors: cannot be removed (Permission denied)" in capsys.readouterr().err


def test_a_checkpoint_that_memory_is_missing_for_now_is_not_set_aside(tmp_path, monkeypatch):
    for step in (1, 2):
        write(tmp_path, step)

    def no_memory(*_, **__):
        raise RuntimeError("unable to mmap 42 bytes from file: Cannot allocate memory (12)")

    monkeypatch.setattr("safetensors.safe_open", no_memory)
    with pytest.raises(ConfigError, match="Cannot allocate memory"):
        checkpoint_file.newest(tmp_path, "run")
    assert not [*tmp_path.glob("*.unusable*")]
