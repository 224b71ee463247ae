"""train.py that dies at one of the file-system calls of its saves: at the DIE_AT-th, counted from 1, before
it or, with DIE_AFTER, right after it. Of a whole file written at once (by safetensors) half is there before.

Without DIE_AT it prints its calls.
"""

import io
import os
import signal

import safetensors.torch

import train
from rundir import checkpoint_file

AT, AFTER = int(os.environ.get("DIE_AT", "0")), "DIE_AFTER" in os.environ
CALLS = [(os, name) for name in ("open", "fsync", "chmod", "replace", "unlink")]
CALLS += [(io, "open"), (safetensors.torch, "save_file")]
calls: list[str] = []
saving = False


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def watched(module, name: str):
    real = getattr(module, name)

    def call(*arguments, **options):
        if not saving:
            return real(*arguments, **options)
        file = arguments[1] if name == "save_file" else arguments[0]
        if name == "fsync":
            file = os.readlink(f"/proc/self/fd/{file}")
        calls.append(f"{module.__name__.split('.')[0]}.{name} {os.path.basename(str(file))}")
        if len(calls) == AT and not AFTER and name != "save_file":
            die()
        result = real(*arguments, **options)
        if len(calls) == AT:
            if not AFTER:
                os.truncate(arguments[1], os.path.getsize(arguments[1]) // 2)
            die()
        return result

    return call


def save(*arguments):
    global saving
    saving = True
    try:
        return real_save(*arguments)
    finally:
        saving = False


if __name__ == "__main__":
    for module, name in CALLS:
        setattr(module, name, watched(module, name))
    real_save, checkpoint_file.save = checkpoint_file.save, save
    try:
        train.main()
    finally:
        print("calls:", *calls, sep="\n")
