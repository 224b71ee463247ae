"""Benchmarks, side by side with nanoGPT, each started with one command: ``python -m bench.train --help``.

    bench.train        training tokens/s               bench.norms        the cost of each norm
    bench.sample       sampling tokens/s               bench.memory       memory: long run, large corpus
    bench.quality      wall time to a loss; curves     bench.page         results/performance.md
    bench.ablation     eight runs of an ablation       bench.compiling    what compiling costs and gains

Each prints tables and writes a JSON file with every raw value. Our programs and nanoGPT's run in
turn, as child processes. ``--peer`` names a checkout of nanoGPT.
"""
