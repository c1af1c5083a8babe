"""Checkpoint to verified bundle: tracing, graph passes, the parity gate."""
