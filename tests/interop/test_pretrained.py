"""init_from: a GPT-2 that transformers saved computes the same function here; other folders are refused."""

import hashlib
import json
import re
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from cli.compose import quoted
from cli.schema import ModelSource
from data import tokenizers
from data.errors import ConfigError
from interop.pretrained import HUB, pretrained
from model import GPT
from model.generate import sample
from scripts import export
from tests.conftest import LETTERS, ROOT, TINY, configured
from tests.helpers import gpt2_models, programs
from tests.helpers.contract import check_refused
from training import load_run
from training.batches import fixed_windows
from training.build import initial_model
from training.checkpoint import Checkpoint, model_tensors

CHARS = "".join(sorted(set(LETTERS)))


def ours(folder: Path) -> tuple[GPT, Checkpoint]:
    """Return our model of a folder, in evaluation mode, and the checkpoint that we read the folder as."""
    source = dict.fromkeys(("run", "checkpoint")) | {"init_from": str(folder)}
    checkpoint = load_run.load(ModelSource(**source, which="last", runs_dir="."))
    vocab_size = tokenizers.from_spec(checkpoint.meta.tokenizer).vocab_size
    return load_run.load_model(checkpoint, vocab_size).eval(), checkpoint


def difference(model: GPT, reference: Any) -> float:
    """Return the largest difference of two models' logits."""
    idx = torch.randint(model.head.weight.shape[0], (3, 50), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return float((model(idx) - reference(idx).logits).abs().max())


OTHERS = {"layer_norm_epsilon": 1e-3, "tie_word_embeddings": False, "n_layer": 3, "n_head": 4, "n_embd": 32}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        OTHERS | {"activation_function": "gelu"},
        OTHERS | {"activation_function": "relu2", "tie_word_embeddings": True},
        {"activation_function": "gelu_pytorch_tanh", "tie_word_embeddings": False},
        {"activation_function": "silu"},
    ],
)
def test_logits_and_text_are_those_of_transformers_and_back_nothing_is_lost(tmp_path, settings):
    reference = gpt2_models.saved(tmp_path, **settings)
    model, checkpoint = ours(tmp_path)
    assert difference(model, reference) < 1e-5
    start = [3, 1, 4]
    text = gpt2_models.greedy(reference, start, 60)
    assert sample(model, torch.tensor([start]), 60, temperature=0)[0, 3:].tolist() == text

    (tmp_path / "back").mkdir()
    export.write_for_transformers(checkpoint.meta, model_tensors(model), tmp_path / "back")
    again, tokenizer = gpt2_models.loaded(tmp_path / "back")
    assert gpt2_models.greedy(again, start, 60) == text
    assert len(tokenizer) == 61
    old, new = reference.state_dict(), again.state_dict()
    assert old.keys() == new.keys()
    assert all(torch.equal(old[name], new[name]) for name in old)
    kept = ("layer_norm_epsilon", "tie_word_embeddings", "n_positions")
    assert all(getattr(again.config, key) == getattr(reference.config, key) for key in kept)

    assert difference(model.double(), reference.double()) < 1e-10
    reference.config.activation_function = "mish"
    assert difference(model, type(reference)(reference.config).double()) > 1e-3


# other folders with the same weights -------------------------------------------------------------------


def edit_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    """Change the tensors in the folder's file."""
    file = folder / "model.safetensors"
    safetensors.torch.save_file(change(safetensors.torch.load_file(file)), file)


def edit_config(folder: Path, **changes: Any) -> None:
    """Change values in the folder's config.json."""
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def as_on_the_hub(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Without a prefix, with the masks of attention, and the tied weight twice."""
    masks = {f"h.{i}.attn.bias": torch.ones(1, 1, 64, 64) for i in range(2)}
    short = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    return short | masks | {"lm_head.weight": short["wte.weight"].clone()}


def test_other_ways_to_write_the_same_weights(tmp_path):
    reference = gpt2_models.saved(tmp_path / "hub")
    edit_tensors(tmp_path / "hub", as_on_the_hub)
    gpt2_models.saved(tmp_path / "parts")
    (tmp_path / "parts/model.safetensors").unlink()
    reference.save_pretrained(tmp_path / "parts", max_shard_size="20kB")
    assert len([*tmp_path.glob("parts/model-*.safetensors")]) > 1
    assert difference(ours(tmp_path / "hub")[0], reference) < 1e-5
    assert difference(ours(tmp_path / "parts")[0], reference) < 1e-5

    gpt2_models.saved(tmp_path / "bf16")
    reference.bfloat16().save_pretrained(tmp_path / "bf16")
    assert difference(ours(tmp_path / "bf16")[0], reference.float()) < 1e-5


def test_the_padding_of_a_vocabulary_is_cut_off(tmp_path):
    gpt2_models.saved(tmp_path, chars=CHARS)
    padding, wte = -len(CHARS) % 64, "transformer.wte.weight"
    edit_tensors(tmp_path, lambda old: old | {wte: torch.cat([old[wte], torch.ones(padding, 16)])})
    edit_config(tmp_path, vocab_size=len(CHARS) + padding)
    assert ours(tmp_path)[0].head.weight.shape == (len(CHARS), 16)


def broken(folder: Path, change: Callable[[Path], Any]) -> Path:
    gpt2_models.saved(folder)
    change(folder)
    return folder


WTE = "transformer.wte.weight"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder: edit_config(folder, n_layer=3), "disagree on transformer.h.2"),
        (lambda folder: edit_config(folder, n_layer=1), "disagree on transformer.h.1"),
        (lambda folder: edit_config(folder, n_embd=32), "disagree on transformer.h.0"),
        (lambda folder: edit_config(folder, tie_word_embeddings=False), "disagree on lm_head.weight"),
        (lambda folder: edit_tensors(folder, lambda old: old | {"lm_head.weight": old[WTE] + 1}), "lm_head"),
        (lambda folder: edit_config(folder, model_type="llama"), "model_type=llama"),
        (lambda folder: edit_config(folder, n_inner=5), "n_inner=5"),
        (lambda folder: edit_config(folder, activation_function="mish"), "activation_function=mish"),
        (lambda folder: edit_config(folder, auto_map={"AutoConfig": "theirs.Config"}), "auto_map="),
        (lambda folder: edit_config(folder, vocab_size=100), "has a vocabulary of 100 tokens"),
        (lambda folder: (folder / "config.json").write_text("[]"), "cannot be read"),
        (lambda folder: (folder / "config.json").unlink(), "config.json is missing"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"123456789"), "cannot be loaded"),
        (lambda folder: (folder / "model.safetensors").unlink(), "name a folder that has model.safetensors"),
        (lambda folder: (folder / "model.safetensors").rename(folder / "a.bin"), "a.bin: a pickle, which is"),
    ],
)
def test_a_folder_that_is_no_gpt2_is_refused(tmp_path, change, words):
    folder = broken(tmp_path / "theirs", change)
    with pytest.raises(ConfigError, match=re.escape(words)):
        pretrained(str(folder)).tensors(64, 61)


def test_an_index_beside_the_weights_is_not_read(tmp_path):
    """transformers would open the pickle, or the file elsewhere, that it names."""
    gpt2_models.saved(tmp_path).save_pretrained(tmp_path, max_shard_size="20kB")
    (tmp_path / "model.safetensors").unlink()
    index = tmp_path / "model.safetensors.index.json"
    before = ours(tmp_path)[0].state_dict()
    index.write_text(re.sub(r"model-\d+-of-\d+.safetensors", "../weights.bin", index.read_text()))
    pretrained.cache_clear()
    assert all(torch.equal(before[name], tensor) for name, tensor in ours(tmp_path)[0].state_dict().items())


def test_without_transformers_the_error_says_what_to_install(tmp_path, monkeypatch):
    gpt2_models.saved(tmp_path)
    monkeypatch.setitem(sys.modules, "transformers", None)
    for name in (str(tmp_path), "gpt2"):
        with pytest.raises(ConfigError, match="needs transformers; run pip install -r requirements-hub.txt"):
            pretrained(name)


# in a run -----------------------------------------------------------------------------------------------


def test_the_settings_are_those_of_the_weights(tmp_path):
    gpt2_models.saved(tmp_path, layer_norm_epsilon=1e-4)
    weights = f"init_from={tmp_path}"
    config = configured(weights)
    assert (config.model.n_layer, config.model.block_size, config.model.bias) == (2, 64, True)
    assert (config.norm.options["eps"], config.norm.options["bias"]) == (1e-4, True)
    assert config.data.tokenizer == "init_from"
    assert configured(weights, "norm.eps=1e-3", "model.n_layer=2").norm.options["eps"] == 1e-3
    assert configured(weights, "model.block_size=9").model.block_size == 9
    for typed, words in {
        "model.n_layer=6": "model.n_layer: is 6, but the weights",
        "++model.n_layer=6": "model.n_layer: is 6, but the weights",
        "model=modern": "leave model= out",
        "model.block_size=128": "are of a model with at most 64",
    }.items():
        with pytest.raises(ConfigError, match=re.escape(words)):
            configured(weights, typed)


@pytest.mark.parametrize("name", ["it's (1)", "~here", "2024", "a=b"])
def test_a_folder_may_have_any_name(tmp_path, monkeypatch, name):
    gpt2_models.saved(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert configured(quoted("init_from", f"./{name}")).model.n_layer == 2


@pytest.mark.parametrize(("rows", "tokenizer"), [(50304, "gpt2"), (50258, "init_from")])
def test_with_gpt2s_vocabulary_the_tokenizer_is_gpt2s(tmp_path, rows, tokenizer):
    gpt2_models.theirs(vocab_size=rows, n_embd=4).save_pretrained(tmp_path)
    assert configured(f"init_from={tmp_path}").data.tokenizer == tokenizer
    if tokenizer == "gpt2":
        assert ours(tmp_path)[0].head.weight.shape == (50257, 4)


@pytest.mark.parametrize(
    ("norm", "words"),
    [
        ("torch_layernorm", ""),
        ("rmsnorm", "; left out, .*: blocks.0.attn.pre.bias, blocks.0.mlp.pre.bias, … (5)"),
        ("dyt", "; not copied, .*: blocks.0.attn.pre.alpha, blocks.0.mlp.pre.alpha, … (6)"),
    ],
)
def test_another_norm_begins_where_theirs_was_as_far_as_it_can(tmp_path, norm, words, capsys):
    gpt2_models.saved(tmp_path)
    model = initial_model(configured(f"init_from={tmp_path}", f"norm={norm}"), 61)
    said = capsys.readouterr().out.splitlines()[-1]
    own, theirs = model.state_dict(), ours(tmp_path)[0].state_dict()
    shared = {name for name in own.keys() & theirs.keys() if own[name].shape == theirs[name].shape}
    assert all(torch.equal(own[name], theirs[name]) for name in shared)
    assert {name for name in theirs if name.split(".")[-2] not in ("pre", "final")} <= shared
    pattern = re.escape(f"initialised from {tmp_path}{words}").replace(r"\.\*", ".*")
    assert re.fullmatch(pattern, said)


RUN = [*(key for key in TINY if not key.startswith("model.")), "init_from=theirs", "data=text"]
RUN += ["data.path=text.txt", "data.cache=cache"]


@pytest.mark.slow
def test_a_run_begins_where_theirs_are(tmp_path):
    """The first val/loss, here at a shorter model.block_size, is what transformers computes on the same
    windows."""
    reference = gpt2_models.saved(tmp_path / "theirs", chars=CHARS)
    (tmp_path / "text.txt").write_text(LETTERS, encoding="utf-8")
    done = programs.succeed("train.py", *RUN, "model.block_size=8", cwd=tmp_path)
    assert "initialised from theirs\n" in done.stdout
    ids = tokenizers.CharTokenizer(CHARS).encode(LETTERS[int(len(LETTERS) * 0.9) :])
    [(x, y)] = fixed_windows(ids, 8, 8, 8)
    with torch.no_grad():
        logits = reference(torch.from_numpy(x)).logits
    theirs = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(y).flatten())
    [metrics] = tmp_path.glob("runs/*/metrics.jsonl")
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    first = next(row["val/loss"] for row in rows if "val/loss" in row)
    assert first == pytest.approx(float(theirs), abs=1e-5)


@pytest.mark.slow
def test_weights_are_part_of_a_runs_identity_and_so_is_their_tokenizer(tmp_path):
    gpt2_models.saved(tmp_path / "theirs", chars=CHARS)
    (tmp_path / "text.txt").write_text(CHARS[::-1] * 40, encoding="utf-8")  # its own tokenizer would fit
    programs.succeed("train.py", *RUN, cwd=tmp_path)
    assert "nothing left to do" in programs.succeed("train.py", *RUN, cwd=tmp_path).stdout
    edit_tensors(tmp_path / "theirs", lambda old: {name: tensor * 2 for name, tensor in old.items()})
    programs.succeed("train.py", *RUN, cwd=tmp_path)
    compared = programs.succeed("compare.py", "runs", cwd=tmp_path)
    assert len(set(re.findall(r"theirs [0-9a-f]{8}", compared.stdout))) == 2
    (tmp_path / "text.txt").write_text("".join(chr(ord(c) + 200) for c in CHARS) * 40, encoding="utf-8")
    message = "theirs was trained with another tokenizer than this text's; give data.tokenizer=init_from"
    for more, line in (((), "is not in the vocabulary of"), (("data.tokenizer=char",), message)):
        check_refused(programs.run("train.py", *RUN, *more, cwd=tmp_path), line)


def test_a_run_without_init_from_does_not_import_transformers(tmp_path, text_file):
    for package in ("transformers", "tokenizers"):
        (tmp_path / f"{package}.py").write_text("raise SystemExit('imported')")
    common = ("data=text", "data.path=text.txt", "data.cache=cache", *TINY)
    programs.succeed("train.py", *common, cwd=tmp_path, PYTHONPATH=str(tmp_path))


# nanoGPT ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
def test_the_page_converts_a_checkpoint_of_nanogpt(tmp_path, monkeypatch, bias):
    """The file is what its train.py writes for a compiled model."""
    reference = gpt2_models.theirs(vocab_size=len(CHARS), activation_function="gelu")
    tensors = {}
    with torch.no_grad():
        for name, p in reference.named_parameters():
            p.mul_(bias or not name.endswith("bias"))
            tensors[f"_orig_mod.{name}"] = p.T.contiguous() if ".c_" in name and p.ndim == 2 else p
    tensors["_orig_mod.lm_head.weight"] = reference.lm_head.weight
    tensors = {name: tensor.detach() for name, tensor in tensors.items() if bias or "bias" not in name}
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 16, "block_size": 64, "bias": bias, "dropout": 0.0}
    content = {"model": tensors, "model_args": sizes | {"vocab_size": len(CHARS)}, "iter_num": 2000}
    torch.save(content, tmp_path / "ckpt.pt")
    for argument in (f"init_from={tmp_path}", f"init_from={tmp_path}/ckpt.pt"):
        with pytest.raises(ConfigError, match="ckpt.pt: a pickle, which is not opened here; docs/ecosystem"):
            configured(argument)
    page = (ROOT / "docs/ecosystem.md").read_text(encoding="utf-8")
    [lines] = (block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "ckpt.pt" in block)
    monkeypatch.chdir(tmp_path)
    exec(lines, {})
    meta = {"tokenizer": {"kind": "char", "chars": CHARS}}
    (tmp_path / "converted/meta.json").write_text(json.dumps(meta))
    assert difference(ours(tmp_path / "converted")[0], reference) < 1e-5


# the hub ------------------------------------------------------------------------------------------------


def test_without_a_way_to_the_hub_it_says_so_at_once(tmp_path):
    environ = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}
    done = programs.from_scratch("train.py", "init_from=gpt2", cwd=tmp_path, **environ)
    check_refused(done, "init_from: gpt2 cannot be downloaded (", "; try again, or name a folder")


class Hub(BaseHTTPRequestHandler):
    """A hub that serves ``folder``."""

    folder: Path

    def do_GET(self) -> None:
        prefix = f"/openai-community/gpt2/resolve/{HUB['gpt2']}/"
        file = self.folder / self.path.removeprefix(prefix)
        if not self.path.startswith(prefix) or not file.is_file():
            self.send_error(404)
            return
        content = file.read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", hashlib.sha256(content).hexdigest())
        self.send_header("X-Repo-Commit", HUB["gpt2"])
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    do_HEAD = do_GET  # noqa: N815 the name is http.server's

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.slow
def test_the_hubs_files_are_downloaded_once(tmp_path):
    Hub.folder = tmp_path / "remote"
    gpt2_models.theirs(vocab_size=50257, n_embd=4).save_pretrained(Hub.folder)
    environ = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}
    texts = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for url in (f"http://127.0.0.1:{server.server_address[1]}", "http://127.0.0.1:9"):
            arguments = ("init_from=gpt2", "prompt=Now", "max_new_tokens=3")
            done = programs.from_scratch("sample.py", *arguments, cwd=tmp_path, HF_ENDPOINT=url, **environ)
            texts.append(done.stdout)
        server.shutdown()
    downloads = [line for line in texts[0].splitlines() if "downloading" in line]
    assert [line.split()[2] for line in downloads] == ["config.json", "model.safetensors"]
    assert texts[0].endswith(texts[1])
    assert texts[1].startswith("Now")
