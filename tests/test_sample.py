"""Sampling needs the checkpoint alone, and follows its settings."""

from pathlib import Path

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from cli.schema import ModelSource
from data.tokenizers import from_spec
from model.generate import draw, window_start
from tests.conftest import LETTERS, ROOT, TINY
from tests.helpers.contract import check_refused
from tests.helpers.runs import train_anew
from training import checkpoint as checkpoint_file
from training import load_run as load_model
from training.build import build_model
from training.run_folder import read_status


def logits(rows: int = 5, vocab_size: int = 11) -> torch.Tensor:
    return torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(0)) * 2


def uniform(rows: int) -> torch.Tensor:
    return torch.rand(rows, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("temperature", [0, 1e-6, 1e-40, 5e-324])
def test_temperature_0_and_next_to_0_give_the_likeliest_token(temperature):
    assert torch.equal(draw(1e6 * logits(), temperature, None, None, uniform(5)), logits().argmax(-1))


def drawn_from(temperature: float, top_k: int | None, top_p: float | None) -> set[int]:
    """Return every token that a draw may give: the uniform numbers go from 0 to nearly 1 in small steps."""
    every = torch.linspace(0, 1 - 1e-9, 20_000, dtype=torch.float64)[:, None]
    return {*draw(logits(1).expand(len(every), -1), temperature, top_k, top_p, every).tolist()}


@given(st.integers(1, 20), st.floats(1.5, 3))
def test_top_k_draws_the_k_likeliest(k, temperature):
    assert drawn_from(temperature, k, None) == {*logits(1)[0].topk(min(k, 11)).indices.tolist()}


@given(st.floats(0.01, 0.99))
def test_top_p_draws_the_fewest_that_reach_p(p):
    probabilities, order = logits(1)[0].softmax(-1).sort(descending=True)
    cumulative = probabilities.cumsum(-1)
    assume((cumulative - p).abs().min() > 1e-4)
    kept = 1 + int((cumulative < p).sum())
    assert drawn_from(1.0, None, p) == {*order[:kept].tolist()}


def test_what_top_k_leaves_out_does_not_change_the_odds_of_the_others():
    n = 200_000
    drawn = draw(logits(1).expand(n, -1), 1.0, 3, None, uniform(n))
    likeliest = logits(1)[0].topk(3)
    frequencies = torch.bincount(drawn, minlength=11)[likeliest.indices] / n
    assert (frequencies - likeliest.values.softmax(-1)).abs().max() < 5 / n**0.5 / 2


def test_frequencies_are_the_softmax_at_a_temperature():
    n = 200_000
    drawn = draw(logits(1).expand(n, -1), 2.0, None, None, uniform(n))
    expected = (logits(1)[0] / 2.0).softmax(-1)
    frequencies = torch.bincount(drawn, minlength=11) / n
    assert (frequencies - expected).abs().max() < 5 * (expected.max() / n).sqrt()  # five standard errors


@pytest.fixture
def trained(tiny, tmp_path):
    config = tiny("train.steps=20", "train.eval_every=5", "norm=batchnorm")
    folder = train_anew(config)
    for entry in (tmp_path / "cache", tmp_path / "text.txt"):  # sampling needs neither
        entry.rename(tmp_path / f"gone-{entry.name}")
    return folder


def test_the_command_prints_the_prompt_and_max_new_tokens_tokens(command, succeed, trained):
    done = command("sample.py", f"run={trained}", "prompt=Now is ${x}", "max_new_tokens=7")
    line = (
        "error: prompt: character '$' (U+0024) at position 7 is not in the vocabulary of 25 characters; use"
    )
    check_refused(done, line)  # the text is not interpolated
    done = succeed("sample.py", f"run={trained}", "prompt=Now is", "max_new_tokens=7", "num_samples=2")
    first, second = done.stdout.split("---------------\n")
    assert [len(text) for text in (first, second)] == [len("Now is") + 7 + 1] * 2
    assert first.startswith("Now is")
    assert first != second
    assert command("sample.py", "prompt=Now is", "max_new_tokens=7", "num_samples=2").stdout == done.stdout
    assert command("sample.py", "prompt=Now is", "max_new_tokens=7", "seed=1").stdout != first
    assert (
        command("sample.py", "prompt=Now is", "max_new_tokens=7").stdout == first
    )  # each sample has a random stream of its own
    done = command("sample.py", "prompt=Now is", "max_new_tokens=0", "num_samples=2")
    assert done.stdout == "Now is\n---------------\nNow is\n"


def likeliest(folder: Path, prompt: str, n: int) -> str:
    """Return the prompt and its n likeliest next tokens, by the model of step 20 without a KV cache."""
    loaded = checkpoint_file.load(checkpoint_file.path_of(folder / "checkpoints", 20))
    tokenizer = from_spec(loaded.meta.tokenizer)
    model = build_model(loaded.meta.config, tokenizer.vocab_size).eval()
    unused = model.load_state_dict(loaded.tensors, strict=False)
    assert unused.missing_keys == ["head.weight"]  # tied
    ids = tokenizer.encode(prompt).tolist()
    for _ in range(n):
        ids.append(int(model(torch.tensor([ids[window_start(len(ids), 8) :]]))[0, -1].argmax()))
    return tokenizer.decode(ids).decode() + "\n"


def test_a_norm_that_looks_at_other_tokens_is_sampled_without_a_kv_cache(command, tiny):
    past_mean = ("norm=none", "norm._target_=tests.helpers.model.MinusPastMean")
    folder = train_anew(tiny(*past_mean, "train.steps=20"))
    greedy = ("prompt=Now is", "max_new_tokens=12", "num_samples=2", "temperature=0")
    done = command("sample.py", f"run={folder}", "which=last", "trust=tests", *greedy, PYTHONPATH=str(ROOT))
    assert done.stdout.split("---------------\n") == [likeliest(folder, "Now is", 12)] * 2, done.stderr
    assert "this norm cannot use the KV cache: " in done.stderr


def test_greedy_text_is_the_argmax_of_the_restored_model_in_evaluation_mode(command, trained):
    expected = likeliest(trained, "Now is", 12)
    common = (f"run={trained}", "which=last", "prompt=Now is", "max_new_tokens=12")
    for same in (["temperature=0"], ["top_k=1", "temperature=5"], ["top_p=1e-6"], ["temperature=1e-4"]):
        assert command("sample.py", *common, *same).stdout == expected, same
    assert command("sample.py", *common, "temperature=5").stdout != expected
    in_bf16 = command("sample.py", *common, "temperature=0", "precision=bf16")
    assert (in_bf16.returncode, len(in_bf16.stdout)) == (0, len(expected)), in_bf16.stderr


@pytest.mark.slow
def test_characters_of_several_tokens_are_printed_whole(command, succeed, tiny, tmp_path):
    """A byte pair encoding of 256 tokens has one per byte, so é, 漢 and 🙂 are two to four tokens each."""
    (tmp_path / "text.txt").write_text("né 漢字 🙂 " * 300, encoding="utf-8")
    options = ("data.tokenizer=bpe", "data.vocab_size=256", "train.steps=150", "optim.learning_rate=1e-2")
    folder = train_anew(tiny(*options, "model.n_embd=32", "model.block_size=16"))
    greedy = (f"run={folder}", "which=last", "temperature=0")
    done = succeed("sample.py", *greedy, "prompt=né 漢", "max_new_tokens=60")
    assert done.stdout.startswith("né 漢字 🙂 né 漢字 🙂 né"), done.stdout
    cut = command("sample.py", *greedy, "prompt=né 漢字 ", "max_new_tokens=2")
    assert cut.stdout == "né 漢字 \ufffd\n"  # half a 🙂


@pytest.mark.slow
def test_a_prompt_may_come_from_a_file_and_an_empty_one_starts_like_none(command, trained, tmp_path):
    (tmp_path / "prompt.txt").write_bytes(b"Now is\nthe")
    assert command("sample.py", "prompt_file=prompt.txt", "max_new_tokens=0").stdout == "Now is\nthe\n"
    (tmp_path / "empty").write_text("")
    prompts = ([], ["prompt="], ["prompt_file=empty"])
    [text] = {command("sample.py", *prompt, "max_new_tokens=5").stdout for prompt in prompts}
    assert len(text) == 1 + 5 + 1


def test_best_last_or_a_file_is_loaded_unless_it_is_damaged(command, trained):
    steps = checkpoint_file.saved_steps(trained / "checkpoints")
    best = read_status(trained)["best"]["step"]
    few = ("temperature=0", "max_new_tokens=3")
    assert f"step {best}, cpu, fp32\n" in command("sample.py", *few).stderr
    assert f"step {steps[-1]}, " in command("sample.py", "which=last", *few).stderr
    file = checkpoint_file.path_of(trained / "checkpoints", steps[0])
    assert f"step {steps[0]}, " in command("sample.py", f"checkpoint={file}", *few).stderr
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    check_refused(command("sample.py", f"checkpoint={file}"), f"error: {file}: damaged")


def test_a_norm_that_is_larger_than_a_block_is_loaded_if_it_stands_once(tiny):
    """Estimates for 128 positions are more numbers than a block has; rezero has them before the head only."""
    sizes = "model.block_size=128", "model.n_embd=4", "model.n_layer=8"
    config = tiny("norm=batchnorm_position", "placement=rezero", *sizes, "train.steps=1")
    run = str(train_anew(config))
    source = ModelSource(run=run, checkpoint=None, init_from=None, which="last", runs_dir="runs")
    checkpoint = load_model.load(source)
    model = load_model.load_model(checkpoint, from_spec(checkpoint.meta.tokenizer).vocab_size)
    assert model.block_size == 128


def test_a_checkpoint_that_its_run_removes_before_it_is_read_is_looked_for_again(trained, monkeypatch):
    first, second = checkpoint_file.saved_steps(trained / "checkpoints")[-2:]
    read = checkpoint_file.load

    def removed_first(path):
        checkpoint_file.path_of(trained / "checkpoints", second).unlink(missing_ok=True)
        return read(path)

    monkeypatch.setattr(checkpoint_file, "load", removed_first)
    source = ModelSource(run=str(trained), checkpoint=None, init_from=None, which="last", runs_dir="runs")
    assert load_model.load(source).meta.step == first


@pytest.mark.slow
def test_a_model_whose_logits_are_not_finite_has_no_text(command, tmp_path):
    (tmp_path / "text.txt").write_text(LETTERS)
    command(
        "train.py",
        *TINY,
        "data=text",
        "data.path=text.txt",
        "norm=none",
        "train.steps=0",
        "model.init_scale=1e13",
    )
    check_refused(command("sample.py", "temperature=0"), "the model's logits are not finite; use another one")
