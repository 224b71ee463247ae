"""init_from: a GPT-2 folder in Hugging Face's layout computes the same function here as in transformers;
other folders are refused."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cli.compose import quoted
from cli.schema import ModelSource
from data import tokenizers
from data.errors import ConfigError
from interop.pretrained import pretrained
from model import GPT
from model.generate import Decoder, generate
from scripts import export
from tests.conftest import LETTERS, TINY, configured, daily
from tests.helpers import gpt2_models, programs
from tests.helpers.contract import check_refused, error_lines
from training import load_run as load_model
from training.batches import fixed_windows
from training.build import describe_initialisation, initial_model
from training.checkpoint import load

CHARS = "".join(sorted(set(LETTERS)))
RUN = [key for key in TINY if not key.startswith("model.")]  # the weights determine the model

SIZES = st.fixed_dictionaries(
    {
        "vocab_size": st.integers(2, 300),
        "n_positions": st.integers(56, 80),
        "n_layer": st.integers(1, 3),
        "n_head": st.sampled_from([1, 2, 4]),
        "n_embd": st.sampled_from([4, 8, 20, 32]),
        "activation_function": st.sampled_from(["gelu_new", "gelu_pytorch_tanh", "gelu", "relu2", "silu"]),
        "layer_norm_epsilon": st.sampled_from([1e-5, 1e-6, 1e-3]),
        "tie_word_embeddings": st.booleans(),
    }
)


def ours(folder: Path) -> tuple[GPT, Any]:
    """Return our model of a folder, in evaluation mode, and the checkpoint that we read the folder as."""
    source = dict.fromkeys(("run", "checkpoint")) | {"init_from": str(folder)}
    checkpoint = load_model.load(ModelSource(**source, which="last", runs_dir="."))
    vocab_size = tokenizers.from_spec(checkpoint.meta.tokenizer).vocab_size
    return load_model.load_model(checkpoint, vocab_size).eval(), checkpoint


def weights(model: Any) -> dict[str, torch.Tensor]:
    return dict(model.state_dict())


def likeliest(model: GPT, ids: list[int], n: int) -> list[int]:
    """Return the n tokens that sample.py draws at temperature 0."""
    idx = torch.tensor([ids])
    drawn = generate(Decoder(model), idx, model.block_size, lambda logits: logits.argmax(-1))
    return [int(next(drawn)) for _ in range(n)]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_logits_are_those_of_transformers_and_another_gelu_is_noticed(tmp_path, dtype, tolerance):
    reference = gpt2_models.saved(tmp_path, n_layer=3, n_head=4, n_embd=32).to(dtype)
    idx = torch.randint(61, (5, 16), generator=torch.Generator().manual_seed(1))

    def largest_difference() -> float:
        pretrained.cache_clear()
        with torch.no_grad():
            return float((reference(idx).logits - ours(tmp_path)[0].to(dtype)(idx)).abs().max())

    assert largest_difference() < tolerance
    edit_config(tmp_path, activation_function="gelu")
    assert largest_difference() > 10 * tolerance


LARGER = {"vocab_size": 99, "n_positions": 60, "n_layer": 2, "n_head": 4, "n_embd": 32}
OTHERS = {"layer_norm_epsilon": 1e-3, "tie_word_embeddings": False}


@pytest.mark.slow
@given(SIZES)
@example(LARGER | OTHERS | {"activation_function": "gelu_new"})
@example(LARGER | OTHERS | {"activation_function": "gelu_pytorch_tanh", "tie_word_embeddings": True})
@example(LARGER | OTHERS | {"activation_function": "gelu"})
@example(LARGER | OTHERS | {"activation_function": "relu2", "layer_norm_epsilon": 1e-6})
@example(LARGER | {"activation_function": "silu"})
@settings(max_examples=8, derandomize=True)
def test_from_theirs_to_ours_and_back_nothing_is_lost(tmp_path_factory, sizes):
    folder = tmp_path_factory.mktemp("gpt2")
    reference = gpt2_models.saved(folder, **sizes)
    model, checkpoint = ours(folder)
    idx = torch.randint(sizes["vocab_size"], (3, 50), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert (model(idx) - reference(idx).logits).abs().max() <= 1e-5
        exact = reference.double()(idx).logits
        assert (model.double()(idx) - exact).abs().max() <= 1e-10

    model, _ = ours(folder)
    back = folder / "back"
    back.mkdir()
    export.write_huggingface(checkpoint, weights(model), back)
    again, tokenizer = gpt2_models.loaded(back)
    reference, _ = gpt2_models.loaded(folder)
    assert weights(reference).keys() == weights(again).keys()
    assert all(torch.equal(weights(reference)[name], tensor) for name, tensor in weights(again).items())
    values = {key: getattr(again.config, key) for key in sizes} | {"activation_function": None}
    assert values == sizes | {"activation_function": None}  # two of its names are one function
    start = [int(i) for i in idx[0, :5]]
    ours_then_theirs = [likeliest(model, start, 50), gpt2_models.greedy(reference, start, 50)]
    assert ours_then_theirs == [gpt2_models.greedy(again, start, 50)] * 2
    assert len(tokenizer) == sizes["vocab_size"]


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
    gpt2_models.saved(tmp_path)
    before = weights(ours(tmp_path)[0])
    edit_tensors(tmp_path, as_on_the_hub)
    pretrained.cache_clear()
    after = weights(ours(tmp_path)[0])
    assert all(torch.equal(before[name], tensor) for name, tensor in after.items())


def test_weights_in_half_precision_are_their_numbers(tmp_path):
    gpt2_models.saved(tmp_path)
    edit_tensors(tmp_path, lambda tensors: {name: t.bfloat16() for name, t in tensors.items()})
    read = weights(ours(tmp_path)[0])["embed.tokens.weight"]
    assert read.dtype == torch.float32
    assert torch.equal(read, read.bfloat16().float())


def test_weights_in_several_files(tmp_path):
    model = gpt2_models.saved(tmp_path)
    before = weights(ours(tmp_path)[0])
    (tmp_path / "model.safetensors").unlink()
    model.save_pretrained(tmp_path, max_shard_size="20kB")
    first, *others = sorted(tmp_path.glob("model-*.safetensors"))
    assert others
    pretrained.cache_clear()
    assert all(torch.equal(before[name], t) for name, t in weights(ours(tmp_path)[0]).items())
    content = first.read_bytes()
    first.unlink()
    pretrained.cache_clear()
    with pytest.raises(ConfigError, match="is missing"):
        pretrained(str(tmp_path)).check()
    others[0].write_bytes(content)
    first.write_bytes(content)
    pretrained.cache_clear()
    with pytest.raises(ConfigError, match="a second time"):
        pretrained(str(tmp_path)).check()


def test_the_padding_of_a_vocabulary_is_cut_off(tmp_path):
    gpt2_models.saved(tmp_path, chars=CHARS)
    padding = -len(CHARS) % 64
    wte = "transformer.wte.weight"
    edit_tensors(tmp_path, lambda old: old | {wte: torch.cat([old[wte], torch.ones(padding, 16)])})
    edit_config(tmp_path, vocab_size=len(CHARS) + padding)
    assert ours(tmp_path)[0].head.weight.shape == (len(CHARS), 16)
    with pytest.raises(ConfigError, match="has a vocabulary of 64 tokens, but the text's tokenizer has 65"):
        pretrained(str(tmp_path)).tensors(8, 65)


# in a run -----------------------------------------------------------------------------------------------


def trained(folder: Path, *more: str, run: Callable[..., Any] = programs.succeed) -> Any:
    (folder / "text.txt").write_text(LETTERS, encoding="utf-8")
    common = ("init_from=theirs", "data=text", "data.path=text.txt", "data.cache=cache")
    return run("train.py", *common, *RUN, *more, cwd=folder)


def first_loss(folder: Path) -> float:
    [metrics] = folder.glob("runs/*/metrics.jsonl")
    return next(
        row["val/loss"] for row in map(json.loads, metrics.read_text().splitlines()) if "val/loss" in row
    )


def test_a_run_begins_where_theirs_are(tmp_path):
    """The first val/loss, here at a shorter model.block_size, is what transformers computes on the same
    windows."""
    reference = gpt2_models.saved(tmp_path / "theirs", chars=CHARS)
    done = trained(tmp_path, "model.block_size=8")
    assert "init_from=theirs norm=layernorm placement=pre" in done.stdout
    assert "initialised from theirs\n" in done.stdout
    ids = tokenizers.CharTokenizer(CHARS).encode(LETTERS[int(len(LETTERS) * 0.9) :])
    [(x, y)] = fixed_windows(ids, 8, 8, 8)
    with torch.no_grad():
        logits = reference(torch.from_numpy(x)).logits
    theirs = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(y).flatten())
    assert first_loss(tmp_path) == pytest.approx(float(theirs), abs=1e-5)


@pytest.mark.slow
def test_runs_of_other_weights_by_one_name_are_others_and_compared_as_such(tmp_path):
    gpt2_models.saved(tmp_path / "theirs", chars=CHARS)
    trained(tmp_path)
    assert "nothing left to do" in trained(tmp_path).stdout
    edit_tensors(tmp_path / "theirs", lambda tensors: {name: tensor * 2 for name, tensor in tensors.items()})
    trained(tmp_path)
    compared = programs.succeed("compare.py", "runs", cwd=tmp_path)
    assert len(set(re.findall(r"theirs [0-9a-f]{8}", compared.stdout))) == 2


OF_THEIRS = "but the weights of init_from=theirs are of a model with"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("model.n_layer=6", f"model.n_layer: is 6, {OF_THEIRS} 2"),
        ("model=modern", f"{OF_THEIRS} 2; leave model= out"),
        (
            "model.positions=none",
            f"model.positions: is none, {OF_THEIRS} learned; leave model.positions= out",
        ),
        ("model.block_size=128", f"model.block_size: is 128, {OF_THEIRS} at most 64"),
        ("++model.n_layer=6", f"model.n_layer: is 6, {OF_THEIRS} 2"),
        ("data.tokenizer=bpe data.vocab_size=300", "the text's tokenizer"),
        ("init_from=", "init_from: invalid value ''; it should have at least 1 character"),
        (
            "init_from=elsewhere",
            "init_from: elsewhere: no such folder; name a folder or one of gpt2, gpt2-medium",
        ),
    ],
)
def test_what_the_weights_cannot_be_is_refused(tmp_path, arguments, line):
    gpt2_models.saved(tmp_path / "theirs", chars=CHARS)
    check_refused(trained(tmp_path, *arguments.split(), run=programs.run), line)
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_another_text_is_read_by_the_tokenizer_of_the_weights(tmp_path):
    """A new tokenizer of that text would have as many tokens, but other ones."""
    gpt2_models.saved(tmp_path / "theirs", chars=CHARS)
    (tmp_path / "rotated.txt").write_text("".join(CHARS[::-1]) * 40)
    trained(tmp_path, "data.path=rotated.txt")
    [run] = tmp_path.glob("runs/*-*")
    [*_, newest] = sorted(run.glob("checkpoints/*"))
    assert load(newest).meta.tokenizer["chars"] == CHARS
    (tmp_path / "rotated.txt").write_text("".join(chr(ord(c) + 200) for c in CHARS) * 40)
    message = "theirs was trained with another tokenizer than this text's; give data.tokenizer=init_from"
    for more, line in (((), "is not in the vocabulary of"), (("data.tokenizer=char",), message)):
        check_refused(trained(tmp_path, "data.path=rotated.txt", *more, run=programs.run), line)


def test_a_run_of_ours_is_exported_first(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(ConfigError, match="is a run; export it first with python -m scripts.export"):
        pretrained(str(tmp_path))


@pytest.mark.parametrize("name", daily(["it's (1)", "~here", "2024", "a=b"], others="slow"))
def test_a_folder_may_have_any_name(tmp_path, name):
    gpt2_models.saved(tmp_path / name, chars=CHARS)
    trained(tmp_path, quoted("init_from", name), "train.steps=0")


@pytest.mark.slow
def test_a_resumed_run_is_not_initialised_from_them_again(tmp_path):
    gpt2_models.saved(tmp_path / "theirs", chars=CHARS)
    common = ("train.steps=6", "train.checkpoint_every=3")
    assert "initialised from" in trained(tmp_path, *common).stdout
    [run] = tmp_path.glob("runs/*-*")
    (run / "status.json").write_text("{}")
    [*_, newest] = sorted(run.glob("checkpoints/*"))
    newest.unlink()
    done = trained(tmp_path, *common)
    assert "resumes from step 3 of 6" in done.stdout
    assert "initialised from" not in done.stdout


def test_settings_that_agree_with_the_weights_are_accepted(tmp_path):
    gpt2_models.saved(tmp_path)
    config = configured(f"init_from={tmp_path}", "model.n_layer=2", "model.bias=true", "model.block_size=64")
    assert config.model.n_layer == 2
    assert configured(f"init_from={tmp_path}", "model.block_size=9").model.block_size == 9
    assert configured(f"init_from={tmp_path}").model.block_size == 64
    assert configured(f"init_from={tmp_path}").norm.options["bias"] is True
    assert configured(f"init_from={tmp_path}", "norm.eps=1e-3").norm.options["eps"] == 1e-3


def test_with_gpt2s_vocabulary_the_tokenizer_is_gpt2s(tmp_path):
    gpt2_models.theirs(vocab_size=50304, n_embd=4).save_pretrained(tmp_path)
    assert configured(f"init_from={tmp_path}").data.tokenizer == "gpt2"
    model, checkpoint = ours(tmp_path)
    assert model.head.weight.shape == (50257, 4)
    assert checkpoint.meta.tokenizer["special"] == ["<|endoftext|>"]


def test_with_a_token_more_than_gpt2_the_tokenizer_is_the_folders(tmp_path):
    gpt2_models.theirs(vocab_size=50258, n_embd=4).save_pretrained(tmp_path)
    assert configured(f"init_from={tmp_path}").data.tokenizer == "init_from"


@pytest.mark.parametrize("norm", ["rmsnorm", "dyt", "none", "torch_layernorm", "scalenorm"])
def test_another_norm_begins_where_theirs_was_as_far_as_it_can(tmp_path, norm):
    gpt2_models.saved(tmp_path)
    there, config = ours(tmp_path)[0], configured(f"init_from={tmp_path}", f"norm={norm}")
    model = initial_model(config, 61)
    own, theirs = weights(model), weights(there)
    shared = {name for name in own.keys() & theirs.keys() if own[name].shape == theirs[name].shape}
    assert all(torch.equal(own[name], theirs[name]) for name in shared)
    assert {name for name in theirs if name.split(".")[-2] not in ("pre", "final")} <= shared
    words = describe_initialisation(model, str(tmp_path))
    here = "left out, as this model has none of this name and shape"
    there = "not copied, so at their initial values"
    exceptions = {
        "rmsnorm": f"; {here}: blocks.0.attn.pre.bias, blocks.0.mlp.pre.bias, … (5)",
        "none": f"; {here}: blocks.0.attn.pre.bias, blocks.0.attn.pre.weight, … (10)",
        "dyt": f"; {there}: blocks.0.attn.pre.alpha, blocks.0.mlp.pre.alpha, … (6)",  # and the embedding's
        "torch_layernorm": "",
        "scalenorm": f"; {here}: blocks.0.attn.pre.bias, blocks.0.attn.pre.weight, … (10)"
        f"; {there}: blocks.0.attn.pre.weight, blocks.0.mlp.pre.weight, … (5)",
    }
    assert words == f"initialised from {tmp_path}{exceptions[norm]}"


# nanoGPT ------------------------------------------------------------------------------------------------


def nanogpts(reference: Any, folder: Path, bias: bool = True) -> None:
    """Write a ckpt.pt as nanoGPT's train.py does for a compiled model with these weights."""
    tensors = {}
    for name, tensor in reference.state_dict().items():
        transposed = tensor.ndim == 2 and not name.endswith(("wte.weight", "wpe.weight", "lm_head.weight"))
        tensors[f"_orig_mod.{name}"] = tensor.T.contiguous() if transposed else tensor
    tensors["_orig_mod.transformer.h.0.attn.bias"] = torch.ones(1, 1, 64, 64)  # without flash attention
    if not bias:
        tensors = {name: t for name, t in tensors.items() if not name.endswith(".bias") or t.ndim == 4}
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 16, "block_size": 64, "bias": bias, "dropout": 0.0}
    content = {
        "model": tensors,
        "optimizer": {"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": [{"lr": 1e-3}]},
        "model_args": sizes | {"vocab_size": reference.config.vocab_size},
        "iter_num": 2000,
    }
    folder.mkdir()
    torch.save(content, folder / "ckpt.pt")


def converted(folder: Path, command: str) -> None:
    """Run the command that an error line advises in that folder."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    subprocess.run(command, shell=True, cwd=folder, env=os.environ | {"PATH": path}, check=True)


@pytest.mark.slow
@pytest.mark.parametrize("bias", daily([True, False], others="long"))
def test_its_checkpoint_is_refused_with_the_command_that_converts_it(tmp_path, bias):
    reference = gpt2_models.theirs(vocab_size=len(CHARS), activation_function="gelu")
    if not bias:
        with torch.no_grad():
            for name, p in reference.named_parameters():
                p.mul_(not name.endswith("bias"))
    nanogpts(reference, tmp_path / "out", bias)
    for argument in ("init_from=out", "init_from=out/ckpt.pt", "checkpoint=out/ckpt.pt", "run=out"):
        done = programs.run("sample.py", argument, cwd=tmp_path)
        assert done.returncode == 1
        [error] = error_lines(done.stderr)
        command = re.fullmatch(
            r"error: out/ckpt\.pt: a pickle, which is not opened here; in its folder run (.*) and give "
            r"init_from=FOLDER",
            error,
        )[1]
    converted(tmp_path / "out", command)
    (tmp_path / "out/meta.json").write_text(json.dumps({"tokenizer": {"kind": "char", "chars": CHARS}}))
    model, checkpoint = ours(tmp_path / "out")
    assert checkpoint.meta.config.model.bias is bias
    idx = torch.randint(len(CHARS), (3, 50), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert (model(idx) - reference(idx).logits).abs().max() <= 1e-5
    programs.succeed("sample.py", "init_from=out", "prompt=No", "max_new_tokens=9", cwd=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 2])
def test_hugging_faces_own_pickle_too(tmp_path, parts):
    reference = gpt2_models.saved(tmp_path)
    tensors = [*reference.state_dict().items()]
    for i in range(parts):
        name = "pytorch_model.bin" if parts == 1 else f"pytorch_model-0000{i + 1}-of-0000{parts}.bin"
        torch.save(dict(tensors[i::parts]), tmp_path / name)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="a pickle, which is not opened here") as raised:
        pretrained(str(tmp_path)).check()
    converted(tmp_path, re.search(r"run (.*) and give", str(raised.value))[1])
    pretrained.cache_clear()
    model, _ = ours(tmp_path)
    idx = torch.arange(50)[None]
    with torch.no_grad():
        assert (model(idx) - reference(idx).logits).abs().max() <= 1e-5


def test_of_several_pickles_the_weights_are_named(tmp_path):
    gpt2_models.theirs().config.save_pretrained(tmp_path)
    (tmp_path / "'); import os #.pt").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"torch\.load\('FILE'"):  # a name that a shell would run
        pretrained(str(tmp_path)).check()
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"torch\.load\('pytorch_model\.bin'"):
        pretrained(str(tmp_path)).check()
