"""What callers hand in: texts, lines of a file, prompt names, dims. Bad input is listed by row, in one error."""

from __future__ import annotations

import sys
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sentport.errors import InputError, SentportError, TruncationError, list_rows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# A tokenizer sees a whole text, whatever it is cut to afterwards, and takes some 200 times its bytes for it. It cannot
# be cut before that: normalisers and merges reach as far as they like.
MOST_BYTES = 1_000_000
TOO_LONG = f"over {MOST_BYTES:,} bytes"


def refuse_bare_string(texts: object) -> None:
    """A string is a sequence of strings, and would be encoded letter by letter.

    Raises:
        TypeError: With the way out.
    """
    if isinstance(texts, str):
        raise TypeError("encode takes a list of texts, not one string; write encode([text])[0]")


def valid_rows(texts: Sequence[str], *, errors: str = "raise") -> list[str]:
    """The texts, all of them fit to be tokenised.

    Args:
        texts: The rows.
        errors: ``raise`` refuses lone surrogates, ``replace`` puts U+FFFD in their place.

    Raises:
        TypeError: For a bare string.
        InputError: Listing the bad rows.
    """
    refuse_bare_string(texts)
    rows = list(texts)
    bad = bad_rows(rows, surrogates=errors == "raise")
    if bad:
        raise InputError(
            f"{len(bad)} of {counted(len(rows), 'row')} cannot be encoded: {name_bad_rows(bad.items())}", tuple(bad)
        )
    return rows if errors == "raise" else [without_surrogates(text) for text in rows]


def bad_rows(texts: Sequence[object], *, surrogates: bool) -> dict[int, str]:
    """Rows that cannot be encoded, each with its reason: no text, no Unicode, over ``MOST_BYTES``.

    Args:
        texts: The rows.
        surrogates: Whether lone surrogates are bad too: they are no Unicode text, and tokenizers refuse them.
    """
    bad = {}
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            bad[row] = f"{type(text).__name__}, not text"
        elif 4 * len(text) > MOST_BYTES and len(text.encode(errors="surrogatepass")) > MOST_BYTES:
            bad[row] = TOO_LONG
        elif surrogates and not text.isascii() and without_surrogates(text) != text:
            bad[row] = "lone surrogate"
    return bad


def counted(number: int, noun: str) -> str:
    """A number with its noun, in the plural where it takes one."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def name_bad_rows(bad: Iterable[tuple[int, str]]) -> str:
    """Rows with their reasons for a message, one entry for each reason."""
    groups: dict[str, list[int]] = {}
    for row, reason in bad:
        groups.setdefault(reason, []).append(row)
    return ", ".join(f"rows {list_rows(rows)} ({reason})" for reason, rows in groups.items())


def without_surrogates(text: str) -> str:
    """The text with surrogate pairs joined and lone surrogates replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        # A surrogate pair is one character; UTF-16 joins it, and only what stays alone becomes U+FFFD.
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def check_dim(dim: int | None, full: int) -> int:
    """The width of the vectors that are asked for; None = all.

    Raises:
        SentportError: When the model has no vectors of that width.
    """
    if dim is None:
        return full
    whole = hasattr(dim, "__index__") and not isinstance(dim, bool)  # numpy's integers too
    if not whole or not 1 <= dim <= full:
        raise SentportError(f"dim is {dim!r}; expected a whole number from 1 to {full}, the width of this model")
    return int(dim)


def prompt_text(prompts: Mapping[str, str], default: str | None, name: str | None) -> str:
    """The text that goes in front: of the named prompt, of the default one for None, nothing for "".

    Raises:
        SentportError: Listing the saved prompts, when the name is not one of them.
    """
    chosen = default if name is None else name
    if chosen is None or chosen == "":
        return ""
    if not isinstance(chosen, str) or chosen not in prompts:
        known = f"known: {', '.join(sorted(prompts))}" if prompts else "it has no saved prompts"
        raise SentportError(f"prompt {chosen!r} is not saved with this model; {known}")
    return prompts[chosen]


def truncation(lengths: NDArray[np.int64], limit: int) -> TruncationError | None:
    """What to tell about texts that lose their end, or None when none does.

    Args:
        lengths: ``[n]`` tokens of each text without the limit.
        limit: The limit.
    """
    rows = (lengths > limit).nonzero()[0].tolist()
    if not rows:
        return None
    tokens = lengths[rows].tolist()
    verbs = ("is", "loses its") if len(rows) == 1 else ("are", "lose their")
    return TruncationError(
        f"{len(rows)} of {counted(len(lengths), 'text')} {verbs[0]} longer than {limit} tokens (longest {max(tokens)}) "
        f"and {verbs[1]} end: rows {list_rows(rows)} (lengths {list_rows(tokens)})",
        tuple(rows),
        tuple(tokens),
    )


def read_lines(name: str) -> list[str]:
    r"""Lines of a UTF-8 file, or of standard input for ``-``; only ``\n`` (or ``\r\n``) ends a line.

    Raises:
        SentportError: When the file cannot be read, or listing the lines that are not UTF-8.
    """
    if name == "-" and sys.stdin is None:
        raise SentportError("standard input is closed; expected text there, or a file name")
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise SentportError(f"{name} cannot be read ({error.strerror}); expected a text file or -") from error
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if lines[-1] == b"":  # the last line's own end
        lines.pop()
    texts, bad = [], []
    for number, line in enumerate(lines, start=1):
        try:
            texts.append(line.removesuffix(b"\r").decode())
        except UnicodeDecodeError:
            bad.append(number)
    if bad:
        raise InputError(f"{name} is not UTF-8 in lines {list_rows(bad)}; convert it first", tuple(bad))
    return texts


def text_lines(file: Path) -> Iterator[str]:
    """Lines of a UTF-8 file, one after the other: of a large file no more is held than one, or read than is taken.

    Raises:
        SentportError: When the file cannot be read, or at the first line that is not UTF-8 or over ``MOST_BYTES``.
    """
    number = 0
    try:
        with file.open("rb") as stream:
            while line := stream.readline(MOST_BYTES + 2):
                number += 1
                text = (line.removeprefix(BOM_UTF8) if number == 1 else line).removesuffix(b"\n").removesuffix(b"\r")
                if len(text) > MOST_BYTES:
                    raise InputError(f"line {number} of {file} is {TOO_LONG}; expected texts, one a line", (number,))
                yield text.decode()
    except UnicodeDecodeError:
        raise InputError(f"line {number} of {file} is not UTF-8; convert it first", (number,)) from None
    except OSError as error:
        raise SentportError(f"{file} cannot be read ({error.strerror}); expected a text file") from error
