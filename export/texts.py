"""Texts that ship with the exporter: the parity suite, and hostile lines for tokenizer conformance.

Characters that are invisible, combining or directional are written as escapes, so that no editor can change them.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

_SENTENCES = (
    "Rain is expected.",
    "The meeting starts at noon.",
    "She bought three ripe mangoes yesterday.",
    "Who left the kitchen window open all night?",
    "Interest rates rose for the fourth time this year.",
    "A heron stood motionless at the edge of the pond.",
    "Please restart the router and wait until both lights turn green.",
    "The violinist tuned her instrument while the audience was still finding its seats.",
    "Photosynthesis turns light, water and carbon dioxide into sugar and oxygen.",
    "He has never been able to whistle, although both of his sisters can.",
    "Our train was cancelled, so we shared a taxi with two strangers to the airport.",
    "The court ruled that the contract had been void from the day it was signed.",
    "Fold the egg whites into the batter gently, or the cake will not rise.",
    "Two goals in the final five minutes sent the visitors home without a point.",
    "The patient was advised to take the tablets with food and to avoid driving.",
    "Few tourists visit the northern islands in winter, when the ferry runs only twice a week.",
    "A prime number greater than two is always odd, but an odd number is not always prime.",
    "Nobody in the village could remember when the old mill had last ground any flour.",
    "The new bridge, which cost twice what had been planned, will open to cyclists in spring and to cars in autumn.",
    "If the pressure in the tank falls below the threshold, the pump switches on automatically and an alarm is sent.",
    "Her first novel sold poorly, yet critics kept returning to it, and thirty years later it is taught in schools.",
    "Glaciers carve valleys with a broad, rounded floor, whereas rivers, left alone for long, cut a narrow notch.",
    "The shop accepts cash, cards and vouchers; it does not, however, give change for vouchers or refund them after "
    "the end of the month printed on the back.",
    "When the astronomers compared plates taken a week apart, one faint dot had moved against the background of fixed "
    "stars, and after several more nights they were certain that it was a small planet.",
    "The cooperative, founded by eleven farmers who were tired of low prices, now collects milk from more than four "
    "hundred farms, runs its own dairy, and pays a premium to members who keep their cows outdoors in summer.",
    "Before you repaint the hull, sand away every trace of the old coating, wash off the dust with fresh water, let "
    "the wood dry for at least two days in a sheltered place, and only then apply the primer in thin layers with a "
    "wide and perfectly clean brush.",
    "Although the committee had been warned by its own engineers that the dam was ageing faster than anyone had "
    "foreseen, it postponed the repairs year after year, spent the money on roads and a stadium, and acted at last "
    "only when a wet winter filled the reservoir to the brim and water began to seep through the wall.",
    "A man is playing a guitar.",
    "A woman is not playing a guitar.",
    "The dog chased the cat, and the cat chased the mouse.",
)

_AWKWARD = (
    "",
    " ",
    "\n\t",
    "a",
    "Hello",
    "?!... ;:-- ((()))",
    "\U0001f600 \U0001f680\U0001f680 great news \U0001f389!",
    "family \U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 at the beach \U0001f3d6\ufe0f",
    "\U0001f1ef\U0001f1f5 against \U0001f1e7\U0001f1f7 and "
    "\U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",
    "thumbs \U0001f44d\U0001f3fd and hearts \u2764\ufe0f \u2764\ufe0e",
    "Caf\u00e9 d\u00e9j\u00e0 vu, na\u00efve fa\u00e7ade, \u00c5ngstr\u00f6m, ma\u00f1ana",
    "Cafe\u0301 de\u0301ja\u0300 vu, nai\u0308ve fac\u0327ade, A\u030angstro\u0308m, man\u0303ana",
    "z\u0351\u036b\u0343\u036a\u0302a\u0323\u0308\u0304l\u0334\u0335g\u0321\u0322o\u0337\u0338 stacked marks",
    "a NUL \x00 inside, a BEL \x07 too, an escape \x1b[31m and a DEL \x7f",
    "one line\x85another line\u2028a third\u2029and a paragraph",
    "zero\u200bwidth\u200cspace\u200dand\u2060joiner\ufeffmark, soft\u00adhyphen",
    "\u3000wide\u00a0and\u2003odd\u2009spaces\u202fevery\u205fwhere\u1680here \r\n\r\n end ",
    "\u202eright to left override\u202c and \u2067isolated\u2069 parts",
    "\u0627\u0644\u0637\u0642\u0633 \u062c\u0645\u064a\u0644 \u0627\u0644\u064a\u0648\u0645\u060c "
    "\u0648\u0627\u0644\u0633\u0645\u0627\u0621 \u0635\u0627\u0641\u064a\u0629",
    "\u05d4\u05d9\u05dc\u05d3\u05d9\u05dd \u05de\u05e9\u05d7\u05e7\u05d9\u05dd \u05d1\u05d2\u05df, "
    "\u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd",
    "今天天气很好，我们去公园散步吧。",
    "図書館で静かに本を読んでいます。カタカナも。",
    "고양이가 창가에서 자고 있다.",
    "\u0e27\u0e31\u0e19\u0e19\u0e35\u0e49\u0e2d\u0e32\u0e01\u0e32\u0e28\u0e14\u0e35\u0e21\u0e32\u0e01",
    "\u092c\u091a\u094d\u091a\u0947 \u092c\u0917\u0940\u091a\u0947 \u092e\u0947\u0902 "
    "\u0916\u0947\u0932 \u0930\u0939\u0947 \u0939\u0948\u0902\u0964",
    "Поезд прибывает на вторую платформу через пять минут.",
    "Η θάλασσα ήταν ήρεμη και ο ουρανός γαλάζιος. ΟΔΟΣ",
    "Привет world 你好 \u05e9\u05dc\u05d5\u05dd こんにちは \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 γειά ok",
    "https://example.org/a/very/long/path?query=sentence%20encoder&page=2#results",
    "Write to first.last+news@mail.example.com or @handle, #hashtag_1.",
    "3.14159 1,000,000 -40 1e-12 0x1F 12/31/1999 23:59:59 +1 (555) 010-9999 \u2167 \u00bd \u0663\u0664 ٪",
    'def add(a: int, b: int = 0) -> int:\n    return a + b  # {"sum": [1, 2]}\n',
    "again " * 300,
    "pneumonoultramicroscopic" * 12 + "silicosis123",
    "tHiS sEnTeNcE mIxEs UPPER and lower CASE, iPhone, McDONALD, NaN",
    "\U0001d4d7\U0001d4ee\U0001d4f5\U0001d4f5\U0001d4f8 \uff26\uff35\uff2c\uff2c \uff57\uff49\uff44\uff54\uff48 "
    "\u24d2\u24d8\u24e1\u24d2\u24db\u24d4\u24d3 \ufb01ne \ufb02at",
    "\u201cquoted\u201d \u2014 dashes \u2013 and ellipsis\u2026 \u2018single\u2019 \u00ab guillemets \u00bb \u20ac5",
    "\u0130stanbul, \u0131l\u0131k \u00c7ay, Stra\u00dfe, STRA\u1e9eE, \u0141\u00f3d\u017a, Vi\u1ec7t Nam",
)

PARITY_TEXTS: tuple[str, ...] = (*_SENTENCES, *_AWKWARD)
"""What every exported graph is compared on with its source: plain sentences first, then awkward texts."""

_LONG_BYTES = 100_000

_CONTROLS = (*range(0x20), *range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_ZERO_WIDTH = (0x00AD, 0x034F, 0x180E, 0x200B, 0x200C, 0x200D, 0x2060, 0x2063, 0xFE0E, 0xFE0F, 0xFEFF)
_SPACES = (*range(0x09, 0x0E), *range(0x1C, 0x21), 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B))
_SPACES += (0x2028, 0x2029, 0x202F, 0x205F, 0x3000)
# First and last code point; the classes that tokenizers treat apart, extensions and compatibility forms included.
_CJK = ((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0xF900, 0xFAFF), (0x3041, 0x3096), (0x30A1, 0x30FA))
_RIGHT_TO_LEFT = ((0x0591, 0x05C7), (0x05D0, 0x05EA), (0x0620, 0x065F), (0x0671, 0x06D3), (0x0710, 0x072F))
_EMOJI = ((0x1F300, 0x1F5FF), (0x1F600, 0x1F64F), (0x1F680, 0x1F6C5), (0x1F900, 0x1F9FF), (0x2600, 0x26FF))
_FLAG_LETTERS = ((0x1F1E6, 0x1F1FF),)
_SKIN_TONES = ((0x1F3FB, 0x1F3FF),)
_MARKS = ((0x0300, 0x036F),)
_SCRIPTS = ((0x0391, 0x03A1), (0x03B1, 0x03C9), (0x0410, 0x044F), (0x0905, 0x094D), (0x0E01, 0x0E3A), (0x10D0, 0x10F0))
_DIGITS = ((0x30, 0x39), (0x0660, 0x0669), (0x0966, 0x096F), (0xFF10, 0xFF19), (0x2160, 0x2188), (0x00BC, 0x00BE))

# Precomposed letter and its decomposition, spelled out: unicodedata's answer may differ between Python versions.
_ACCENTS = (
    ("\u00e9", "e\u0301"),
    ("\u00c8", "E\u0300"),
    ("\u00fc", "u\u0308"),
    ("\u00f1", "n\u0303"),
    ("\u00e7", "c\u0327"),
    ("\u00c5", "A\u030a"),
    ("\u0161", "s\u030c"),
    ("\u0130", "I\u0307"),
    ("\u1ec7", "e\u0323\u0302"),
    ("\u1e69", "s\u0323\u0307"),
    ("\u03ac", "\u03b1\u0301"),
    ("\u0439", "\u0438\u0306"),
    ("\u304c", "\u304b\u3099"),
    ("\u0958", "\u0915\u093c"),
    ("\uac00", "\u1100\u1161"),
    ("\ud55c", "\u1112\u1161\u11ab"),
)

_SPECIAL_LOOKALIKES = (
    "[CLS]", "[SEP]", "[MASK]", "[PAD]", "[UNK]", "[sep]", "[ SEP ]", "[SEP", "[unused1]",
    "<s>", "</s>", "<mask>", "<pad>", "<unk>", "<S>", "< s >", "<s", "<|endoftext|>",
    "##ing", "##", "\u2581", "\u2581the", "\u0120", "\u010a", "</w>", "\ufffd",
)  # fmt: skip

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_WORDS = tuple(sorted({word for sentence in _SENTENCES for word in sentence.split()}))
_PUNCTUATION = (
    "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~\u00a1\u00bf\u2013\u2014\u2018\u2019\u201c\u201d\u2026\u3001\u3002\uff0c"
)


def _pick(rng: Random, items: tuple[str, ...] | str) -> str:
    return items[rng.randrange(len(items))]


def _in_ranges(rng: Random, ranges: tuple[tuple[int, int], ...]) -> str:
    first, last = ranges[rng.randrange(len(ranges))]
    return chr(rng.randrange(first, last + 1))


def _run(rng: Random, ranges: tuple[tuple[int, int], ...], most: int) -> str:
    """One to ``most`` characters out of the ranges."""
    return "".join(_in_ranges(rng, ranges) for _ in range(rng.randrange(1, most + 1)))


def _words(rng: Random) -> str:
    return " ".join(_pick(rng, _WORDS) for _ in range(rng.randrange(1, 20)))


def _controls(rng: Random) -> str:
    parts = (chr(_CONTROLS[rng.randrange(len(_CONTROLS))]) + _pick(rng, _WORDS) for _ in range(rng.randrange(1, 10)))
    return "".join(parts)


def _cjk(rng: Random) -> str:
    return _run(rng, _CJK, 60) + _pick(rng, _WORDS) + _run(rng, _CJK, 8)


def _accents(rng: Random) -> str:
    """One word list in one normal form, or with the forms mixed."""
    form = rng.randrange(3)
    parts = []
    for _ in range(rng.randrange(1, 25)):
        pair = _ACCENTS[rng.randrange(len(_ACCENTS))]
        parts.append(_pick(rng, _LETTERS) + pair[rng.randrange(2) if form == 2 else form] + _pick(rng, ("", "", " ")))
    return "".join(parts)


def _stacked_marks(rng: Random) -> str:
    return "".join(_pick(rng, _LETTERS) + _run(rng, _MARKS, 6) for _ in range(rng.randrange(1, 30)))


def _right_to_left(rng: Random) -> str:
    return " ".join(_run(rng, _RIGHT_TO_LEFT, 9) for _ in range(rng.randrange(1, 15)))


def _scripts(rng: Random) -> str:
    return " ".join(_run(rng, _SCRIPTS, 9) for _ in range(rng.randrange(1, 15)))


def _emoji(rng: Random) -> str:
    """Single emoji, skin tones, joined sequences and flags (half of a flag included)."""
    parts = []
    for _ in range(rng.randrange(1, 15)):
        kind = rng.randrange(4)
        if kind == 0:
            parts.append(_run(rng, _FLAG_LETTERS, 3))
        elif kind == 1:
            parts.append(_in_ranges(rng, _EMOJI) + _in_ranges(rng, _SKIN_TONES))
        elif kind == 2:
            parts.append("\u200d".join(_in_ranges(rng, _EMOJI) for _ in range(3)) + "\ufe0f")
        else:
            parts.append(_in_ranges(rng, _EMOJI) + _pick(rng, ("", " ", "\ufe0e")))
    return "".join(parts)


def _zero_width(rng: Random) -> str:
    parts = []
    for _ in range(rng.randrange(1, 12)):
        parts.append(_pick(rng, _WORDS) + chr(_ZERO_WIDTH[rng.randrange(len(_ZERO_WIDTH))]))
    return "".join(parts)


def _mixed_case(rng: Random) -> str:
    return "".join(letter.upper() if rng.randrange(2) else letter.lower() for letter in _words(rng))


def _any_code_points(rng: Random) -> str:
    """Code points over the whole of Unicode, unassigned and private ones included, surrogates left out."""
    points = (rng.randrange(0x110000 - 0x800) for _ in range(rng.randrange(1, 80)))
    return "".join(chr(point + 0x800 if point >= 0xD800 else point) for point in points)


def _low_code_points(rng: Random) -> str:
    """Code points below U+3000, where most scripts live and few values are unassigned."""
    return _run(rng, ((0x0000, 0x2FFF),), 80)


def _special_lookalikes(rng: Random) -> str:
    parts = []
    for _ in range(rng.randrange(1, 12)):
        parts.append(_pick(rng, _SPECIAL_LOOKALIKES) + _pick(rng, ("", " ", _pick(rng, _WORDS))))
    return "".join(parts)


def _spaces(rng: Random) -> str:
    parts = []
    for _ in range(rng.randrange(1, 10)):
        blank = "".join(chr(_SPACES[rng.randrange(len(_SPACES))]) for _ in range(rng.randrange(1, 6)))
        parts.append(blank + _pick(rng, ("", _pick(rng, _WORDS))))
    return "".join(parts)


def _numbers(rng: Random) -> str:
    parts = []
    for _ in range(rng.randrange(1, 12)):
        ranges = _DIGITS[:1] if rng.randrange(2) else _DIGITS
        parts.append(_run(rng, ranges, 12) + _pick(rng, (" ", ".", ",", "-", "/", ":", "%", "e+", "\u00b0")))
    return "".join(parts)


def _long_word(rng: Random) -> str:
    """A word around and past the 100 characters at which WordPiece gives up."""
    return "".join(_pick(rng, _LETTERS) for _ in range(rng.randrange(90, 300))) + _pick(rng, ("", " end"))


def _punctuation(rng: Random) -> str:
    return "".join(_pick(rng, _PUNCTUATION) for _ in range(rng.randrange(1, 60)))


_KINDS: tuple[Callable[[Random], str], ...] = (
    _words,
    _controls,
    _cjk,
    _accents,
    _stacked_marks,
    _right_to_left,
    _scripts,
    _emoji,
    _zero_width,
    _mixed_case,
    _any_code_points,
    _low_code_points,
    _special_lookalikes,
    _spaces,
    _numbers,
    _long_word,
    _punctuation,
)


def _short_line(rng: Random, number: int) -> str:
    """A line of one kind, each kind in turn; every fourth line is several kinds glued together."""
    if number % 4 < 3:
        return _KINDS[number % len(_KINDS)](rng)
    kinds = [_KINDS[rng.randrange(len(_KINDS))] for _ in range(3)]
    return _pick(rng, ("", " ")).join(kind(rng)[:120] for kind in kinds)


def _grow(piece: Callable[[], str]) -> str:
    """Pieces glued together until the UTF-8 text first reaches ``_LONG_BYTES``."""
    pieces: list[str] = []
    size = 0
    while size < _LONG_BYTES:
        pieces.append(piece())
        size += len(pieces[-1].encode("utf-8"))
    return "".join(pieces)


def adversarial_lines(count: int = 2000, seed: int = 0) -> list[str]:
    """Lines on which two tokenizers that are not the same are likely to differ.

    They depend on count and seed alone, not on the Python version. They are meant as a list: many hold line breaks.

    Args:
        count: How many lines, at least 4.
        seed: Another seed gives other lines of the same kinds.

    Returns:
        ``count`` lines without lone surrogates: four of about 100 kB spread among them (words; CJK; one unbroken
        word; all kinds mixed), the others under 400 characters.

    Raises:
        ValueError: When ``count`` is below 4.
    """
    if count < 4:
        raise ValueError(f"count is {count}; the four long lines alone need 4")
    rng = Random(seed)
    lines = [_short_line(rng, number) for number in range(count - 4)]
    long_pieces: tuple[Callable[[], str], ...] = (
        lambda: _words(rng) + " ",
        lambda: _in_ranges(rng, _CJK),
        lambda: _pick(rng, _LETTERS),
        lambda: _short_line(rng, rng.randrange(count)),
    )
    for place, piece in enumerate(long_pieces, 1):
        lines.insert(place * count // 5, _grow(piece))
    return lines
