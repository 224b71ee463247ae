"""Tests of what must be true on an NVIDIA GPU: make test-cuda."""
