"""Conformance passes equal tokenizers and names the first difference of unequal ones."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from export.conformance import ConformanceRecord, check_tokenizer
from export.texts import PARITY_TEXTS, adversarial_lines
from sentport.errors import CheckpointError
from sentport.tokenizer import Tokenizer as BundleTokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

transformers = pytest.importorskip("transformers", reason="the source tokenizer needs the export extra")

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def ours_of(tokenizer: Tokenizer) -> BundleTokenizer:
    """The bundle's side of a tokenizer."""
    return BundleTokenizer(tokenizer.to_str(), max_tokens=512)


@cache
def _trained_wordpiece() -> str:
    """Trained once: two trainings on the same texts may number equal candidates differently."""
    built = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    built.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=SPECIALS, show_progress=False)
    built.train_from_iterator(PARITY_TEXTS, trainer)
    return built.to_str()


def _wordpiece(lowercase: bool = True, specials_around: bool = True) -> Tokenizer:
    """A BERT-like tokenizer with both cases in its vocabulary, whatever its normaliser does."""
    built = Tokenizer.from_str(_trained_wordpiece())
    built.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    if specials_around:
        built.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[(name, built.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
        )
    return built


def _byte_level() -> Tokenizer:
    """A RoBERTa-like tokenizer."""
    built = Tokenizer(models.BPE())
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "</s>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    built.train_from_iterator(PARITY_TEXTS, trainer)
    built.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0))
    return built


def _source(tokenizer: Tokenizer, truncation_side: str = "right") -> PreTrainedTokenizerFast:
    own = Tokenizer.from_str(tokenizer.to_str())
    source: PreTrainedTokenizerFast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=own, model_max_length=32, truncation_side=truncation_side
    )
    return source


@pytest.mark.parametrize("build", [_wordpiece, _byte_level], ids=["wordpiece", "byte-level"])
def test_equal_tokenizers_pass_at_every_limit(build: Callable[[], Tokenizer], caplog: pytest.LogCaptureFixture) -> None:
    """More lines than one chunk holds; the long ones are cut, as at limit 4 they take seconds."""
    tokenizer = build()
    lines = [line[:10_000] for line in adversarial_lines(700)]
    with caplog.at_level(logging.WARNING):
        record = check_tokenizer(ours_of(tokenizer), _source(tokenizer), 200, lines)
    assert record == ConformanceRecord(700, (4, 8, 16, 64, 128, 200))
    assert not caplog.records


def test_a_lower_casing_copy_is_refused_with_its_line() -> None:
    """The odd line lies in the second chunk and holds a line separator, which the message must not repeat."""
    lines = ["rain is expected."] * 640
    lines[611] = "rain\u2028is Expected."
    ours, source = _wordpiece(), _wordpiece(lowercase=False)
    # Without the odd line the two agree, so it is that line which is found.
    check_tokenizer(ours_of(ours), _source(source), 16, lines[:611])
    with pytest.raises(CheckpointError) as caught:
        check_tokenizer(ours_of(ours), _source(source), 16, lines)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    named = re.search(r"limit (\d+), line (\d+) .*, position (\d+): id (\d+), expected (\d+) ", message)
    assert named is not None
    limit, line, position, mine, theirs = map(int, named.groups())
    assert line == 612
    expected = _source(source)(lines[611], truncation=True, max_length=limit)["input_ids"]
    found = ours_of(ours).cut(ours_of(ours).encode_whole([lines[611]])[0], limit)
    assert found[:position] == expected[:position]
    assert (found[position], expected[position]) == (mine, theirs)


def test_a_missing_special_token_is_named_as_a_row_that_ended() -> None:
    """Rows of unequal length have no second id to show."""
    bare, whole = _wordpiece(specials_around=False), _wordpiece()
    with pytest.raises(CheckpointError, match=r"line 1 \(''\), position 0: id none \(row ended\), expected 2 "):
        check_tokenizer(ours_of(bare), _source(whole), 8, [""])


def test_truncation_on_the_other_side_is_refused() -> None:
    """Without truncation both agree, so only the limits can show it."""
    tokenizer = _wordpiece()
    with pytest.raises(CheckpointError, match="limit 4, line 2 "):
        check_tokenizer(ours_of(tokenizer), _source(tokenizer, "left"), 8, ["a", "one two three four five six"])


@pytest.mark.parametrize(
    ("max_tokens", "limits"), [(3, (3,)), (4, (4,)), (60, (4, 8, 16, 60)), (128, (4, 8, 16, 64, 128))]
)
def test_limits_stop_at_max_tokens(max_tokens: int, limits: tuple[int, ...]) -> None:
    """Every model's own limit is among those compared, once."""
    tokenizer = _wordpiece()
    assert check_tokenizer(ours_of(tokenizer), _source(tokenizer), max_tokens, PARITY_TEXTS).limits == limits


def test_limits_without_room_for_a_text_are_skipped() -> None:
    """There truncation to fewer tokens than the special ones is an error of its own, not a difference."""
    tokenizer = _wordpiece()
    specials = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] [CLS] $A [SEP] [SEP]", special_tokens=specials
    )
    assert check_tokenizer(ours_of(tokenizer), _source(tokenizer), 10, PARITY_TEXTS).limits == (8, 10)
    with pytest.raises(CheckpointError, match="max_tokens is 4, but the source tokenizer adds 4 special tokens"):
        check_tokenizer(ours_of(tokenizer), _source(tokenizer), 4, PARITY_TEXTS)
