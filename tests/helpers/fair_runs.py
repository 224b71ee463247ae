"""Runs of a fair comparison, of which two keys were tuned, with chosen losses."""

from tests.helpers.run_folders import several

SEVERAL = "tuned=[optim.learning_rate,model.init]"
FAR = "optim.learning_rate=1e-2 model.init=xavier"
NEAR = "optim.learning_rate=3e-3 model.init=gpt2"


def fair_runs(folder, norm, best, ends, borrowed=None, worse=None):
    """Return trials of two settings in two rounds, compared runs at ``best``, and runs at the baseline's."""
    trials = {
        f"norm={norm} train.steps=10 {each}": [2.1 - 0.1 * (each == best)] for each in (worse or FAR, NEAR)
    }
    trials |= {f"norm={norm} train.steps=20 {best}": [2.0, 2.0]}
    final = {f"norm={norm} train.steps=20 {best} {SEVERAL}": ends}
    if borrowed:
        final |= {f"norm={norm} train.steps=20 {NEAR} {SEVERAL} settings_of=layernorm": borrowed}
    return several(folder / "a", trials) + several(folder / "b", final, first=10)
