"""Where random numbers start: every draw is a pure function of (seed, what it is for, where).

Nothing then depends on what was drawn before it: a resumed run needs no stored generator state, evaluation
cannot shift the training data, and two runs of one seed see the same batches and initial weights whatever
their norm.
"""

import hashlib
import json


def seed_for(seed: int, stream: str, *where: int | str) -> int:
    """The 63-bit seed of one stream, e.g. ``seed_for(0, "dropout", step, micro_batch)``.

    A hash, not a sum: the streams of seeds s and s+1 share nothing.
    """
    key = json.dumps([seed, stream, *where]).encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") >> 1
