"""init_from: a GPT-2 that transformers saved computes the same function here; other folders are refused."""

import hashlib
import json
import re
import sys
import threading
from collections.abc import Callable
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
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
from tests.conftest import LETTERS, ROOT, TINY, TRAIN, configured
from tests.helpers import gpt2_models, programs
from tests.helpers.contract import check_refused
from tests.helpers.runs import same_tensors
from training import load_run
from training.build import initial_model
from training.checkpoint import Checkpoint, model_tensors

CHARS = "".join(sorted(set(LETTERS)))
WTE = "transformer.wte.weight"


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
    [{}, OTHERS | {"activation_function": "gelu"}, {"activation_function": "relu2"}],
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
    assert same_tensors(reference.state_dict(), again.state_dict())
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


def test_other_ways_to_write_the_same_weights(tmp_path):
    """As on the hub: without a prefix, with the masks of attention, and the tied weight twice; in parts; in
    bf16."""
    reference = gpt2_models.saved(tmp_path / "hub")
    masks = {f"h.{i}.attn.bias": torch.ones(1, 1, 64, 64) for i in range(2)}
    twice = {"lm_head.weight": reference.lm_head.weight.detach().clone()}
    edit_tensors(
        tmp_path / "hub",
        lambda old: {name.removeprefix("transformer."): t for name, t in old.items()} | masks | twice,
    )
    assert difference(ours(tmp_path / "hub")[0], reference) < 1e-5
    gpt2_models.saved(tmp_path / "parts")
    (tmp_path / "parts/model.safetensors").unlink()
    reference.save_pretrained(tmp_path / "parts", max_shard_size="20kB")
    assert difference(ours(tmp_path / "parts")[0], reference) < 1e-5
    gpt2_models.saved(tmp_path / "bf16")
    reference.bfloat16().save_pretrained(tmp_path / "bf16")
    assert difference(ours(tmp_path / "bf16")[0], reference.float()) < 1e-5


UNFIT = [
    (lambda folder: edit_config(folder, n_layer=3), "disagree on transformer.h.2"),
    (lambda folder: edit_config(folder, n_layer=1), "disagree on transformer.h.1"),
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
]


def test_a_folder_that_is_no_gpt2_is_refused(tmp_path):
    for number, (change, words) in enumerate(UNFIT):
        gpt2_models.saved(folder := tmp_path / str(number))
        change(folder)
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
    gpt2_models.saved(tmp_path / "it's (1), a=b", layer_norm_epsilon=1e-4)
    weights = quoted("init_from", f"{tmp_path}/it's (1), a=b")
    config = configured(weights)
    assert (config.model.n_layer, config.model.block_size, config.model.bias) == (2, 64, True)
    assert (config.norm.options["eps"], config.norm.options["bias"]) == (1e-4, True)
    assert config.data.tokenizer == "init_from"
    assert configured(weights, "norm.eps=1e-3", "model.n_layer=2").norm.options["eps"] == 1e-3
    assert configured(weights, "model.block_size=9").model.block_size == 9
    for typed, words in {
        "++model.n_layer=6": "model.n_layer: is 6, but the weights",
        "model=modern": "leave model= out",
        "model.block_size=128": "are of a model with at most 64",
    }.items():
        with pytest.raises(ConfigError, match=re.escape(words)):
            configured(weights, typed)


def test_with_gpt2s_vocabulary_the_tokenizer_is_gpt2s(tmp_path):
    gpt2_models.theirs(vocab_size=50304, n_embd=4).save_pretrained(tmp_path)  # padded
    assert configured(f"init_from={tmp_path}").data.tokenizer == "gpt2"
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


def test_a_damaged_export_of_ours_is_one_line(tmp_path):
    (tmp_path / "text.txt").write_text(LETTERS)
    for settings in (
        {"norm": {}},
        {"norm": {"_target_": 3}},
        {"model": {"block_size": "64"}},
        {"norm": None},
    ):
        config = json.loads(configured().model_dump_json(by_alias=True)) | settings
        meta = {"config": config, "tokenizer": {"kind": "char", "chars": CHARS}}
        safetensors.torch.save_file(
            {"x": torch.ones(1)}, tmp_path / "model.safetensors", {"normgpt": json.dumps(meta)}
        )
        pretrained.cache_clear()
        with pytest.raises(ConfigError, match="cannot be read"):
            configured(f"init_from={tmp_path}", f"seed={len(str(settings))}")


RUN = [*(key for key in TINY if not key.startswith("model.")), "init_from=theirs", "data=text"]
RUN += ["data.path=text.txt", "data.cache=cache"]


@pytest.mark.slow
def test_weights_are_part_of_a_runs_identity_and_so_is_their_tokenizer(tmp_path):
    gpt2_models.saved(tmp_path / "theirs", chars=CHARS)
    (tmp_path / "text.txt").write_text(CHARS[::-1] * 40, encoding="utf-8")  # its own tokenizer would fit
    for again in (False, True):
        done = programs.succeed("train.py", *RUN, cwd=tmp_path)
        assert ("nothing left to do" in done.stdout) == again
    edit_tensors(tmp_path / "theirs", lambda old: {name: tensor * 2 for name, tensor in old.items()})
    programs.succeed("train.py", *RUN, cwd=tmp_path)
    assert len([*tmp_path.glob("runs/*-*")]) == 2
    (tmp_path / "text.txt").write_text("".join(chr(ord(c) + 200) for c in CHARS) * 40, encoding="utf-8")
    message = "theirs was trained with another tokenizer than this text's; give data.tokenizer=init_from"
    for more, line in (((), "is not in the vocabulary of"), (("data.tokenizer=char",), message)):
        check_refused(programs.run("train.py", *RUN, *more, cwd=tmp_path), line)


def test_a_run_without_init_from_does_not_import_transformers(tmp_path, text_file):
    for package in ("transformers", "tokenizers"):
        (tmp_path / f"{package}.py").write_text("raise SystemExit('imported')")
    programs.succeed("train.py", *TRAIN, cwd=tmp_path, PYTHONPATH=str(tmp_path))


# nanoGPT ------------------------------------------------------------------------------------------------


def test_the_page_converts_a_checkpoint_of_nanogpt(tmp_path, monkeypatch):
    """The file is what its train.py writes for a compiled model."""
    reference = gpt2_models.theirs(vocab_size=len(CHARS), activation_function="gelu")
    tensors = {"_orig_mod.lm_head.weight": reference.lm_head.weight.detach()}
    for name, p in reference.named_parameters():
        tensors[f"_orig_mod.{name}"] = (
            p.detach().T.contiguous() if ".c_" in name and p.ndim == 2 else p.detach()
        )
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 16, "block_size": 64, "bias": True, "dropout": 0.0}
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


@pytest.mark.slow
def test_the_hubs_files_are_downloaded_once(tmp_path):
    class Hub(SimpleHTTPRequestHandler):
        def translate_path(self, path: str) -> str:
            name = path.removeprefix(f"/openai-community/gpt2/resolve/{HUB['gpt2']}/")
            return str(tmp_path / "remote" / name)

        def end_headers(self) -> None:
            self.send_header("ETag", hashlib.sha256(self.path.encode()).hexdigest())
            self.send_header("X-Repo-Commit", HUB["gpt2"])
            super().end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    gpt2_models.theirs(vocab_size=50257, n_embd=4).save_pretrained(tmp_path / "remote")
    environ = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}
    texts = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for url in (f"http://127.0.0.1:{server.server_port}", "http://127.0.0.1:9"):
            arguments = ("init_from=gpt2", "prompt=Now", "max_new_tokens=3")
            done = programs.from_scratch("sample.py", *arguments, cwd=tmp_path, HF_ENDPOINT=url, **environ)
            texts.append(done.stdout)
        server.shutdown()
    downloads = [line for line in texts[0].splitlines() if "downloading" in line]
    assert [line.split()[2] for line in downloads] == ["config.json", "model.safetensors"]
    assert texts[0].endswith(texts[1])
    assert texts[1].startswith("Now")
