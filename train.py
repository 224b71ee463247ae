"""Train one GPT whose normalization is a choice.

    python train.py                                    the default: conf/config.yaml, on Shakespeare
    python train.py norm=NAME placement=NAME           a norm of conf/norm, elsewhere: conf/placement
    python train.py data=text data.path=FILE           another text
    python train.py -m norm=NAME,NAME seed=0,1         several runs, one after another
    torchrun --nproc_per_node=2 train.py               one run by several processes: training/parallel/
    python train.py --help                             every choice and default

Read it from the bottom: ``main`` finds or makes the run, ``train`` is the loop. Torch is imported inside
functions, as it takes a second: a typo, or a run that has already ended, is answered before that.
"""

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli import app
from cli.schema import RunConfig
from data.token_files import Prepared
from rundir import checkpoint_file, identity, wandb_sink
from rundir.environment import environment
from rundir.folder import OthersRun, Run, ended_here, has_ended, read_status
from rundir.metrics import Metrics, best_of, cut, losses
from rundir.outcome import report
from rundir.progress_line import ProgressLine
from rundir.schema import read_json
from system import signals
from training.divergence import Divergence, guessing
from training.load_data import tokens_of
from training.parallel import process_group
from training.parallel.ranks import Ranks, lost
from training.timing import Clock, is_due

if TYPE_CHECKING:
    from torch import Tensor

    from training.device import Compute
    from training.evaluation import Objective


def train(config: RunConfig, data: Prepared, compute: "Compute", run: Run, ranks: Ranks) -> None:
    """Train from where the run is to its last step; its folder then holds all there is to know."""
    import torch

    from diagnostics import causality, metric_names
    from diagnostics.activations import Activations, without_effects
    from diagnostics.statistics import on_host
    from diagnostics.weights import Weights
    from training import evaluation, state
    from training.batches import Feed
    from training.build import in_words, settled
    from training.compile import compiled
    from training.cost import worth_compiling
    from training.device import set_switches
    from training.dry_run import rehearsed
    from training.evaluation import cross_entropy
    from training.memory import check_room, lacking_memory, saves_of, size_of, training_sizes
    from training.optimizer import Updates, new_optimizers, rate_scale, warmup_steps

    wandb_mode = wandb_sink.wandb_mode(config) if ranks.first else "disabled"
    threads = set_switches(compute, config.train.threads)
    steps, tokens = config.train.steps, config.train.batch_size * config.model.block_size  # of a step
    vocab_size, lacking = data.tokenizer.vocab_size, training_sizes(config)
    feed = Feed(config, data, compute, ranks)
    with lacking_memory(lacking):
        micro_batch = next(feed.micro_batches(0))
        loss_of = partial(feed.loss, batch=micro_batch)
        evaluated = [[next(feed.windows(feed.large))]]
        evaluate = partial(evaluation.evaluate, loss_of=feed.loss, turns=evaluated, ranks=Ranks())
        view = rehearsed(config, vocab_size, compute, loss_of, evaluate, ranks)
        model = view.model
        with view.whole():
            some = any(True for _ in feed.as_in_training())
            estimating = evaluation.with_running_estimates(model, loss_of) if some else []
    objective: Objective = cross_entropy
    if worth_compiling(config, vocab_size, compute.device.type):
        accumulates = config.train.grad_accum > 1
        compiling = partial(feed.loss, view.net, micro_batch)
        objective = compiled(view.trained, compute, compiling, accumulates, ranks)
    optimizers = new_optimizers(view.trained, config.optim)
    wanted = metric_names.selection(config.stats.metrics, config.stats.sites)
    weights = Weights(view.trained, wanted)

    run.lock()
    if not config.fresh and ranks.told(has_ended(run.folder)):  # while the lock was another process's
        return
    with view.whole():
        start = 0 if config.fresh else state.resume(run.checkpoints, run.folder.name, view, optimizers, ranks)
        certificate = ranks.told(read_json(run.certificate) if start else {})
        certificate = certificate or causality.certificate(model, vocab_size)
    logged = ranks.told(losses(cut(run.metrics, start)) if ranks.first else None)
    best = best_of(logged)
    warm = warmup_steps(steps, config.schedule)
    patience = config.train.hopeless_after
    unlearned, origin = guessing(feed.windows(feed.large)), partial(feed.origin, view)
    divergence = Divergence(unlearned, warm, steps, patience, origin, logged)
    updates = Updates([*view.trained.parameters()], optimizers, config.train.grad_clip or math.inf)
    n_parameters = sum(p.numel() for p in model.parameters())
    computed = {
        "device": str(compute.device),
        "precision": compute.precision,
        "threads": threads,
        "compile": objective is not cross_entropy,
        "parameters": n_parameters,
        "settled": settled(config),
    }
    here = environment(config, data, computed)
    here |= {"overrides": app.arguments(), "ranks": ranks.count, "distributed": config.distributed}
    group = here["group"] = identity.group_name(config, compute.precision, data.fingerprint)
    size = size_of(state.model_tensors(model).values(), optimizers)
    if ranks.first:
        check_room(run.checkpoints, size, most=saves_of(config))
    run.open(config, here, start, best)
    going_on = f"; going on from step {start:,} of {steps:,}" if start else ""
    each = f"{ranks.count} ranks of " * (ranks.count > 1)
    print(f"{n_parameters:,} parameters, {each}{threads} threads{going_on}", flush=True)
    if here["settled"]:
        print(f"with {config.chosen()}: {in_words(here['settled'])}")
    if config.init_from and not start:
        print(state.begun_in_words(model, config.init_from))
    run.write(run.certificate, certificate)
    print(causality.in_words(certificate, config.chosen()), flush=True)

    def save(step: int) -> None:
        """Unless this step is saved, or some number is not finite: then the next loss will say so."""
        if step == run.status["saved"] or updates.missed:
            return
        moments, structure = state.optimizer_state(view.trained, optimizers)
        tensors = view.gathered(state.model_tensors(view.trained) | moments)
        if not ranks.told(state.all_finite(tensors)):
            return
        meta = checkpoint_file.Meta(
            step=step,
            config=config,
            tokenizer=data.tokenizer.spec,
            fingerprint=data.fingerprint,
            run=run.folder.name,
            optimizer=structure,
        )
        if ranks.first:
            metrics.sync()
            checkpoint_file.save(run.checkpoints, meta, tensors, best["step"] if best else None)
        run.write_status(step=step, saved=step)

    def evaluations(step: int) -> dict[str, float]:
        """What is measured on the validation split at ``step``, inside ``view.whole``."""
        turns = stop.watching(ranks.turns(feed.windows(feed.large)))
        found = {"val/loss": evaluation.evaluate(model, feed.loss, turns, ranks)}
        if estimating:
            alike = stop.watching(feed.as_in_training())
            on = evaluation.evaluate_on_batch_statistics(model, estimating, feed.loss, alike, ranks)
            found |= {"val/batch_stats_loss": on, "val/batch_stats_gap": on - found["val/loss"]}
        if step == steps:
            shown = progress.through(step, feed.whole_split(), len(data.val) - 1)
            turns = stop.watching(ranks.turns(shown))
            found["val/full_loss"] = evaluation.evaluate(model, feed.loss, turns, ranks)
        return found

    clock = Clock(compute.synchronize, logged[-1]["seconds"] if logged else 0.0)
    timed_steps = 0  # updates since the last row with a loss
    with (
        wandb_sink.copied_to_wandb(wandb_mode, config, run.folder, group, start),  # a signal ends its wait
        signals.deferred(ranks.largest) as stop,
        run.recording(),
        Metrics(run.metrics) as metrics,
        ProgressLine(start, steps) as progress,
        lacking_memory(lacking),
        lost(),
    ):
        for step in range(start, steps + 1):  # one more than there are updates: the last evaluates and saves
            last = step == steps
            evaluates = last or is_due(step, config.train.eval_every)
            saves = last or (step > 0 and is_due(step, config.train.checkpoint_every))
            if (evaluates or saves) and (reason := divergence.missed(step, int(updates.missed))):
                run.write_status(state="diverged", step=step, reason=reason)  # a GPU does not tell by itself
                break
            row: dict[str, Any] = causality.leaks(certificate) if step == 0 else {}  # measured at this step

            try:  # a signal is looked at here only, where the model is that of this step
                stop.check()
                if evaluates:
                    ranks.same_buffers(view.trained)
                    with clock.aside("evaluation"), view.whole():
                        row |= evaluations(step)
            except signals.Interrupted:
                save(step)
                ranks.told()  # none ends before it is saved
                raise
            lowest = best["val/loss"] if best else math.inf
            if (step > 0 or last) and row.get("val/loss", math.inf) < lowest:
                best = {"step": step, "val/loss": row["val/loss"]}
            is_best = best is not None and best["step"] == step
            if saves or is_best:
                with clock.aside("checkpoints"):
                    save(step)

            if not last:
                rate = config.optim.learning_rate * rate_scale(step, steps, config.schedule)
                seen: dict[str, Tensor] = {}  # measured at this step, on the device
                if watching := is_due(step, config.stats.every, dense_start=True):
                    histograms = is_due(step, config.stats.histograms_every)
                    looking = Activations(model, wanted, histograms)
                    with clock.aside("statistics"), view.whole(), looking as seen:
                        batch = next(feed.micro_batches(step))
                        (feed.loss(without_effects(model), batch) / ranks.count).backward()
                loss = torch.zeros((), device=compute.device)
                for micro, batch in enumerate(feed.micro_batches(step), start=1):
                    view.averages(micro == config.train.grad_accum)  # once a step
                    micro_loss = feed.loss(view.net, batch, objective) / config.train.grad_accum
                    micro_loss.backward()  # adds to the gradients
                    loss += micro_loss.detach()
                if watching:
                    with clock.aside("statistics"):
                        seen |= weights.before()
                grad_norm = updates.step(ranks.mean(loss), rate)
                timed_steps += 1
                if watching:
                    with clock.aside("statistics"):
                        seen |= weights.after()
                if is_due(step, config.train.log_every) or updates.known_to_have_ended():
                    seen = {"missed": updates.missed, "train/loss": loss, "train/grad_norm": grad_norm} | seen
                row |= on_host(seen)  # by one copy, for which the device must have done its work
                if "train/loss" in row:
                    row |= {"train/lr": rate, "train/tokens_per_s": timed_steps * tokens / clock.lap()}
                    timed_steps = 0
                if watching:
                    row["stats/overhead"] = clock.spent["statistics"] / clock.training()

            missed = int(row.pop("missed", 0))
            if row:
                metrics.write({"step": step, "tokens": step * tokens, "seconds": clock.seconds()} | row)
                progress.update(step, row)
                final, memory = row.get("val/full_loss"), compute.peak_memory()
                run.write_status(step=step, best=best, final=final, peak_memory=memory)
            if reason := divergence.missed(step + 1, missed) or divergence.reason({"step": step} | row):
                run.write_status(state="diverged", reason=reason)
                break


@app.command("config", RunConfig, outlives_readers=True)
def main(config: RunConfig) -> float:
    with process_group.together(config.device) as ranks:
        return one_run(config, ranks)


def one_run(config: RunConfig, ranks: Ranks) -> float:
    with ranks.in_turn():
        data = tokens_of(config)
    data.check_length(config.model.block_size)
    found = None if config.fresh else ended_here(config, data.fingerprint)
    if found := ranks.told(str(found) if found else None):
        return report(Path(found), already=True)
    print(
        f"{config.chosen()} seed={config.seed}: "
        f"{len(data.train):,} training tokens, vocabulary of {data.tokenizer.vocab_size}",
        flush=True,
    )
    from training import device

    compute = device.choose(config.device, config.precision)
    folder = identity.run_folder(config, compute.precision, data.fingerprint)
    if not config.fresh and ranks.told(has_ended(folder)):
        return report(folder, already=True)
    new = "" if read_status(folder) else "a new run, "
    print(f"{folder}: {new}on {compute.device} in {compute.precision}", flush=True)
    try:
        with Run(folder) if ranks.first else OthersRun(folder) as run:
            ranks.told()  # the first one was not refused
            train(config, data, compute, run, ranks)
    finally:
        compute.forget()
    ranks.told()  # the first one has written how it ended
    return report(folder)


if __name__ == "__main__":
    main()
