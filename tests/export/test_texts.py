"""The shipped texts are what they claim to be, and the same on every machine."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from hashlib import sha256

import pytest

from export.texts import PARITY_TEXTS, adversarial_lines

LINES = adversarial_lines()


def test_parity_texts_are_distinct_and_encodable() -> None:
    """A duplicate would weigh twice in the gate's means; a lone surrogate cannot be stored in the suite."""
    assert 60 <= len(PARITY_TEXTS) <= 72
    assert len(set(PARITY_TEXTS)) == len(PARITY_TEXTS)
    "".join(PARITY_TEXTS).encode("utf-8")


@pytest.mark.parametrize(
    "wanted",
    [
        lambda text: text == "",
        lambda text: text == " ",
        lambda text: len(text) == 2 and set(text) == {"\n", "\t"},
        lambda text: len(text) == 1 and text.isalpha(),
        lambda text: text.isalpha() and text.isascii() and 1 < len(text) < 20,
        lambda text: text != "" and not any(letter.isalnum() or letter.isspace() for letter in text.replace(" ", "")),
        lambda text: "\x00" in text and "\x07" in text,
        lambda text: "\x85" in text,
        lambda text: "\u200b" in text and "\u200d" in text,
        lambda text: "\U0001f468\u200d" in text,
        lambda text: "\U0001f1ef\U0001f1f5" in text,
        lambda text: "https://" in text,
        lambda text: len(set(text.split())) == 1 and len(text.split()) == 300,
        lambda text: len(text) == 300 and text.isalnum(),
    ],
)
def test_parity_texts_hold_each_awkward_case(wanted: Callable[[str], bool]) -> None:
    """The suite is what every graph is gated on, so a case dropped by an edit must be noticed."""
    assert any(wanted(text) for text in PARITY_TEXTS)


@pytest.mark.parametrize(
    "script", ["ARABIC", "HEBREW", "CJK", "HIRAGANA", "HANGUL", "THAI", "DEVANAGARI", "CYRILLIC", "GREEK"]
)
def test_scripts_are_covered(script: str) -> None:
    """Written partly as escapes, so a wrong code point would not show in the source."""
    for texts in (PARITY_TEXTS, LINES):
        assert any(unicodedata.name(letter, "").startswith(script) for text in texts for letter in text)


def test_the_two_accent_texts_are_one_text_in_two_normal_forms() -> None:
    """Editors and version control like to normalise one into the other."""
    composed = next(text for text in PARITY_TEXTS if text.startswith("Caf\u00e9"))
    assert composed == unicodedata.normalize("NFC", composed)
    assert unicodedata.normalize("NFD", composed) in PARITY_TEXTS


def test_plain_sentences_range_from_3_to_about_60_words() -> None:
    """Rows of one batch must differ in length, or padding is never exercised."""
    lengths = [len(text.split()) for text in PARITY_TEXTS if text.isascii() and text.endswith((".", "?"))]
    assert min(lengths) == 3
    assert 50 <= max(lengths) <= 60


def test_adversarial_lines_are_pinned() -> None:
    """A change here changes what past conformance records mean: change it knowingly."""
    digest = sha256("\x00".join(LINES).encode("utf-8")).hexdigest()
    assert digest == "978105dcc4367d010fd9b5f51825eb02d307658f601d58b4e2c221d500755499"


def test_adversarial_lines_follow_count_and_seed() -> None:
    """No state outlives a call."""
    assert len(LINES) == 2000
    assert adversarial_lines(300) == adversarial_lines(300)
    assert adversarial_lines(300, seed=1) != adversarial_lines(300)
    assert len(adversarial_lines(300, seed=1)) == 300
    with pytest.raises(ValueError, match="count is 3"):
        adversarial_lines(3)


@pytest.mark.parametrize("count", [4, 5, 100, 2000])
def test_exactly_four_lines_are_long_and_of_different_kinds(count: int) -> None:
    """Every other line must stay short, or a run at six limits takes minutes."""
    lines = adversarial_lines(count)
    long = [line for line in lines if len(line) >= 400]
    assert all(100_000 <= len(line.encode("utf-8")) < 103_000 for line in long)
    words, cjk, unbroken, _ = long
    assert len(words.split()) > 10_000
    assert min(cjk) >= "\u3041"
    assert unbroken.isalpha()
    assert unbroken.isascii()


@pytest.mark.parametrize(
    "sample",
    ["\x00", "\x85", "\u00e9", "e\u0301", "\u200b", "\ufeff", "\u2028", "\u3000", "[SEP]", "<s>", "</s>", "[MASK]"],
)
def test_adversarial_lines_hold(sample: str) -> None:
    """Characters and marks that tokenizers are known to treat apart."""
    assert sum(sample in line for line in LINES) >= 5


def test_random_code_points_reach_every_plane_but_never_surrogates() -> None:
    """A surrogate is no text and would make tokenizers refuse the line."""
    points = {ord(letter) for line in LINES for letter in line}
    assert {point >> 16 for point in points} == set(range(17))
    assert not any(0xD800 <= point < 0xE000 for point in points)
