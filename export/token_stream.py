"""Tokens laid end to end and their padded rectangle, and the ways between the two, as nodes of a graph.

Dimension letters: T tokens of all rows, pads included; B rows; L the longest row; N = T, and one spare pad more where
the rectangle has slots that no token fills. In its row of the rectangle a token stands where it stands among the row's
tokens, and the row's pads stand behind them all. So the rectangle is right-padded whatever the mask, and its columns
are the positions. No shape here depends on data other than the rows' lengths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir.tape import Tape

from export.tokenwise import BATCH, ROWS_FIRST, Dims

Attributes = Mapping[str, int | str | Sequence[int] | ir.TensorProtocol]


class TokenStream:
    """The arithmetic of one graph.

    Args:
        graph: Where nodes are added, at the end: it has to be sorted afterwards.
        ids: Packed ids ``[T]`` int64.
        mask: Packed attention mask ``[T]`` int64.
        lengths: Tokens of each row ``[B]`` int32.
    """

    def __init__(self, graph: ir.Graph, ids: ir.Value, mask: ir.Value, lengths: ir.Value) -> None:
        self._tape = Tape(graph)
        self._made = 0
        self._constants: dict[tuple[int, ...] | int, ir.Value] = {}
        self._tables: dict[tuple[int, ...], ir.Value] = {}
        total = self._op("Shape", [ids])  # [1] T
        self._rows = self._op("Shape", [lengths])  # [1] B
        counts = self._op("Cast", [lengths], {"to": ir.DataType.INT64})  # [B]
        longest = self._op("ReduceMax", [counts, self._constant([0])], {"keepdims": 1})  # [1]
        self._longest = self._op("Max", [longest, self._constant([1])])  # [1] L; no graph takes an empty axis
        area = self._op("Mul", [self._rows, self._longest])  # [1] slots of the rectangle
        place = self._count_to(total)  # [T]
        row, column = self._rows_and_columns(counts, mask, total, place)
        slot = self._op("Add", [self._op("Mul", [row, self._longest]), column])  # [T] each its own
        # A slot without a token takes the spare pad, which stands at T.
        self._token = self._op("ScatterElements", [self._op("Expand", [total, area]), slot, place])  # [B L]
        spare = self._op("Min", [self._op("Sub", [area, total]), self._constant([1])])  # [1] 0 or 1
        self._pad = self._filled(spare, 0)
        self._slot, self._row, self._column = (self.with_pad(values) for values in (slot, row, column))  # [N]

    def _rows_and_columns(
        self, counts: ir.Value, mask: ir.Value, total: ir.Value, place: ir.Value
    ) -> tuple[ir.Value, ir.Value]:
        """Row of each token, and its place in the row when the row's pads are moved to its end; both ``[T]``."""
        zero, one, axis = self._constant([0]), self._constant([1]), self._constant(0)
        ends = self._op("CumSum", [counts, axis])  # [B]
        starts = self._op("Sub", [ends, counts])  # [B]
        row = self._rows_of_tokens(counts, starts, ends, total)  # [T]
        tokens = self._op("CumSum", [mask, axis])  # [T] tokens that are no pads, up to and with this one
        tokens_0 = self._op("Concat", [zero, tokens], {"axis": 0})  # [T+1]
        before = self._op("Gather", [tokens_0, starts])  # [B] those of the rows before
        of_row = self._op("Sub", [self._op("Gather", [tokens_0, ends]), before])  # [B]
        rank = self._op("Sub", [tokens, self._op("Gather", [before, row])])  # [T] those of the row so far
        at = self._op("Sub", [place, self._op("Gather", [starts, row])])  # [T] place in the row
        pads_before = self._op("Sub", [at, rank])  # [T] right for a pad
        as_pad = self._op("Add", [self._op("Gather", [of_row, row]), pads_before])
        as_token = self._op("Sub", [rank, one])
        return row, self._op("Where", [self._op("Greater", [mask, zero]), as_token, as_pad])

    def _rows_of_tokens(self, counts: ir.Value, starts: ir.Value, ends: ir.Value, total: ir.Value) -> ir.Value:
        """Row of each token ``[T]``: the rectangle's row numbers, those of filled slots moved to the front.

        Every slot has a place of its own, so the scattering needs no reduction, which TensorRT's parser would refuse.
        """
        row = self._down(self._count_to(self._rows))  # [B, 1]
        column = self._count_to(self._longest)  # [L]
        slot = self._op("Add", [self._op("Mul", [row, self._longest]), column])  # [B, L]
        filled = self._op("Less", [column, self._down(counts)])  # [B, L]
        token = self._op("Add", [self._down(starts), column])  # [B, L]
        shift = self._op("Sub", [total, ends])  # [B]
        behind = self._op("Add", [slot, self._down(shift)])  # [B, L] T and the free slots before
        order = self._flat(self._op("Where", [filled, token, behind]))  # [B L]
        rows = self._flat(self._op("Expand", [row, self._op("Shape", [slot])]))  # [B L]
        return self._op("Slice", [self._op("ScatterElements", [rows, order, rows]), self._constant([0]), total])

    def with_pad(self, values: ir.Value) -> ir.Value:
        """``[T]`` int64 to ``[N]``: the spare pad gets a zero."""
        return self._op("Concat", [values, self._pad], {"axis": 0})

    def zeros(self) -> ir.Value:
        """``[N]`` int64."""
        return self._filled(self._op("Shape", [self._slot]), 0)

    def as_one_row(self, values: ir.Value) -> ir.Value:
        """``[N]`` to ``[1, N]``: all tokens as the one row of a batch, which a tokenwise node takes as it is."""
        return self._op("Unsqueeze", [values, self._constant([0])])

    def to_rectangle(self, value: ir.Value, dims: Dims) -> ir.Value:
        """``[1, N, …]`` to ``[B, L, …]`` or ``[L, B, …]``, whichever ``dims`` say."""
        flat = self._op("Gather", [value, self._token], {"axis": 1})  # [1, B L, …]
        rest = _numbers(dims[2:])
        if rest not in self._tables:
            parts = [self._rows, self._longest, *([self._constant(rest)] if rest else [])]
            self._tables[rest] = self._op("Concat", parts, {"axis": 0})
        table = self._op("Reshape", [flat, self._tables[rest]])  # [B, L, …]
        return table if dims[:2] == ROWS_FIRST else self._swapped(table, len(dims))

    def to_tokens(self, value: ir.Value, dims: Dims) -> ir.Value:
        """``[B, L, …]`` or ``[L, B, …]`` to ``[1, N, …]``."""
        table = value if dims[:2] == ROWS_FIRST else self._swapped(value, len(dims))
        flat = self._op("Reshape", [table, self._constant([1, -1, *_numbers(dims[2:])])])  # [1, B L, …]
        return self._op("Gather", [flat, self._slot], {"axis": 1})

    def spread(self, value: ir.Value, dims: Dims) -> ir.Value:
        """What rows or positions alone decide, ``[B, 1, …]`` or ``[1, L, …]`` in either order, to ``[1, N, …]``."""
        flat = self._op("Reshape", [value, self._constant([-1, *_numbers(dims[2:])])])  # [B, …] or [L, …]
        taken = self._op("Gather", [flat, self._row if BATCH in dims[:2] else self._column])  # [N, …]
        return self._op("Unsqueeze", [taken, self._constant([0])])

    def _swapped(self, value: ir.Value, rank: int) -> ir.Value:
        return self._op("Transpose", [value], {"perm": [1, 0, *range(2, rank)]})

    def _count_to(self, end: ir.Value) -> ir.Value:
        return self._op("Range", [self._constant(0), self._op("Squeeze", [end]), self._constant(1)])

    def _down(self, values: ir.Value) -> ir.Value:
        """``[B]`` to ``[B, 1]``."""
        return self._op("Unsqueeze", [values, self._constant([1])])

    def _flat(self, table: ir.Value) -> ir.Value:
        return self._op("Reshape", [table, self._constant([-1])])

    def _filled(self, shape: ir.Value, number: int) -> ir.Value:
        return self._op("ConstantOfShape", [shape], {"value": ir.tensor(np.array([number], np.int64))})

    def _constant(self, numbers: Sequence[int] | int) -> ir.Value:
        key = numbers if isinstance(numbers, int) else tuple(numbers)
        if key not in self._constants:
            tensor = ir.tensor(np.array(key, np.int64))
            self._constants[key] = self._tape.initializer(tensor, f"stream_constant_{len(self._constants)}")
        return self._constants[key]

    def _op(self, kind: str, inputs: Sequence[ir.Value], attributes: Attributes | None = None) -> ir.Value:
        self._made += 1
        return self._tape.op(kind, inputs, attributes, output=ir.Value(name=f"stream_{self._made}"))


def _numbers(dims: Dims) -> tuple[int, ...]:
    return tuple(dim for dim in dims if isinstance(dim, int))
