"""Untrusted files that would run code, take all memory, or write where they should not. Each is made from a
good run's checkpoint, and comes with the program and arguments that open it."""

import json
import os
import pickle
import shutil
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

from data.tokenizers import BytePairTokenizer
from interop import gpt2_layout, tokenizer_json
from rundir import checkpoint_file
from scripts import gpt2_writer
from tests.conftest import TINY

Make = Callable[[Path, Path], Sequence[str]]  # the good checkpoint, an empty folder -> program and arguments
Json = dict[str, Any]
DEEP = "[" * 100_000 + "]" * 100_000
HUGE_HEADER = struct.pack("<Q", 2**63) + b"{}"
ESCAPE = "\x1b]0;owned\x07\x1b[31m"
SAMPLE = ("sample.py", "max_new_tokens=5", "device=cpu")
SAMPLE_GPT2 = (*SAMPLE, "init_from=gpt2")


class Payload:
    """Make a file when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch owned",)


PICKLE = pickle.dumps(Payload())


# files in a folder ----------------------------------------------------------------------------------------


def content(name: str, content: str | bytes) -> Callable[[Path], Any]:
    data = content if isinstance(content, bytes) else content.encode()
    return lambda folder: (folder / name).write_bytes(data)


def pipe(name: str) -> Callable[[Path], Any]:
    return lambda folder: ((folder / name).unlink(missing_ok=True), os.mkfifo(folder / name))


def endless(name: str) -> Callable[[Path], Any]:
    return lambda folder: ((folder / name).unlink(missing_ok=True), (folder / name).symlink_to("/dev/zero"))


# checkpoints in our format --------------------------------------------------------------------------------


def sampled(write: Callable[[Path, Path], Any]) -> Make:
    """Sample from bad.safetensors, which ``write`` makes from a good checkpoint in an empty folder."""

    def make(good: Path, folder: Path) -> Sequence[str]:
        write(good, folder)
        return *SAMPLE, "checkpoint=bad.safetensors"

    return make


def raw(data: bytes) -> Make:
    return sampled(lambda good, folder: content("bad.safetensors", data)(folder))


def sealed(path: Path, content: bytes) -> None:
    """Write a checkpoint with the right digest."""
    path.write_bytes(content)
    offset, _, computed = checkpoint_file.digest(path)
    path.write_bytes(content[:offset] + computed.encode() + content[offset + 64 :])


def sealed_tensors(path: Path, tensors: dict[str, torch.Tensor], metadata: str) -> None:
    sealed(path, safetensors.torch.save(tensors, {"normgpt": metadata, "sha256": checkpoint_file.BLANK}))


def header(tensors: str, data: bytes = b"") -> Make:
    """A safetensors file with these ``tensors`` in its header and the right digest."""
    about = json.dumps({"normgpt": "{}", "sha256": checkpoint_file.BLANK}, separators=(",", ":"))
    text = f'{{"__metadata__":{about},{tensors}}}'.encode()
    file = struct.pack("<Q", len(text)) + text + data
    return sampled(lambda good, folder: sealed(folder / "bad.safetensors", file))


def metadata(text: str) -> Make:
    tensors = {"a": torch.zeros(2)}
    return sampled(lambda good, folder: sealed_tensors(folder / "bad.safetensors", tensors, text))


def meta(change: Callable[[Json], Any]) -> Make:
    """A checkpoint with changed metadata and the right digest."""

    def write(good: Path, folder: Path) -> None:
        loaded = checkpoint_file.load(good)
        described = loaded.meta.model_dump(by_alias=True)
        change(described)
        sealed_tensors(folder / "bad.safetensors", dict(loaded.tensors), json.dumps(described))

    return sampled(write)


def target(name: str, group: str = "norm", **options: Any) -> Make:
    return meta(lambda meta: meta["config"][group].update({"_target_": name} | options))


def sizes(**changed: Any) -> Make:
    return meta(lambda meta: meta["config"]["model"].update(changed))


def tokenizer(**spec: Any) -> Make:
    return meta(lambda meta: meta.update(tokenizer=spec))


def sparse(good: Path, folder: Path) -> None:
    """Append terabytes of zeros, in a sparse file, to a good checkpoint."""
    shutil.copy(good, folder / "bad.safetensors")
    os.truncate(folder / "bad.safetensors", 2**42)


def many_patterns(meta: Json) -> None:
    meta["config"]["model"].update(n_layer=9999)
    meta["config"]["stats"].update(metrics=["act.rms/9998.mlp"] * 100_000)


def optimizer(change: Callable[[Json, dict[str, torch.Tensor]], Any]) -> Make:
    """A checkpoint from which training resumes, with a changed optimizer state."""

    def make(good: Path, folder: Path) -> Sequence[str]:
        run = good.parents[1]
        shutil.copytree(run.parents[1], folder, dirs_exist_ok=True)
        loaded = checkpoint_file.load(good)
        described, tensors = loaded.meta.model_dump(by_alias=True), dict(loaded.tensors)
        change(described["optimizer"], tensors)
        checkpoints = folder / "runs" / run.name / "checkpoints"
        for checkpoint in checkpoints.iterdir():
            checkpoint.unlink()
        sealed_tensors(checkpoints / good.name, tensors, json.dumps(described))
        (checkpoints.parent / "status.json").unlink()
        return "train.py", "data=text", "data.path=text.txt", "data.cache=cache", *TINY

    return make


def without_optimizer(state: Json, tensors: dict[str, torch.Tensor]) -> None:
    """Remove the optimizer's state, as exported weights have none."""
    state.clear()
    for name in [name for name in tensors if name.startswith("optimizer")]:
        del tensors[name]


def moments(change: Callable[[torch.Tensor], torch.Tensor]) -> Make:
    return optimizer(
        lambda _, tensors: tensors.update(
            {name: change(t) for name, t in tensors.items() if name.endswith("exp_avg")}
        )
    )


# prepared tokens ------------------------------------------------------------------------------------------


def prepared(change: Callable[[Path], Any]) -> Make:
    def make(good: Path, folder: Path) -> Sequence[str]:
        bins = folder / "bins"
        bins.mkdir()
        for split in ("train", "val"):
            np.array([0, 1, 2] * 50, np.uint16).tofile(bins / f"{split}.bin")
        described = {"dtype": "uint16", "tokenizer": {"kind": "char", "chars": "abc"}}
        (bins / "meta.json").write_text(json.dumps(described))
        change(bins)
        arguments = ("data=prepared", "data.path=bins", "data.cache=cache", "device=cpu", "train.steps=0")
        return "train.py", *arguments

    return make


def pickled_meta(bins: Path) -> None:
    (bins / "meta.json").unlink()
    (bins / "meta.pkl").write_bytes(PICKLE)


def pickled_tokens(bins: Path) -> None:
    np.save(bins / "train.npy", np.array([Payload()], dtype=object), allow_pickle=True)
    (bins / "train.npy").rename(bins / "train.bin")


# folders in Hugging Face's layout -------------------------------------------------------------------------


def gpt2(change: Callable[[Path], Any]) -> Make:
    """A folder with an ordinary GPT-2, changed by ``change``."""

    def make(good: Path, folder: Path) -> Sequence[str]:
        model, loaded = folder / "gpt2", checkpoint_file.load(good)
        model.mkdir()
        config = gpt2_writer.gpt2_config(loaded.meta.config, len(loaded.meta.tokenizer["chars"]), None)
        tensors = gpt2_writer.gpt2_tensors(loaded.tensors, gpt2_layout.GPT2.model_validate(config))
        (model / "config.json").write_text(json.dumps(config))
        (model / "tokenizer.json").write_text(
            json.dumps(tokenizer_json.to_tokenizer_json(loaded.meta.tokenizer))
        )
        (model / "model.safetensors").write_bytes(safetensors.torch.save(tensors))
        change(model)
        return SAMPLE_GPT2

    return make


def update_config(model: Path, **options: Any) -> None:
    file = model / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | options))


def gpt2_config(**options: Any) -> Make:
    return gpt2(lambda model: update_config(model, **options))


def gpt2_bpe(change: Callable[[Json], Any]) -> Make:
    """A folder whose tokenizer.json is a byte pair encoding, changed by ``change``."""

    def write(model: Path) -> None:
        spec = BytePairTokenizer("gpt2", [*(bytes([byte]) for byte in range(256)), b"th"]).spec
        described = tokenizer_json.to_tokenizer_json(spec)
        weights = safetensors.torch.load_file(model / "model.safetensors")
        weights["transformer.wte.weight"] = weights["transformer.wte.weight"][:1].repeat(257, 1)
        (model / "model.safetensors").write_bytes(safetensors.torch.save(weights))
        update_config(model, vocab_size=257)
        change(described)
        (model / "tokenizer.json").write_text(json.dumps(described))

    return gpt2(write)


def remote_code(model: Path) -> None:
    """Add code that transformers would run with trust_remote_code."""
    (model / "modeling_evil.py").write_text('import os\nos.system("touch owned")\n')
    update_config(model, auto_map={"AutoModelForCausalLM": "modeling_evil.Evil"})


def gpt2_weights(name: str, data: bytes) -> Make:
    """A folder with the file ``name`` in place of its weights."""
    return gpt2(lambda model: ((model / "model.safetensors").unlink(), content(name, data)(model)))


def long_tokens(tokenizer: Json) -> None:
    """Change the vocabulary to one whose merges would take hours to find."""
    long = {"a" * n: 256 + n for n in range(2, 5000)}
    tokenizer["model"]["vocab"] = {tokenizer_json.spell(bytes([i])): i for i in range(256)} | long
    tokenizer["model"]["merges"] = [f"{'a' * (n - 1)} a" for n in range(2, 5000)]


def one_tensor(shape: str, end: str) -> str:
    return f'"a":{{"dtype":"F32","shape":[{shape}],"data_offsets":[0,{end}]}}'


OVERLAPPING = f'{one_tensor("2", "8")},"b":{{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}'
TARGETS = (
    *("os.system", "builtins.eval", "antigravity.Norm", "evil.Norm", "model.norms.torch.os.system"),
    *("torch.nn.modules.module.Module", "torch.nn.utils.parametrize.torch.load", "torch.nn.LazyBatchNorm1d"),
)
SIZES: tuple[Json, ...] = (
    *({"n_layer": 2**40}, {"n_layer": 10_000}, {"n_embd": 2**40, "n_head": 1}, {"block_size": 2**40}),
    # only learned positions have weights that bound the context
    *({"positions": "rotary", "block_size": 2**40}, {"positions": "none", "block_size": 2**40}),
)
GPT2_SIZES: tuple[Json, ...] = (
    *({"n_layer": 10_000}, {"n_embd": 2**40}, {"vocab_size": 2**70}, {"vocab_size": 26}),
    *({"n_positions": 2**40}, {"n_layer": "2; import os"}, {"layer_norm_epsilon": -1.0}),
    *({"activation_function": "os.system('touch owned')"}, {"activation_function": ESCAPE}),
)
GPT2_FILES: dict[str, str | bytes] = {
    "config.json that is deep": DEEP,
    "config.json with a huge number": '{"n_layer": ' + "9" * 5000 + "}",
    "config.json that is a list": "[]",
    "config.json of 64 MB": " " * 2**26,
    "tokenizer.json that is deep": DEEP,
    "tokenizer.json of 99 MB": '{"model": "' + "x" * 99_000_000 + '"}',
    "tokenizer.json of 64 MB of tables": "[" + "{}," * 2**24 + "{}]",
    "model.safetensors that is a pickle": PICKLE,
    "model.safetensors with a header of 2^63 bytes": HUGE_HEADER,
}
ARTEFACTS: dict[str, Make] = {
    "a pickle": raw(PICKLE),
    "torch.save's file": sampled(lambda _, folder: torch.save({"a": Payload()}, folder / "bad.safetensors")),
    "nothing": raw(b""),
    "a header of 2^63 bytes": raw(HUGE_HEADER),
    "a header of 99 MB": raw(struct.pack("<Q", 99_000_000) + b" " * 99_000_000),
    "a header that is deep": header('"a":' + DEEP),
    "tensors that overlap": header(OVERLAPPING, bytes(12)),
    "a tensor beyond the file": header(one_tensor("99", "396"), bytes(4)),
    "a tensor of 2^60 numbers": header(one_tensor(str(2**60), "4"), bytes(4)),
    "an offset that is infinite": header(one_tensor("1", "1e999"), bytes(4)),
    "a file of 4 TB": sampled(sparse),
    "a file without an end": sampled(lambda _, folder: endless("bad.safetensors")(folder)),
    "a pipe that nobody writes to": sampled(lambda _, folder: pipe("bad.safetensors")(folder)),
    "metadata that is deep": metadata(DEEP),
    "metadata that is no table": metadata('"text"'),
    "metadata with a huge number": metadata('{"format": 1e999999, "step": ' + "9" * 5000 + "}"),
    **{f"a norm that is {name}": target(name) for name in TARGETS},
    "a norm of subprocess": target("subprocess.Popen", args=["touch", "owned"]),
    "a placement that is a norm": target("model.norms.LayerNorm", "placement"),
    "an interpolation": target("model.norms.LayerNorm", eps="${oc.env:SMALL}"),
    "a norm on a device": target("torch.nn.LayerNorm", device="cpu"),
    "a norm of ours on a device": target("model.norms.LayerNorm", device="meta"),
    "a placement of other options": target("model.placements.Mix", "placement", fraction=5),
    "a placement of types": target("model.placements.Residual", "placement", slots={}),
    "many patterns in a deep model": meta(many_patterns),
    "a config of a million errors": meta(lambda meta: meta["config"].update(tuned=[1] * 10**6)),
    "a million keys": meta(lambda meta: meta.update({str(key): 0 for key in range(10**6)})),
    "a norm that is a large matrix": target("torch.nn.Linear", out_features=2**34),
    "a norm of many layers": target("torch.nn.Transformer", num_encoder_layers=10**9),
    "a norm with large buffers": target("model.batchnorms.PositionBatchNorm", max_steps=2**34),
    **{f"a model of {changed}": sizes(**changed) for changed in SIZES},
    "another version's format": meta(lambda meta: meta.update(format=99)),
    "a tokenizer of an unknown kind": tokenizer(kind="os.system", chars="abc"),
    "a tokenizer with other keys": tokenizer(kind="char", chars="abc", __class__="x"),
    "a pattern that never ends": tokenizer(kind="bpe", pattern="(a+)+$", tokens="YQ==", special=[]),
    "a tokenizer larger than the model": tokenizer(kind="char", chars="".join(map(chr, range(50, 50_000)))),
    "a name that steers the terminal": meta(lambda meta: meta["config"]["norm"].update({"_name_": ESCAPE})),
    "an optimizer that is no table": meta(lambda meta: meta.update(optimizer=[1, 2])),
    "nanoGPT's pickle": prepared(pickled_meta),
    "tokens that are a pickle": prepared(pickled_tokens),
    "a dtype of objects": prepared(
        content("meta.json", '{"dtype": "object", "tokenizer": {"kind": "char", "chars": "abc"}}')
    ),
    "a meta.json that is a list": prepared(content("meta.json", "[]")),
    "a meta.json that is deep": prepared(content("meta.json", DEEP)),
    "tokens that are a pipe": prepared(pipe("train.bin")),
    "code that comes with a model": gpt2(remote_code),
    "weights that are a pickle": gpt2_weights("pytorch_model.bin", PICKLE),
    "nanoGPT's checkpoint": gpt2_weights("ckpt.pt", PICKLE),
    "a part whose name is a path": gpt2_weights(
        "model-00001-of-00002.safetensors", b"\x02" + bytes(7) + b"{}"
    ),
    "weights without an end": gpt2(endless("model.safetensors")),
    "weights of 4 TB": gpt2(lambda model: os.truncate(model / "model.safetensors", 2**42)),
    **{f"a GPT-2 of {options}": gpt2_config(**options) for options in GPT2_SIZES},
    **{f"a {name}": gpt2(content(name.split()[0], data)) for name, data in GPT2_FILES.items()},
    **{f"a {name} that is a pipe": gpt2(pipe(name)) for name in ("config.json", "tokenizer.json")},
    "a tokenizer.json whose expression never ends": gpt2_bpe(
        lambda tokenizer: tokenizer.update(pre_tokenizer=tokenizer_json.split("(a+)+$"))
    ),
    "a tokenizer.json with ids of 2^70": gpt2_bpe(lambda spec: spec["model"]["vocab"].update(th=2**70)),
    "a tokenizer.json whose tokens are long": gpt2_bpe(long_tokens),
    "weights alone in a run": optimizer(without_optimizer),
    "moments of another shape": moments(lambda tensor: tensor[:1]),
    "moments of one number": moments(torch.sum),
    "moments that are text": optimizer(lambda state, _: next(iter(state.values())).update(exp_avg="x")),
    "no moments of a parameter": optimizer(lambda state, _: next(iter(state.values())).pop("exp_avg_sq")),
    "moments that are deep": optimizer(lambda state, _: state.update(x=json.loads("[" * 500 + "]" * 500))),
}
