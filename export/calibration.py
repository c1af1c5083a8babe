"""Texts that int8 is calibrated on: a file's, or varied ones that a small grammar makes of a seed."""

from __future__ import annotations

from pathlib import Path
from random import Random

from sentport.errors import SentportError
from sentport.inputs import counted, text_lines

_COUNT = 256
_LEAST = 16
_MOST = 1024  # of a file; more measure the same ranges for longer

_WHO = (
    *("the old baker", "a young engineer", "our neighbours", "the committee", "my sister", "two students", "the nurse"),
    *(
        "a group of tourists",
        "the Prime Minister",
        "an anonymous buyer",
        "the goalkeeper",
        "NASA",
        "the court",
        "Maria",
    ),
    *("a brown dog", "three horses", "the orchestra", "the insurance company", "a man in a red jacket", "the teacher"),
    *(
        "most voters",
        "the pilot",
        "a flock of geese",
        "the developers",
        "a small child",
        "the new owner",
        "the striker",
    ),
)
_DOES = (
    *(
        "repairs",
        "has sold",
        "is carrying",
        "will not accept",
        "looked for",
        "photographed",
        "wants to buy",
        "criticised",
    ),
    *(
        "is playing with",
        "forgot",
        "has finally finished",
        "was surprised by",
        "explains",
        "cannot find",
        "walked past",
    ),
    *("voted against", "wrote about", "is waiting for", "chased", "had already paid for", "borrowed", "is studying"),
)
_WHAT = (
    *(
        "a wooden boat",
        "the broken printer",
        "the quarterly report",
        "an electric guitar",
        "a bowl of soup",
        "the contract",
    ),
    *(
        "a bridge over the river",
        "the missing luggage",
        "version 2.4 of the library",
        "her first novel",
        "the blue door",
    ),
    *(
        "a ball",
        "the proposal",
        "a pair of shoes",
        "the vaccine",
        "an expensive mistake",
        "the last train",
        "the patient",
    ),
    *(
        "a field of sunflowers",
        "the password",
        "17 percent of the shares",
        "the symptoms",
        "a second opinion",
        "the garden",
    ),
)
_WHERE = (
    *(
        "in the kitchen",
        "at the airport in Nairobi",
        "on a snowy hill",
        "near the harbour",
        "behind the theatre",
        "online",
    ),
    *(
        "on the third floor",
        "in front of a large crowd",
        "in the middle of the street",
        "at 35,000 feet",
        "by the lake",
    ),
    *("in parliament", "under the bridge", "in a crowded laboratory", "at home", "on platform 9", "across the border"),
)
_WHEN = (
    *(
        "yesterday",
        "at half past six",
        "in the spring of 1998",
        "every Tuesday",
        "shortly before midnight",
        "last year",
    ),
    *("for the third time", "during the storm", "on 12 May", "after the match", "without saying a word", "since 2011"),
)
_LINKS = (
    *(
        "because",
        "although",
        "while",
        "and",
        "but",
        "so that",
        "even though",
        "before",
        "which is why",
        "unless",
        "; later,",
    ),
)
_ASKS = ("How do I know whether", "Why does it matter that", "Is it true that", "Can anybody tell me when", "Who said")
_TOPICS = (
    *("python list sort order", "cheap flights oslo", "vitamin d deficiency symptoms", "reset router password"),
    *("best pizza near me", "interest rate forecast", "knee pain running", "how to boil eggs", "capital of mongolia"),
    *("error 404 nginx", "birthday gift for father", "used electric car range", "translate contract german english"),
)
_OTHERS = (
    *(
        "Der Zug nach Hamburg hat zwanzig Minuten Verspätung.",
        "La réunion de demain est annulée.",
        "¿Dónde está el mercado?",
    ),
    *(
        "Il gatto dorme sul divano.",
        "明天上午会议取消了。",
        "Поезд отправляется в семь утра.",
        "会議は午後三時からです。",
    ),
    *(
        "The price is $1,299.00 (incl. 19% VAT).",
        "print(sum(x for x in range(10)))",
        "OK",
        "Thanks!!! :-)",
        "see §3.2, p. 47",
    ),
    *("https://example.org/a?b=c", "From: ann@example.org Subject: Re: invoice #4711", "H2O boils at 100 °C.", "42"),
)


def calibration_texts(file: Path | None = None) -> tuple[list[str], str]:
    """Texts to calibrate on, and where they are from.

    Args:
        file: One text a line, of which the first 1,024 different ones count; None = those that are made here.

    Raises:
        SentportError: When the file cannot be read or is too short.
    """
    if file is None:
        return _made(_COUNT), "sentport"
    return sample_texts(file, "calibration", _MOST), file.name


def sample_texts(file: Path, purpose: str, most: int) -> list[str]:
    """The first different texts of a file, one a line.

    Args:
        file: The file; empty lines do not count.
        purpose: What they are for, for messages.
        most: How many are taken.

    Raises:
        SentportError: When the file cannot be read, has fewer than 16, or a line that is no text or too long.
    """
    texts: dict[str, None] = {}
    for line in text_lines(file):
        if line.strip():
            texts[line] = None
        if len(texts) == most:
            break
    if len(texts) < _LEAST:
        found = counted(len(texts), "text")
        raise SentportError(f"{file} has {found}; {purpose} needs at least {_LEAST}, one a line, better 256")
    return list(texts)


def _made(count: int, seed: int = 0) -> list[str]:
    rng = Random(seed)
    makers = (_sentence, _sentence, _question, _headline, _paragraph, _query)
    return [*_OTHERS, *(makers[n % len(makers)](rng) for n in range(count - len(_OTHERS)))]


def _clause(rng: Random) -> str:
    parts = [rng.choice(part) for part in (_WHO, _DOES, _WHAT)]
    return " ".join(parts + [rng.choice(part) for part in (_WHERE, _WHEN) if rng.random() < 0.5])


def _sentence(rng: Random) -> str:
    text = _clause(rng)
    for _ in range(rng.choice((0, 0, 1, 2))):
        text = f"{text} {rng.choice(_LINKS)} {_clause(rng)}"
    return f"{text[0].upper()}{text[1:]}{rng.choice('..…!')}"


def _question(rng: Random) -> str:
    return f"{rng.choice(_ASKS)} {_clause(rng)}?"


def _headline(rng: Random) -> str:
    return f"{_clause(rng).title()} - {rng.choice(('Reuters', 'AP', 'live updates', 'opinion'))}"


def _paragraph(rng: Random) -> str:
    return " ".join(_sentence(rng) for _ in range(rng.randint(2, 6)))


def _query(rng: Random) -> str:
    return rng.choice(_TOPICS) if rng.random() < 0.7 else " ".join(rng.sample(_TOPICS, 2))
