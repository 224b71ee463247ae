"""Benchmarks, side by side with nanoGPT, each run with one command: ``python -m bench.train --help``.

    bench.train        training tokens/s                    bench.startup     seconds to the first step
    bench.sample       sampling tokens/s                    bench.ablation    8 runs of a norm ablation
    bench.norms        what a norm costs                    bench.quality     wall time to a validation loss
    bench.statistics   what looking layer by layer costs    bench.scaling     sizes and memory

    bench.page         docs/performance.md, of the results

Each says what it measures in its first lines, shows a table and writes a JSON file with every raw value.
Both programs run as themselves, as processes of their own, in turn; nothing of nanoGPT is part of this
project, so ``--peer`` names a checkout of it.
"""
