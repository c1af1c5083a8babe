"""What our own engines share as contestants: tokenise, plan, run, put rows back in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.contestants import ROWS_PER_BATCH, Conditions, Vectors, Work
from sentport.bundle import ModelSpec
from sentport.engines import Engine
from sentport.errors import SentportError
from sentport.inputs import prompt_text
from sentport.scheduler import BatchPolicy, computed_tokens, plan_batches, run_batches
from sentport.tokenizer import Tokenizer, Tokens


@dataclass(frozen=True, slots=True)
class Parts:
    """An engine and what it needs to be fed with text."""

    engine: Engine
    tokenizer: Tokenizer
    spec: ModelSpec


class EngineContestant:
    """One of our engines under every batch policy.

    Args:
        name: As in the table.
        parts: The engine, opened.
    """

    policies: tuple[BatchPolicy | None, ...] = tuple(BatchPolicy)
    own_rows: tuple[int, ...] = (ROWS_PER_BATCH,)
    tokenises_apart = True

    def __init__(self, name: str, parts: Parts) -> None:
        self.name = name
        self._parts = parts
        self._texts: list[str] = []
        self._tokens: Tokens | None = None
        self._computed = 0
        self._prefix = prompt_text(parts.spec.prompts, parts.spec.default_prompt, None)

    def limit_sessions(self, sessions: int) -> None:
        """Have so many calls in flight at once; 0 leaves it to the engine.

        Raises:
            SentportError: When the engine has not so many.
        """
        engine = self._parts.engine
        if sessions not in (0, 1, engine.sessions):
            raise SentportError(
                f"{self.name} has {engine.sessions} sessions; expected that, 1, or 0 for its own choice"
            )
        if sessions == 1 < engine.sessions:  # one call at a time, with all threads
            engine.sessions, engine.threads = 1, engine.sessions * engine.threads
            self.name = f"{self.name}, 1 session"

    def conditions(self) -> Conditions:
        """What its figures depend on."""
        engine = self._parts.engine
        return Conditions(
            engine=engine.name,
            model=self._parts.spec.source,
            precision=engine.precision,
            layout=engine.layout,
            device=engine.device,
            sessions=engine.sessions,
            threads=engine.threads,
        )

    def prepare(self, texts: Sequence[str], work: Work) -> None:
        """Take the texts, and tokenise them where that is not part of the run."""
        self._texts = [self._prefix + text for text in texts]
        self._tokens = self._parts.tokenizer.encode(self._texts) if work.tokenised else None

    def run(self, work: Work) -> Vectors:
        """Vectors ``[N, dim]``: planning, padding and restoring the order are always inside."""
        if work.policy is None:
            raise SentportError(f"{self.name} has no batch policy of its own; name one of {_names(self.policies)}")
        tokens = self._tokens if work.tokenised else None
        tokens = tokens or self._parts.tokenizer.encode(self._texts)
        lengths = tokens.lengths  # [N]
        layout = self._parts.engine.layout
        batches = plan_batches(
            lengths, work.policy, token_budget=work.token_budget, rows_per_batch=work.rows_per_batch, layout=layout
        )
        self._computed = computed_tokens(lengths, batches, layout)
        return run_batches(self._parts.engine, tokens, batches, self._parts.spec.dim)

    def computed_tokens(self) -> int | None:
        """Tokens of the last run's batches as the engine lays them out."""
        return self._computed

    def close(self) -> None:
        """Free the engine."""
        self._parts.engine.close()


def _names(policies: Sequence[BatchPolicy | None]) -> str:
    return ", ".join(policy.value for policy in policies if policy)
