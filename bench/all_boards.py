"""All that raw records have to show, in the order of a report."""

from __future__ import annotations

from collections.abc import Sequence

from bench import growth, load_board, pair_board, table7
from bench.boards import Board
from bench.encoder_board import encoder_boards
from bench.metrics import sections
from bench.records import Record


def all_boards(records: Sequence[Record]) -> list[Board]:
    """The boards of records of any benchmarks."""
    others = (part.board(records) for part in (growth, table7, pair_board, load_board))
    return [*encoder_boards(sections(records)), *(board for board in others if board)]
