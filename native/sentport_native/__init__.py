"""Kernels for encoders of BERT's shape on a CPU, behind sentport's engine ``native``."""

from sentport_native._native import Model, check, levels, speed

__all__ = ["Model", "check", "levels", "speed"]
