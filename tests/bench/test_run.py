"""The same-work rule, interleaving and raw records, with contestants that compute without a model."""

from __future__ import annotations

import json
import random
import resource
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from bench.cases import Case, Settings, Workload, in_turn, make_workload
from bench.contestants import Conditions, Vectors, Work
from bench.corpus import Corpus
from bench.judge import Rejected, examine, make_trials
from bench.metrics import sections
from bench.quality import make_questions
from bench.records import NotWritten, Record, Writer, read_records, run_conditions
from bench.run import Session
from sentport.errors import EngineError, SentportError
from sentport.evaluation.sts import StsPairs
from sentport.scheduler import BatchPolicy

DIM = 16
MAX_WORDS = 64
CONDITIONS = """
run date cpu cpu_cores system versions contestant engine model precision layout device device_asked device_name
sessions threads transport policy batch tokenisation_inside corpus corpus_source texts distinct_texts tokens
longest reference warmup repeats repeat order seconds prepare_s computed_tokens worst_cosine baseline
"""
SMART = Work(BatchPolicy.SMART)


def embed(text: str, limit: int = MAX_WORDS) -> Vectors:
    """A unit vector that depends on every word up to the limit and on its place; slow enough for a clock to see."""
    vector = np.ones(DIM)
    for place, word in enumerate(text.split()[:limit]):
        vector += np.random.default_rng(zlib.crc32(f"{place} {word}".encode())).standard_normal(DIM)
    return (vector / np.linalg.norm(vector)).astype(np.float32)


def embed_all(texts: Sequence[str]) -> Vectors:
    return np.stack([embed(text) for text in texts])


class Honest:
    name = "honest"
    policies: tuple[BatchPolicy | None, ...] = tuple(BatchPolicy)
    own_rows: tuple[int, ...] = ()
    tokenises_apart = True
    device = "cpu"

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.closed = False

    def conditions(self) -> Conditions:
        return Conditions("fake", "fake-model", "fp32", "padded", self.device, 1, 2)

    def prepare(self, texts: Sequence[str], work: Work) -> None:
        self.texts = list(texts)

    def run(self, work: Work) -> Vectors:
        return embed_all(self.texts)

    def computed_tokens(self) -> int:
        return 2 * sum(len(text.split()) for text in self.texts)

    def close(self) -> None:
        self.closed = True


class Zeros(Honest):
    def run(self, work: Work) -> Vectors:
        return np.zeros((len(self.texts), DIM), np.float32)


class NotFinite(Honest):
    def run(self, work: Work) -> Vectors:
        vectors = super().run(work)
        vectors[1, 3] = np.nan
        return vectors


class TooFew(Honest):
    def run(self, work: Work) -> Vectors:
        return super().run(work)[:-1]


class ByPosition(Honest):
    """Answers every call with what it computed first."""

    def __init__(self) -> None:
        super().__init__()
        self.first: Vectors | None = None

    def run(self, work: Work) -> Vectors:
        if self.first is None:
            self.first = super().run(work)
        return np.resize(self.first, (len(self.texts), DIM))


class ByBeginning(Honest):
    """Takes texts with the same first words for the same text."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[str, Vectors] = {}

    def run(self, work: Work) -> Vectors:
        keys = [" ".join(text.split()[:2]) for text in self.texts]
        return np.stack([self.known.setdefault(key, embed(text)) for key, text in zip(keys, self.texts, strict=True)])


class Caches(Honest):
    """Right answers, but a text seen before costs nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[str, Vectors] = {}

    def run(self, work: Work) -> Vectors:
        for text in self.texts:
            if text not in self.known:
                self.known[text] = embed(text)
        return np.stack([self.known[text] for text in self.texts])


class SkipsLong(Honest):
    def run(self, work: Work) -> Vectors:
        vectors = super().run(work)
        vectors[[len(text.split()) > 30 for text in self.texts]] = 0
        return vectors


class CutsShort(Honest):
    def run(self, work: Work) -> Vectors:
        return np.stack([embed(text, MAX_WORDS // 4) for text in self.texts])


class WorksEarly(Honest):
    def prepare(self, texts: Sequence[str], work: Work) -> None:
        self.texts = list(texts)
        self.done = embed_all(texts)

    def run(self, work: Work) -> Vectors:
        return self.done


class NotNormalised(Honest):
    def run(self, work: Work) -> Vectors:
        return 1.5 * super().run(work)


class Elsewhere(Honest):
    name = "elsewhere"
    device = "cuda"


class Breaks(Honest):
    name = "breaks"

    def run(self, work: Work) -> Vectors:
        raise RuntimeError("no memory left\non this device")


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    words = [f"w{number}" for number in range(50)]
    draw = np.random.default_rng(3)
    texts = tuple(" ".join(draw.choice(words, size)) for size in draw.integers(4, 14, 40))
    return Corpus("made", "random words", texts)


@pytest.fixture(scope="module")
def workload(corpus: Corpus) -> Workload:
    return workload_of(corpus)


@pytest.fixture(scope="module")
def large(corpus: Corpus) -> Workload:
    """Enough texts for a clock to tell a cache from a busy machine."""
    texts = tuple(f"{text} {number}" for number in range(4) for text in corpus.texts)
    return workload_of(Corpus("large", "random words", texts))


def workload_of(corpus: Corpus) -> Workload:
    lengths = np.array([len(text.split()) for text in corpus.texts])
    return make_workload(corpus, lengths, MAX_WORDS, embed_all, "itself")


def session_of(writer: Writer, shared: Record, repeats: int = 2) -> tuple[Session, list[str]]:
    said: list[str] = []
    return Session(writer, shared, Settings(1, repeats, 7), said.append, progress=False), said


def run_session(folder: Path, cases: list[Case], repeats: int = 2) -> tuple[list[Record], list[str]]:
    shared = run_conditions()
    with Writer(folder, shared) as writer:
        session, said = session_of(writer, shared, repeats)
        session.run(cases)
    return read_records([writer.path]), said


def test_an_honest_contestant_passes(workload: Workload) -> None:
    assert examine(Honest(), SMART, workload.trials) > 0.999999


@pytest.mark.parametrize(
    ("contestant", "reason"),
    [
        (Zeros, "worst cosine"),
        (NotFinite, "rows 1 are not finite"),
        (TooFew, r"31, 16\] values, expected \[32, 16\]"),
        (ByPosition, "same texts in another order"),
        (ByBeginning, "ends exchanged"),
        (Caches, "caches"),
        (SkipsLong, "around the length limit"),
        (CutsShort, "around the length limit"),
        (WorksEarly, "before the clock starts"),
        (NotNormalised, "length is off by 50.0%"),
    ],
)
def test_one_that_does_other_work_is_rejected(workload: Workload, contestant: type[Honest], reason: str) -> None:
    with pytest.raises(Rejected, match=reason):
        examine(contestant(), SMART, workload.trials)


def test_int8_is_held_to_its_own_gate(workload: Workload) -> None:
    class Coarse(Honest):
        def conditions(self) -> Conditions:
            return Conditions("fake", "fake-model", "int8", "padded", "cpu", 1, 2)

        def run(self, work: Work) -> Vectors:
            vectors = super().run(work)
            return np.round(vectors * 12).astype(np.float32) / 12

    assert 0.95 < examine(Coarse(), SMART, workload.trials) < 0.99999


def test_quality_is_asked_once_of_every_contestant(tmp_path: Path, workload: Workload) -> None:
    texts = workload.corpus.texts
    pairs = StsPairs(texts[:9], texts[9:18], np.arange(9.0))
    shared = run_conditions()
    with Writer(tmp_path, shared) as writer:
        session, _ = session_of(writer, shared)
        session.questions = make_questions("made", pairs, embed_all, 1)
        session.run([Case(Honest(), Work(policy), workload, "cpu", place) for place, policy in enumerate(BatchPolicy)])
    (asked,) = [record for record in read_records([writer.path]) if record["kind"] == "quality"]
    assert (asked["policy"], asked["sts"], asked["alone_texts"]) == ("one-by-one", "made", 18)
    assert asked["worst_cosine"] == pytest.approx(1.0)
    assert [row.spearman for row in sections(read_records([writer.path]))[0].rows] == [
        asked["spearman"],
        None,
        None,
        None,
    ]


def test_the_rejected_are_recorded_and_never_timed(tmp_path: Path, workload: Workload) -> None:
    cheat = Zeros()
    cheat.name = "cheat"
    records, said = run_session(
        tmp_path, [Case(Honest(), SMART, workload, "cpu"), Case(cheat, SMART, workload, "cpu", 1)]
    )
    assert [record["kind"] for record in records if record["contestant"] == "cheat"] == ["rejected"]
    assert len([record for record in records if record["contestant"] == "honest"]) == 2
    assert "cheat" in said[0]


class CachesLarge(Honest):
    """Honest in calls of the trials' size; remembers only what came in larger ones."""

    name = "caches large"

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[str, Vectors] = {}

    def run(self, work: Work) -> Vectors:
        if len(self.texts) <= 32:
            return super().run(work)
        self.known.update((text, embed(text)) for text in self.texts if text not in self.known)
        return np.stack([self.known[text] for text in self.texts])


class GuessesLarge(CachesLarge):
    """As fast on new texts, for it answers them with what it knows."""

    def run(self, work: Work) -> Vectors:
        if len(self.texts) > 32 and self.known and not set(self.texts) & set(self.known):
            return np.stack(list(self.known.values())[: len(self.texts)])
        return super().run(work)


class WorksEarlyOnMany(WorksEarly):
    def run(self, work: Work) -> Vectors:
        return self.done if len(self.texts) > 32 else embed_all(self.texts)

    def prepare(self, texts: Sequence[str], work: Work) -> None:
        self.texts = list(texts)
        self.done = embed_all(texts) if len(texts) > 32 else np.empty(0, np.float32)


@pytest.mark.parametrize(
    ("contestant", "reason"),
    [
        (CachesLarge, "times faster than new texts of the same lengths: it caches"),
        (GuessesLarge, "on the corpus with its words in another order the worst cosine"),
        (WorksEarlyOnMany, "to accept the corpus"),
    ],
)
def test_a_cheat_at_the_corpus_size_is_rejected_in_all_its_rows(
    tmp_path: Path, large: Workload, contestant: type[Honest], reason: str
) -> None:
    cheat = contestant()
    cheat.name = "cheat"
    works = [SMART, Work(BatchPolicy.ARRIVAL)]
    cases = [
        Case(who, work, large, "cpu", place)
        for place, (who, work) in enumerate((who, work) for who in (Honest(), cheat) for work in works)
    ]
    records, said = run_session(tmp_path, cases)
    rows = sections(records)[0].rows
    assert [row.status for row in rows] == ["measured", "measured", "rejected", "rejected"], said
    assert all(reason in row.reason for row in rows[2:])
    assert len(said) == 2


def test_a_late_wrong_answer_removes_the_row(tmp_path: Path, workload: Workload) -> None:
    class TurnsLazy(Honest):
        calls = 0

        def run(self, work: Work) -> Vectors:
            self.calls += len(self.texts) == len(workload.corpus.texts)
            return super().run(work) * np.float32(self.calls < 3)  # right for the warm-up and the first round

    records, _ = run_session(tmp_path, [Case(TurnsLazy(), SMART, workload, "cpu")], repeats=4)
    assert [record["kind"] for record in records] == ["observation", "rejected"]
    assert sections(records)[0].rows[0].status == "rejected"


def test_the_wrong_device_is_an_error(tmp_path: Path, workload: Workload) -> None:
    with pytest.raises(EngineError, match="elsewhere ran on cuda, but cpu was asked for"):
        run_session(tmp_path, [Case(Elsewhere(), SMART, workload, "cpu")])


def test_one_that_breaks_leaves_the_others_standing(tmp_path: Path, workload: Workload) -> None:
    shared = run_conditions()
    with Writer(tmp_path, shared) as writer:
        session, _ = session_of(writer, shared)
        session.run([Case(Honest(), SMART, workload, "cpu", 1)])
        assert not session.broken
        session.run([Case(Breaks(), SMART, workload, "cpu")])
        assert session.broken  # so that the next run takes it up again
    rows = {row.contestant: row for row in sections(read_records([writer.path]))[0].rows}
    assert rows["breaks"].reason == "failed: RuntimeError: no memory left on this device"
    assert rows["honest"].repeats == 2


def test_every_record_carries_all_conditions(tmp_path: Path, workload: Workload) -> None:
    works = [Work(BatchPolicy.ARRIVAL), Work(BatchPolicy.TOKEN_BUDGET, tokenised=True)]
    cases = [Case(Honest(), work, workload, "cpu", place, place == 0) for place, work in enumerate(works)]
    records, _ = run_session(tmp_path, cases, repeats=3)
    assert len(records) == 9  # the baseline is timed before and after the other
    for record in records:
        assert not [name for name in CONDITIONS.split() if name not in record]
        assert record["distinct_texts"] is True
    assert {(record["policy"], record["batch"], record["tokenisation_inside"]) for record in records} == {
        ("arrival", "32 rows", True),
        ("token-budget", "256 tokens", False),
    }
    assert [(record["repeat"], record["turn"], record["place"]) for record in records[:4]] == [
        (0, 0, 0),
        (0, 1, 1),
        (0, 2, 0),
        (1, 0, 0),
    ]


def test_the_order_differs_from_round_to_round(tmp_path: Path, workload: Workload) -> None:
    cases = [Case(Honest(), Work(policy), workload, "cpu", place) for place, policy in enumerate(BatchPolicy)]
    records, _ = run_session(tmp_path, cases, repeats=4)
    orders = {tuple(record["place"] for record in records if record["repeat"] == number) for number in range(4)}
    assert len(orders) > 1
    assert [row.policy for row in sections(records)[0].rows] == [policy.value for policy in BatchPolicy]


def test_the_baseline_is_first_last_and_between_and_all_others_come_once(workload: Workload, large: Workload) -> None:
    cases = [Case(Honest(), SMART, workload, "cpu", place, baseline=place == 3) for place in range(9)]
    cases += [Case(Honest(), SMART, large, "cpu", place, baseline=place == 9) for place in (9, 10)]
    places = [case.place for case in in_turn(cases, random.Random(1))]
    first, second = places[: places.index(9)], places[places.index(9) :]
    assert [first[0], first[5], first[-1]] == [3, 3, 3]
    assert sorted(set(first) - {3}) == [0, 1, 2, 4, 5, 6, 7, 8]
    assert len(first) == 8 + 3
    assert second == [9, 10, 9]
    assert [case.place for case in in_turn(cases[3:4], random.Random(1))] == [3]


def test_rounds_go_on_until_the_ratios_are_known(tmp_path: Path, workload: Workload) -> None:
    def rounds(tight: float) -> int:
        shared = run_conditions()
        with Writer(tmp_path, shared) as writer:
            session = Session(writer, shared, Settings(1, 2, 7, 4, tight), [].append, progress=False)
            session.run([Case(Honest(), SMART, workload, "cpu", place, place == 0) for place in range(2)])
        return len({record["repeat"] for record in read_records([writer.path])})

    assert rounds(tight=1e-9) == 4  # never so well known, so as many as allowed
    assert rounds(tight=1e9) == 2
    with pytest.raises(SentportError, match="at most 1 rounds, but 5 repeats"):
        Settings(most=1)


def test_a_raw_file_is_never_overwritten(tmp_path: Path) -> None:
    shared = run_conditions()
    with Writer(tmp_path, shared) as writer:
        writer.write("not run", {"contestant": "a"})
    before = writer.path.read_bytes()
    with pytest.raises(SentportError, match="never replaced"):
        Writer(tmp_path, shared)
    assert writer.path.read_bytes() == before
    assert run_conditions()["run"] != shared["run"]


def test_a_full_disk_ends_the_run_and_leaves_whole_lines(tmp_path: Path, workload: Workload) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    shared = run_conditions()
    with Writer(tmp_path, shared) as writer:
        session, _ = session_of(writer, shared, repeats=4)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, before[1]))
        try:
            with pytest.raises(NotWritten, match=r"takes no more \(File too large\); what was measured stands in it"):
                session.run([Case(Honest(), SMART, workload, "cpu")])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        found = len(read_records([writer.path]))
        writer.write("not run", {**session._describe(Case(Honest(), SMART, workload, "cpu")), "reason": "room again"})
    records = read_records([writer.path])
    assert (len(records), records[-1]["kind"]) == (found + 1, "not run")
    assert 1 <= found <= 3
    assert not records[0]["cut"]


def test_a_run_that_measured_nothing_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Writer(tmp_path, run_conditions()):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_a_copy_of_a_raw_file_does_not_count_its_calls_twice(tmp_path: Path) -> None:
    with Writer(tmp_path, run_conditions()) as writer:
        writer.write("block", {"signature": "s"})
    link, copy = tmp_path / "link.jsonl", tmp_path / "copy.jsonl"
    link.symlink_to(writer.path)
    assert len(read_records([writer.path, link])) == 1
    copy.write_bytes(writer.path.read_bytes())
    with pytest.raises(SentportError, match=r"copy.jsonl both hold run .*; name one of them"):
        read_records([writer.path, copy])


def test_trials_hold_the_longest_text_and_new_ones_of_the_same_words(corpus: Corpus) -> None:
    trials = make_trials(corpus.texts, MAX_WORDS, embed_all)
    assert max(corpus.texts, key=len) in trials.seen
    assert len(trials.unseen) == 3
    for texts in trials.unseen:
        assert not set(texts) & set(trials.seen)
        for text, known in zip(texts, trials.seen, strict=True):
            assert sorted(text.split()) == sorted(known.split())


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "no record"),
        ('{"format": 1}', "no record"),
        (json.dumps({"format": 9, "benchmark": "encoders"}), "format 9"),
    ],
)
def test_a_file_that_is_no_raw_file_is_refused(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "raw.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(SentportError, match=f"line 1: {reason}"):
        read_records([path])


def test_settings_that_measure_nothing_are_refused() -> None:
    with pytest.raises(SentportError, match="both must be 1 or more"):
        Settings(warmup=0)
