"""What a stranger may give: files that would run code, take all memory, or write where they should not. Each
function makes one from a good run's checkpoint and returns the program's arguments for it."""

import json
import os
import pickle
import shutil
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from data.tokenizers import BytePairTokenizer
from interop import gpt2_layout, tokenizer_json
from rundir import checkpoint_file
from scripts import gpt2_writer
from system import files
from tests.conftest import TINY

Make = Callable[[Path, Path], Sequence[str]]  # the good checkpoint, an empty folder -> program and arguments
DEEP = "[" * 100_000 + "]" * 100_000
ESCAPE = "\x1b]0;owned\x07\x1b[31m"


class Payload:
    """Where it is unpickled, it makes a file."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch owned",)


def sampled(make: Callable[[Path, Path], None]) -> Make:
    def prepare(good: Path, folder: Path) -> Sequence[str]:
        make(good, folder / "bad.safetensors")
        return "sample.py", "checkpoint=bad.safetensors", "max_new_tokens=5", "device=cpu"

    return prepare


def raw(content: bytes) -> Make:
    return sampled(lambda good, bad: bad.write_bytes(content) and None)


def header(tensors: str, data: bytes = b"") -> Make:
    """A safetensors file with such tensors in its header, its digest right."""
    about = json.dumps({"normgpt": "{}", "sha256": checkpoint_file.BLANK}, separators=(",", ":"))
    text = f'{{"__metadata__":{about},{tensors}}}'.encode()
    content = struct.pack("<Q", len(text)) + text + data
    return sampled(lambda good, bad: sealed(bad, content))


def meta(change: Callable[[dict[str, Any]], Any]) -> Make:
    """A checkpoint that says something else of itself, its digest right."""

    def make(good: Path, bad: Path) -> None:
        import safetensors.torch

        found = checkpoint_file.load(good)
        said = found.meta.model_dump(by_alias=True)
        change(said)
        text = said if isinstance(said, str) else json.dumps(said)
        sealed(
            bad,
            safetensors.torch.save(dict(found.tensors), {"normgpt": text, "sha256": checkpoint_file.BLANK}),
        )

    return sampled(make)


def sealed(path: Path, content: bytes) -> None:
    """Written with the digest that it should have."""
    path.write_bytes(content)
    at = checkpoint_file.digest_offset(content[: files.header_length(path)])
    path.write_bytes(content[:at] + checkpoint_file.digest(path, at).encode() + content[at + 64 :])


def described(text: str) -> Make:
    """A checkpoint whose JSON is ``text``."""

    def make(good: Path, bad: Path) -> None:
        import safetensors.torch

        some = {"a": torch.zeros(2)}
        sealed(bad, safetensors.torch.save(some, {"normgpt": text, "sha256": checkpoint_file.BLANK}))

    return sampled(make)


def target(name: str, group: str = "norm", **options: Any) -> Make:
    return meta(lambda said: said["config"][group].update({"_target_": name} | options))


def sizes(**changed: int) -> Make:
    return meta(lambda said: said["config"]["model"].update(changed))


def without_positions(said: dict[str, Any]) -> None:
    """Rotary positions need no weights, so nothing in the file bounds the context."""
    said["config"]["model"].update(positions="rotary", block_size=2**40)


def tokenizer(**spec: Any) -> Make:
    return meta(lambda said: said.update(tokenizer=spec))


def sparse(good: Path, bad: Path) -> None:
    """Terabytes of nothing behind a good header."""
    bad.write_bytes(good.read_bytes())
    os.truncate(bad, 2**42)


def endless(good: Path, bad: Path) -> None:
    bad.symlink_to("/dev/zero")


def waiting(good: Path, bad: Path) -> None:
    os.mkfifo(bad)


def prepared(change: Callable[[Path], None]) -> Make:
    """A folder of tokens."""

    def make(good: Path, folder: Path) -> Sequence[str]:
        bins = folder / "bins"
        bins.mkdir()
        for split in ("train", "val"):
            np.array([0, 1, 2] * 50, np.uint16).tofile(bins / f"{split}.bin")
        (bins / "meta.json").write_text(
            json.dumps({"dtype": "uint16", "tokenizer": {"kind": "char", "chars": "abc"}})
        )
        change(bins)
        return (
            "train.py",
            "data=prepared",
            "data.path=bins",
            "data.cache=cache",
            "device=cpu",
            "train.steps=0",
        )

    return make


def a_gpt2(good: Path, folder: Path) -> Path:
    """A folder in Hugging Face's layout, of a checkpoint of an ordinary model."""
    import safetensors.torch

    theirs, found = folder / "theirs", checkpoint_file.load(good)
    theirs.mkdir()
    vocab_size = len(found.meta.tokenizer["chars"])
    said = gpt2_writer.gpt2_config(found.meta.config, vocab_size, None)
    tensors = gpt2_writer.gpt2_tensors(found.tensors, gpt2_layout.GPT2.model_validate(said))
    (theirs / "config.json").write_text(json.dumps(said))
    (theirs / "tokenizer.json").write_text(json.dumps(tokenizer_json.from_spec(found.meta.tokenizer)))
    (theirs / "model.safetensors").write_bytes(safetensors.torch.save(tensors))
    return theirs


SAMPLED = ("sample.py", "init_from=theirs", "max_new_tokens=5", "device=cpu")


def gpt2(change: Callable[[Path], Any]) -> Make:
    """Such a folder with something else in it."""

    def make(good: Path, folder: Path) -> Sequence[str]:
        change(a_gpt2(good, folder))
        return SAMPLED

    return make


def configured(**said: Any) -> Make:
    """One whose config.json says something else."""

    def change(theirs: Path) -> None:
        file = theirs / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | said))

    return gpt2(change)


def tokens(change: Callable[[dict[str, Any]], Any]) -> Make:
    """One whose tokenizer.json is a byte pair encoding, changed."""

    def make(theirs: Path) -> None:
        import safetensors.torch

        every_byte = [bytes([byte]) for byte in range(256)]
        said = tokenizer_json.from_spec(BytePairTokenizer("gpt2", [*every_byte, b"th"]).spec)
        weights = safetensors.torch.load_file(theirs / "model.safetensors")
        weights["transformer.wte.weight"] = weights["transformer.wte.weight"][:1].repeat(257, 1)
        (theirs / "model.safetensors").write_bytes(safetensors.torch.save(weights))
        config = json.loads((theirs / "config.json").read_text())
        (theirs / "config.json").write_text(json.dumps(config | {"vocab_size": 257}))
        change(said)
        (theirs / "tokenizer.json").write_text(json.dumps(said))

    return gpt2(make)


def own_code(theirs: Path) -> None:
    """As a model with trust_remote_code has it."""
    (theirs / "modeling_evil.py").write_text('import os\nos.system("touch owned")\n')
    said = json.loads((theirs / "config.json").read_text())
    said["auto_map"] = {"AutoModelForCausalLM": "modeling_evil.Evil"}
    (theirs / "config.json").write_text(json.dumps(said))


def only(name: str, content: bytes) -> Make:
    """One whose weights are such a file instead."""

    def change(theirs: Path) -> None:
        (theirs / "model.safetensors").unlink()
        (theirs / name).write_bytes(content)

    return gpt2(change)


def linked(theirs: Path) -> None:
    (theirs / "model.safetensors").unlink()
    (theirs / "model.safetensors").symlink_to("/dev/zero")


def piped(name: str) -> Make:
    def change(theirs: Path) -> None:
        (theirs / name).unlink()
        os.mkfifo(theirs / name)

    return gpt2(change)


def overwritten(name: str, text: str) -> Make:
    return gpt2(lambda theirs: (theirs / name).write_text(text))


def long_tokens(said: dict[str, Any]) -> None:
    """Whose merges would take hours to find."""
    words = {"a" * n: 256 + n for n in range(2, 5000)}
    said["model"]["vocab"] = {tokenizer_json.spelt(bytes([i])): i for i in range(256)} | words
    said["model"]["merges"] = [f"{'a' * (n - 1)} a" for n in range(2, 5000)]


def a_pickle(bins: Path) -> None:
    (bins / "meta.json").unlink()
    (bins / "meta.pkl").write_bytes(pickle.dumps(Payload()))


def a_meta(**said: Any) -> Callable[[Path], None]:
    return lambda bins: (bins / "meta.json").write_text(json.dumps(said)) and None


def a_pipe(bins: Path) -> None:
    (bins / "train.bin").unlink()
    os.mkfifo(bins / "train.bin")


def pickled_tokens(bins: Path) -> None:
    np.save(bins / "train.npy", np.array([Payload()], dtype=object), allow_pickle=True)
    (bins / "train.npy").rename(bins / "train.bin")


def moments(change: Callable[[dict[str, Any], dict[str, torch.Tensor]], Any]) -> Make:
    """A checkpoint in whose run training goes on, with another state of its optimizer."""

    def make(good: Path, folder: Path) -> Sequence[str]:
        import safetensors.torch

        run = good.parents[1]
        shutil.copytree(run.parents[1], folder, dirs_exist_ok=True)
        found = checkpoint_file.load(good)
        said, tensors = found.meta.model_dump(by_alias=True), dict(found.tensors)
        change(said["optimizer"], tensors)
        about = {"normgpt": json.dumps(said), "sha256": checkpoint_file.BLANK}
        for other in (folder / "runs" / run.name / "checkpoints").iterdir():
            other.unlink()
        bad = folder / "runs" / run.name / "checkpoints" / good.name
        sealed(bad, safetensors.torch.save(tensors, about))
        (folder / "runs" / run.name / "status.json").unlink()
        return "train.py", "data=text", "data.path=text.txt", "data.cache=cache", *TINY

    return make


def torch_saved(good: Path, bad: Path) -> None:
    torch.save({"model": Payload()}, bad)


ARTEFACTS: dict[str, Make] = {
    "a pickle": raw(pickle.dumps(Payload())),
    "torch.save's file": sampled(torch_saved),
    "nothing": raw(b""),
    "a header of 2^63 bytes": raw(struct.pack("<Q", 2**63) + b"{}"),
    "a header of 99 MB": raw(struct.pack("<Q", 99_000_000) + b" " * 99_000_000),
    "a header that is deep": header('"a":' + DEEP),
    "tensors that overlap": header(
        '"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
        '"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}',
        bytes(12),
    ),
    "a tensor beyond the file": header('"a":{"dtype":"F32","shape":[99],"data_offsets":[0,396]}', bytes(4)),
    "a tensor of 2^60 numbers": header(
        '"a":{"dtype":"F32","shape":[1152921504606846976],"data_offsets":[0,4]}', bytes(4)
    ),
    "an offset that is infinite": header(
        '"a":{"dtype":"F32","shape":[1],"data_offsets":[0,1e999]}', bytes(4)
    ),
    "a file of 4 TB": sampled(sparse),
    "a file without an end": sampled(endless),
    "a pipe that nobody writes to": sampled(waiting),
    "metadata that is deep": described(DEEP),
    "metadata that is no table": described('"text"'),
    "metadata with a huge number": described('{"format": 1e999999, "step": ' + "9" * 5000 + "}"),
    "a norm that is os.system": target("os.system"),
    "a norm of subprocess": target("subprocess.Popen", args=["touch", "owned"]),
    "a norm that is eval": target("builtins.eval"),
    "a norm of another package": target("antigravity.Norm"),
    "a norm of a module that runs when it is imported": target("evil.Norm"),
    "a norm through our own package": target("model.norms.torch.os.system"),
    "a norm of torch that is none": target("torch.nn.modules.module.Module"),
    "a norm by torch's loader": target("torch.nn.utils.parametrize.torch.load"),
    "a placement that is a norm": target("model.norms.LayerNorm", "placement"),
    "an interpolation": target("model.norms.LayerNorm", eps="${oc.env:SMALL}"),
    "a norm on a device": target("torch.nn.LayerNorm", device="cpu"),
    "a norm of ours on a device": target("model.norms.LayerNorm", device="meta"),
    "a norm of a size that comes later": target("torch.nn.LazyBatchNorm1d"),
    "a placement of other options": target("model.placements.Mix", "placement", fraction=5),
    "a placement of types": target("model.placements.Residual", "placement", slots={}),
    "a depth of patterns": meta(
        lambda said: (
            said["config"]["model"].update(n_layer=9999)
            or said["config"]["stats"].update(metrics=["act.rms/9998.mlp"] * 100_000)
        )
    ),
    "a config of a million errors": meta(lambda said: said["config"].update(tuned=[1] * 10**6)),
    "a million keys": meta(lambda said: said.update({str(key): 0 for key in range(10**6)})),
    "a norm that is a large matrix": target("torch.nn.Linear", out_features=2**34),
    "a norm of many layers": target("torch.nn.Transformer", num_encoder_layers=10**9),
    "a norm with large buffers": target("model.batchnorms.PositionBatchNorm", max_steps=2**34),
    "a model of 2^40 layers": sizes(n_layer=2**40),
    "a model of 10,000 layers": sizes(n_layer=10_000),
    "a model of 2^40 channels": sizes(n_embd=2**40, n_head=1),
    "a context of 2^40": sizes(block_size=2**40),
    "a context of 2^40, turned": meta(without_positions),
    "another version's format": meta(lambda said: said.update(format=99)),
    "a tokenizer of a kind that there is not": tokenizer(kind="os.system", chars="abc"),
    "a tokenizer with other keys": tokenizer(kind="char", chars="abc", __class__="x"),
    "a tokenizer's pattern that never ends": tokenizer(
        kind="bpe", pattern="(a+)+$", tokens="YQ==", special=[]
    ),
    "a tokenizer larger than the model": tokenizer(kind="char", chars="".join(map(chr, range(50, 50_000)))),
    "a name that steers the terminal": meta(lambda said: said["config"]["norm"].update({"_name_": ESCAPE})),
    "an optimizer that is no table": meta(lambda said: said.update(optimizer=[1, 2])),
    "nanoGPT's pickle": prepared(a_pickle),
    "tokens that are a pickle": prepared(pickled_tokens),
    "a dtype of objects": prepared(a_meta(dtype="object", tokenizer={"kind": "char", "chars": "abc"})),
    "a meta.json that is a list": prepared(lambda bins: (bins / "meta.json").write_text("[]") and None),
    "a meta.json that is deep": prepared(lambda bins: (bins / "meta.json").write_text(DEEP) and None),
    "code that comes with a model": gpt2(own_code),
    "weights that are a pickle": only("pytorch_model.bin", pickle.dumps(Payload())),
    "nanoGPT's checkpoint": only("ckpt.pt", pickle.dumps(Payload())),
    "a pickle by the name of weights": only("model.safetensors", pickle.dumps(Payload())),
    "others' header of 2^63 bytes": only("model.safetensors", struct.pack("<Q", 2**63) + b"{}"),
    "others' weights without an end": gpt2(linked),
    "others' weights of 4 TB": gpt2(lambda theirs: os.truncate(theirs / "model.safetensors", 2**42)),
    "a part whose name is a path": only("model-00001-of-00002.safetensors", b"\x02" + bytes(7) + b"{}"),
    "others' model of 10,000 layers": configured(n_layer=10_000),
    "others' model of 2^40 channels": configured(n_embd=2**40),
    "others' model of 2^70 tokens": configured(vocab_size=2**70),
    "others' context of 2^40": configured(n_positions=2**40),
    "others' sizes that are text": configured(n_layer="2; import os"),
    "others' norm that divides by nothing": configured(layer_norm_epsilon=-1.0),
    "an activation that is code": configured(activation_function="os.system('touch owned')"),
    "a config.json that is deep": overwritten("config.json", DEEP),
    "a config.json with a huge number": overwritten("config.json", '{"n_layer": ' + "9" * 5000 + "}"),
    "a config.json that is a list": overwritten("config.json", "[]"),
    "a config.json of 64 MB": overwritten("config.json", " " * 2**26),
    "a config.json that is a pipe": piped("config.json"),
    "a config.json that steers the terminal": configured(activation_function=ESCAPE),
    "a tokenizer.json that is deep": overwritten("tokenizer.json", DEEP),
    "a tokenizer.json that is a pipe": piped("tokenizer.json"),
    "a tokenizer.json of 99 MB": overwritten("tokenizer.json", '{"model": "' + "x" * 99_000_000 + '"}'),
    "a tokenizer.json whose expression never ends": tokens(
        lambda said: said.update(pre_tokenizer=tokenizer_json.split("(a+)+$"))
    ),
    "a tokenizer.json with ids of 2^70": tokens(lambda said: said["model"]["vocab"].update(th=2**70)),
    "a tokenizer.json whose tokens are long": tokens(long_tokens),
    "a tokenizer.json of another size than the model": configured(vocab_size=26),
    "a tokenizer.json of 64 MB of tables": overwritten("tokenizer.json", "[" + "{}," * 2**24 + "{}]"),
    "moments of another shape": moments(
        lambda said, tensors: tensors.update({n: t[:1] for n, t in tensors.items() if n.endswith("exp_avg")})
    ),
    "moments of one number": moments(
        lambda said, tensors: tensors.update(
            {n: t.sum() for n, t in tensors.items() if n.endswith("exp_avg")}
        )
    ),
    "moments that are text": moments(lambda said, tensors: said[next(iter(said))].update(exp_avg="x")),
    "tokens that are a pipe": prepared(a_pipe),
    "no moments of a parameter": moments(lambda said, tensors: said[next(iter(said))].pop("exp_avg_sq")),
    "moments that are deep": moments(lambda said, tensors: said.update(x=json.loads("[" * 500 + "]" * 500))),
}
