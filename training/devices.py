"""Several devices, one process each (``accelerate launch``): only vectors and gradients travel between them.

Each process encodes its share of a batch. The vectors of all are gathered, each process computes the loss of the whole
batch, and its own vectors alone carry a gradient; so the sum over processes is the gradient of the whole batch.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from accelerate import PartialState
from accelerate.utils import gather, reduce
from torch import Tensor

from sentport.errors import EngineError


class Devices:
    """The processes of this training.

    Args:
        device: ``auto``, ``cpu`` or ``cuda``.

    Attributes:
        device: Where this process computes.
        process: Its number.
        processes: How many there are.

    Raises:
        EngineError: When the device is not there.
    """

    def __init__(self, device: str = "auto") -> None:
        if device not in ("auto", "cpu", "cuda"):
            raise EngineError(f"device {device!r} is unknown to training; it knows auto, cpu, cuda")
        if device == "cuda" and not torch.cuda.is_available():
            raise EngineError(
                "device cuda was asked for, but torch finds no CUDA; `sentport doctor` says what is missing"
            )
        self._state = PartialState(cpu=device == "cpu" or not torch.cuda.is_available())
        self.device = self._state.device
        self.process = self._state.process_index
        self.processes = self._state.num_processes

    @property
    def is_first(self) -> bool:
        """Whether this process evaluates, writes and speaks for all."""
        return bool(self.process == 0)

    def wait(self) -> None:
        """Go on when all processes have come here."""
        self._state.wait_for_everyone()

    def gather(self, own: Tensor) -> Tensor:
        """``[N, …]`` of each process to ``[N * processes, …]``; of these rows, the own ones keep their graph."""
        if self.processes == 1:
            return own
        joint = gather(own.detach())
        start, end = self.process * len(own), (self.process + 1) * len(own)
        return torch.cat([joint[:start], own, joint[end:]])

    def reduce_gradients(self, parameters: Iterable[Tensor], how: str) -> None:
        """Put the ``sum`` or ``mean`` of all processes' gradients in place of each one's own."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if self.processes == 1 or not gradients:
            return
        joint = reduce(torch.cat([gradient.flatten() for gradient in gradients]), how)
        for gradient, part in zip(gradients, joint.split([one.numel() for one in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))
