"""Sampling needs the checkpoint alone, and follows its settings."""

import re
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import sample
from cli.errors import CONF
from cli.programs import read_literally
from cli.schema import ModelSource, SampleConfig
from data.errors import UserError
from data.tokenizers import from_spec
from model.generate import draw, window_start
from tests.helpers.runs import train_anew
from training import checkpoint as checkpoint_file
from training import load_run
from training.run_folder import read_status

LOGITS = torch.randn(11, generator=torch.Generator().manual_seed(0)) * 2


def frequencies(logits: torch.Tensor, *options, n: int = 20_000) -> torch.Tensor:
    """Return how often each token is drawn, as the uniform numbers go from 0 to nearly 1 in small steps."""
    every = torch.linspace(0, 1 - 1e-9, n, dtype=torch.float64)[:, None]
    return torch.bincount(draw(logits.expand(n, -1), *options, every), minlength=11) / n


@given(st.floats(0.3, 3), st.none() | st.integers(1, 12), st.none() | st.floats(0.01, 0.99))
def test_a_draw_is_from_the_softmax_of_the_k_likeliest_and_of_the_fewest_that_reach_p(temperature, k, p):
    probabilities, order = (LOGITS / temperature).double().softmax(-1).sort(descending=True)
    probabilities[k or 11 :] = 0
    cumulative = probabilities.cumsum(-1) / probabilities.sum()
    assume(p is None or (cumulative - p).abs().min() > 1e-4)
    probabilities[1 + int((cumulative < (p or 1)).sum()) :] = 0
    drawn = frequencies(LOGITS, temperature, k, p)[order]
    assert (drawn - probabilities / probabilities.sum()).abs().max() < 1e-3


@pytest.mark.parametrize("temperature", [0, 1e-6, 1e-40, 5e-324])
def test_temperature_0_and_next_to_0_give_the_likeliest_token(temperature):
    assert frequencies(1e6 * LOGITS, temperature, None, None)[LOGITS.argmax()] == 1


@pytest.fixture
def trained(tiny, tmp_path):
    folder = train_anew(tiny("train.steps=20", "train.eval_every=5", "norm=batchnorm"))
    for entry in (tmp_path / "cache", tmp_path / "text.txt"):  # sampling needs neither
        entry.rename(tmp_path / f"gone-{entry.name}")
    return folder


@pytest.fixture
def printed(tmp_path, monkeypatch, capsys):
    """Return a function that runs sample.py in this process: words -> stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[str, str]:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["sample.py", *words])
        sample.main(read_literally(SampleConfig, CONF / "sample.yaml", sample.__doc__))
        return capsys.readouterr()

    return run


def test_the_command_prints_the_prompt_and_max_new_tokens_tokens(succeed, printed, trained):
    words = ("prompt=Now is", "max_new_tokens=7")
    first, second = succeed("sample.py", *words, "num_samples=2").stdout.split("---------------\n")
    assert first.startswith("Now is")
    assert len(first) == len(second) == len("Now is") + 7 + 1
    assert first != second
    assert printed(f"run={trained}", *words)[0] == first  # each sample has a random stream of its own
    assert printed(*words, "seed=1")[0] != first


def newest(folder: Path) -> checkpoint_file.Checkpoint:
    return load_run.load(
        ModelSource(run=str(folder), checkpoint=None, init_from=None, which="last", runs_dir="runs")
    )


def likeliest(folder: Path, prompt: str, n: int) -> str:
    """Return the prompt and its n likeliest next tokens, by the newest model without a KV cache."""
    loaded = newest(folder)
    tokenizer = from_spec(loaded.meta.tokenizer)
    model = load_run.load_model(loaded, tokenizer.vocab_size, trust="tests").eval()
    ids = tokenizer.encode(prompt).tolist()
    for _ in range(n):
        ids.append(int(model(torch.tensor([ids[window_start(len(ids), 8) :]]))[0, -1].argmax()))
    return tokenizer.decode(ids).decode() + "\n"


def test_greedy_text_is_the_argmax_of_the_restored_model_in_evaluation_mode(printed, trained):
    expected = likeliest(trained, "Now is", 12)
    common = (f"run={trained}", "which=last", "prompt=Now is", "max_new_tokens=12")
    for same in (["temperature=0"], ["top_k=1", "temperature=5"], ["top_p=1e-6"], ["temperature=1e-4"]):
        assert printed(*common, *same)[0] == expected, same
    assert printed(*common, "temperature=5")[0] != expected
    assert len(printed(*common, "temperature=0", "precision=bf16")[0]) == len(expected)


def test_a_norm_that_looks_at_other_tokens_is_sampled_without_a_kv_cache(printed, tiny):
    past_mean = ("norm=none", "norm._target_=tests.helpers.model.MinusPastMean")
    folder = train_anew(tiny(*past_mean, "train.steps=20"))
    greedy = ("prompt=Now is", "max_new_tokens=12", "num_samples=2", "temperature=0")
    text, errors = printed(f"run={folder}", "which=last", "trust=tests", *greedy)
    assert text.split("---------------\n") == [likeliest(folder, "Now is", 12)] * 2
    assert "this norm cannot use the KV cache: " in errors


@pytest.mark.slow
def test_characters_of_several_tokens_are_printed_whole(printed, tiny, tmp_path):
    """A byte pair encoding of 256 tokens has one per byte, so é, 漢 and 🙂 are two to four tokens each."""
    (tmp_path / "text.txt").write_text("né 漢字 🙂 " * 300, encoding="utf-8")
    options = ("data.tokenizer=bpe", "data.vocab_size=256", "train.steps=150", "optim.learning_rate=1e-2")
    train_anew(tiny(*options, "model.n_embd=32", "model.block_size=16"))
    greedy = ("which=last", "temperature=0")
    assert printed(*greedy, "prompt=né 漢", "max_new_tokens=60")[0].startswith("né 漢字 🙂 né 漢字 🙂 né")
    assert printed(*greedy, "prompt=né 漢字 ", "max_new_tokens=2")[0] == "né 漢字 \ufffd\n"  # half a 🙂


def test_a_prompt_may_come_from_a_file_and_an_empty_one_starts_like_none(printed, trained, tmp_path):
    (tmp_path / "prompt.txt").write_bytes(b"Now is\nthe")
    assert printed("prompt_file=prompt.txt", "max_new_tokens=0")[0] == "Now is\nthe\n"
    (tmp_path / "empty").write_text("")
    [text] = {printed(*one, "max_new_tokens=5")[0] for one in ([], ["prompt="], ["prompt_file=empty"])}
    assert len(text) == 1 + 5 + 1
    with pytest.raises(UserError, match=re.escape("prompt: character '$' (U+0024) at position 7")):
        printed("prompt=Now is ${x}")  # the text is not interpolated


def test_best_last_or_a_file_is_loaded_unless_it_is_damaged(printed, trained):
    steps = checkpoint_file.saved_steps(trained / "checkpoints")
    best = read_status(trained)["best"]["step"]
    file = checkpoint_file.path_of(trained / "checkpoints", steps[0])
    for word, step in {"which=best": best, "which=last": steps[-1], f"checkpoint={file}": steps[0]}.items():
        assert f"step {step}, cpu, fp32\n" in printed(word, "max_new_tokens=1")[1]
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(UserError, match=f"{file}: damaged"):
        printed(f"checkpoint={file}")


def test_a_checkpoint_that_its_run_removes_before_it_is_read_is_looked_for_again(trained, monkeypatch):
    first, second = checkpoint_file.saved_steps(trained / "checkpoints")[-2:]
    read = checkpoint_file.load

    def removed_first(path):
        checkpoint_file.path_of(trained / "checkpoints", second).unlink(missing_ok=True)
        return read(path)

    monkeypatch.setattr(checkpoint_file, "load", removed_first)
    assert newest(trained).meta.step == first


def test_a_model_whose_logits_are_not_finite_has_no_text(printed, tiny):
    train_anew(tiny("norm=none", "train.steps=0", "model.init_scale=1e13"))
    with pytest.raises(UserError, match="the model's logits are not finite; use another checkpoint"):
        printed("temperature=0")
