"""Check that a norm keeps the contract of docs/own-norm.md, one promise a line.

    python -m scripts.check_norm norm=layernorm
    python -m scripts.check_norm --config-dir mine norm=l1 placement=peri model.qk_norm=l1

The other arguments are those of train.py; several norms, norm=l1,l2, are checked one after the other. The
model has the sizes of the run and is not trained; its tokens are random; all is computed on the CPU. The
program ends with status 1 if the norm breaks a promise."""

import sys

from cli import app, programs
from cli.schema import RunConfig
from system.terminal import announced

VOCABULARY = 65  # number of tokens; any number will do


def check(config: RunConfig) -> bool:
    """Print a line for each check. Return whether the norm passes all of them."""
    import torch

    from diagnostics.causality import random_tokens
    from diagnostics.norm_checks import CHECKS, outcome
    from diagnostics.norm_subject import Subject
    from training.build import build_model, norms_of

    rows, T = config.train.batch_size // config.train.grad_accum, config.model.block_size
    subject = Subject(
        new_model=lambda: build_model(config, VOCABULARY),
        norms=lambda model: norms_of(config, model),
        vocab_size=VOCABULARY,
        tokens=random_tokens(VOCABULARY, rows, T, torch.Generator().manual_seed(config.seed)),
    )
    subject.new_model()  # raises if a setting is wrong
    passes = True
    for name, keeps in CHECKS.items():
        with announced(f"{name}: checking", sys.stderr):  # compiling takes half a minute
            kept, remark = outcome(keeps, subject)
        print(f"{name:<14} {'yes' if kept else 'NO':<4} {remark}".rstrip(), flush=True)
        passes &= kept
    return passes


def main() -> None:
    _, arguments = programs.parser(__doc__, "scripts.check_norm").parse_known_args()
    passes = True
    with programs.running():
        for config in app.choices("config", RunConfig, arguments).values():
            print(config.label(), flush=True)
            passes &= check(config)
    sys.exit(not passes)


if __name__ == "__main__":
    main()
