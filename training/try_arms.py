"""Try the arms of a study: build the model of each config, and run it on its first micro-batch.

    python -m training.try_arms < CONFIGS.json

stdin is a JSON list of configs, as in a run's config.yaml; the last line of stdout is a list of answers:
{"precision": what auto becomes here, "digest": a hash of what the model computes, "parameters": their
number}, or {"error": the line with which its run would end}. study/plan.py starts this program before it
declares a study.
"""

import json
import sys
from contextlib import redirect_stdout
from typing import Any

import torch
from torch import Tensor

from cli.errors import checked, error_line
from cli.schema import RunConfig
from model import GPT
from model.seeds import seed_torch
from training import device
from training.batches import Batches, MicroBatch
from training.build import explained
from training.checkpoint import digest
from training.ddp import Ranks
from training.loss import Loss
from training.open_run import load_tokens
from training.setup import try_model

ROWS = 4  # of the micro-batch are used: in fp32, all of them may not fit into memory


def answer(plain: dict[str, Any]) -> dict[str, Any]:
    """Try one config. Return what was found or, if the user made a mistake, the error's line."""
    try:
        return tried(checked(RunConfig, plain))
    except Exception as error:
        if (line := error_line(error)) is None:
            raise
        return {"error": line}


def tried(config: RunConfig) -> dict[str, Any]:
    """Build and try a model as training/setup.py does. Raises UserError."""
    tokens = load_tokens(config, Ranks())
    compute = device.choose(config.device, config.precision)
    device.set_switches(config.train.threads, config.deterministic)
    batches = Batches(config, tokens, compute, Ranks())
    with device.memory_explained(device.out_of_memory_message(config)):
        model = try_model(config, batches, Loss(compute))
        with explained(config):
            computes = behaviour(model, batches.first_micro_batch(0))
    parameters = sum(p.numel() for p in model.parameters())
    return {"precision": compute.precision, "digest": computes, "parameters": parameters}


def behaviour(model: GPT, batch: MicroBatch) -> str:
    """Return a digest of logits and gradients in fp32, equal for two models that compute the same.

    The initial logits alone do not tell models apart: with rezero they do not depend on any norm, and running
    estimates or a gradient that is cut off show only later. So all parameters are moved a little first. The
    digest covers two forwards in training mode, the gradients of the first, and a forward in evaluation mode.
    This changes the model.
    """
    generator, x = torch.Generator().manual_seed(0), batch.x[:ROWS]

    def logits() -> Tensor:
        seed_torch(batch.dropout_seed)
        return model(x)

    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(0.02 * noise.to(parameter.device, parameter.dtype))
    first = logits()
    first.square().mean().backward()
    tensors = [first, *(p if p.grad is None else p.grad for p in model.parameters())]
    with torch.no_grad():
        tensors += [logits(), model.eval()(x)]
    return digest({str(i): tensor.float().cpu().contiguous() for i, tensor in enumerate(tensors)})


if __name__ == "__main__":
    with redirect_stdout(sys.stderr):  # a user's norm may print; stdout is for the answers
        answers = [answer(plain) for plain in json.load(sys.stdin)]
    print(json.dumps(answers))
