"""Attention over rows laid end to end: three ways, tried in order of expected speed, the first right one is taken.

Dimension letters: T tokens in all rows, B rows, H heads, D features of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

# Relative L2 error of a probe against equal-length attention; half precisions round the output itself.
PROBE_TOLERANCE = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}
_PROBE_LENGTHS = (17, 9, 9, 1)


@dataclass(frozen=True, slots=True)
class Packing:
    """Where the rows of a packed batch begin and end.

    The device tensors feed kernels; the host's copies spare a synchronisation where a shape is needed.

    Attributes:
        offsets: ``[B + 1]`` int32 on the device, first 0, last T.
        lengths: tokens of each row, on the host, longest first.
    """

    offsets: Tensor
    lengths: list[int]

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return max(self.lengths)

    @property
    def shortest(self) -> int:
        """Tokens of the shortest row."""
        return min(self.lengths)


Attention = Callable[[Tensor, Tensor, Tensor, Packing], Tensor]
"""From q, k, v ``[T, H, D]`` and their packing to the context ``[T, H, D]``."""


def flash_varlen(q: Tensor, k: Tensor, v: Tensor, packing: Packing) -> Tensor:
    """Torch's own variable-length FlashAttention (newer torch, CUDA, half precisions)."""
    from torch.nn.attention.varlen import varlen_attn  # not in every torch that runs the rest

    out = varlen_attn(q, k, v, packing.offsets, packing.offsets, packing.longest, packing.longest)
    if not isinstance(out, Tensor):
        raise TypeError(f"varlen_attn returned {type(out).__name__}, expected a tensor")
    return out


def jagged_sdpa(q: Tensor, k: Tensor, v: Tensor, packing: Packing) -> Tensor:
    """Scaled dot product attention on jagged nested tensors, ``[B, H, (row), D]`` to torch."""
    offsets = packing.offsets.long()

    def nest(x: Tensor) -> Tensor:
        # Its kernels refuse the strided slices of a fused projection. Without the known extremes torch reads them back
        # from the device in every layer.
        nested = torch.nested.nested_tensor_from_jagged(
            x.contiguous(), offsets=offsets, min_seqlen=packing.shortest, max_seqlen=packing.longest
        )
        return nested.transpose(1, 2)

    context = functional.scaled_dot_product_attention(nest(q), nest(k), nest(v))
    return context.transpose(1, 2).contiguous().values()


def equal_length_sdpa(q: Tensor, k: Tensor, v: Tensor, packing: Packing) -> Tensor:
    """Ordinary attention over each run of rows of one length: packed rows are sorted, so runs are plain slices."""
    pieces = []
    start = first = 0
    while first < len(packing.lengths):
        length = packing.lengths[first]
        last = first
        while last < len(packing.lengths) and packing.lengths[last] == length:
            last += 1
        stop = start + (last - first) * length
        run = [x[start:stop].view(last - first, length, *x.shape[1:]).transpose(1, 2) for x in (q, k, v)]
        context = functional.scaled_dot_product_attention(run[0], run[1], run[2])  # [rows of the run, H, length, D]
        pieces.append(context.transpose(1, 2).flatten(0, 1))
        start, first = stop, last
    return torch.cat(pieces)


@dataclass(frozen=True, slots=True)
class Choice:
    """The attention that was taken.

    Attributes:
        name: as recorded.
        run: the function.
        passed_over: the faster ones that could not be used, each with its reason.
    """

    name: str
    run: Attention
    passed_over: list[str]


def choose_attention(device: torch.device, dtype: torch.dtype, heads: int, head_dim: int) -> Choice:
    """Tries the fast ways on a small random batch and takes the first that runs and is right.

    Torch releases differ in which of them they offer for which precision, so a probe decides, never a version number.
    """
    if device.type == "cpu":
        return Choice("equal-length runs", equal_length_sdpa, ["flash varlen: needs CUDA", "jagged SDPA: needs CUDA"])
    passed_over: list[str] = []
    candidates: list[tuple[str, Attention]] = [("flash varlen", flash_varlen), ("jagged SDPA", jagged_sdpa)]
    for name, run in candidates:
        try:
            error = probe_error(run, device, dtype, heads, head_dim)
        except Exception as problem:  # whatever a kernel raises for an unsupported case, the next way is there
            passed_over.append(
                f"{name}: {type(problem).__name__}: {str(problem).splitlines()[0][:120] if str(problem) else ''}"
            )
            continue
        if error <= PROBE_TOLERANCE[dtype]:
            return Choice(name, run, passed_over)
        passed_over.append(f"{name}: relative error {error:.1e} on the probe")
    return Choice("equal-length runs", equal_length_sdpa, passed_over)


def probe_error(run: Attention, device: torch.device, dtype: torch.dtype, heads: int, head_dim: int) -> float:
    """Returns the relative L2 error of ``run`` against fp32 equal-length attention on one small random batch."""
    lengths = list(_PROBE_LENGTHS)
    generator = torch.Generator().manual_seed(3)
    # Strided like the slices of the fused projection, for a way may take only contiguous tensors.
    fused = torch.randn(sum(lengths), 3, heads, head_dim, generator=generator).to(device, dtype)
    q, k, v = fused.unbind(1)
    offsets = torch.tensor([0, *lengths]).cumsum(0).to(device, torch.int32)
    packing = Packing(offsets, lengths)
    expected = equal_length_sdpa(q.float(), k.float(), v.float(), packing)
    error = (run(q, k, v, packing).float() - expected).norm() / expected.norm()
    return float(error) if bool(torch.isfinite(error)) else float("inf")
