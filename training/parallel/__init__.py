"""Several processes that train one model: ranks, DDP and FSDP."""
