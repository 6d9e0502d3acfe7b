"""The text of growing outputs: whole characters, no stop string, nothing lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from switchrail.engine.text import ByteTexts, TextStream, decoder
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from tests.engine.conftest import byte_tokenizer


def decode_bytes(ids: list[int]) -> str:
    return bytes(ids).decode("utf-8", errors="replace")


def spaced() -> Callable[[list[int]], str]:
    """A decoder that drops the leading space of the first token, as sentencepiece models do."""
    vocab = {"▁in": 0, "▁the": 1, "▁be": 2, "gin": 3, "ning": 4, "<unk>": 5}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.decoder = decoders.Sequence([decoders.Metaspace(), decoders.Fuse()])
    return lambda ids: str(tokenizer.decode(ids))


def run(stream: TextStream, tokens: list[int]) -> list[str]:
    pieces = []
    for token in tokens:
        pieces.append(stream.push(token))
        if stream.stopped:
            break
    return [*pieces, stream.finish()]


@given(st.text(max_size=30))
def test_pieces_are_whole_characters_and_make_the_text(text: str) -> None:
    pieces = run(TextStream(decode_bytes, b"prompt", ()), list(text.encode()))
    assert "".join(pieces) == text
    assert all("\N{REPLACEMENT CHARACTER}" not in piece for piece in pieces[:-1]) or "\ufffd" in text


def test_a_character_comes_with_its_last_byte() -> None:
    assert run(TextStream(decode_bytes, b"", ()), list("é😀".encode())) == ["", "é", "", "", "", "😀", ""]


def test_an_unfinished_character_is_given_at_the_end() -> None:
    pieces = run(TextStream(decode_bytes, b"", ()), [*b"ab", 0xF0, 0x9F])
    assert pieces == ["a", "b", "", "", "\N{REPLACEMENT CHARACTER}"]


def test_an_unfinished_character_of_the_prompt_is_finished() -> None:
    prompt, rest = "é".encode()[:1], "é".encode()[1:]
    assert "".join(run(TextStream(decode_bytes, prompt, ()), [*rest, *b"x"])) == "x"


def test_the_space_before_the_first_token_stays() -> None:
    assert run(TextStream(spaced(), [0], ()), [1, 2, 3, 4]) == [" the", " be", "gin", "ning", ""]


@settings(max_examples=300)
@given(st.text("abc", max_size=25), st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3))
def test_stop_strings_cut_where_the_whole_text_would_be_cut(text: str, stop: list[str]) -> None:
    stream = TextStream(decode_bytes, b"", tuple(stop))
    pieces = run(stream, list(text.encode()))
    # the result ends with the token that first completes a stop string
    ends = [text.index(s) + len(s) for s in stop if s in text]
    seen = text[: min(ends)] if ends else text
    assert stream.stopped == bool(ends)
    assert "".join(pieces) == seen[: min((seen.index(s) for s in stop if s in seen), default=None)]
    assert stream.text == "".join(pieces)


PIECES = ["a", "bc", " ", "é", "😀", "\N{REPLACEMENT CHARACTER}", "\N{COMBINING ACUTE ACCENT}"]


@settings(max_examples=300)
@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join), st.integers(0, 5), st.data())
def test_kept_texts_of_tokens_give_the_same_pieces(text: str, cut: int, data: st.DataObject) -> None:
    """Kept texts give the same pieces for whole, broken and unfinished characters, also at the end of the
    prompt, with and without a stop string."""
    drawn = data.draw(st.lists(st.integers(0, 255), max_size=4))
    tokens = [*text.encode(), *drawn, *text.encode()]
    stop = data.draw(st.sampled_from([(), ("ca",), ("é", "a b")]))
    expected = TextStream(decode_bytes, tokens[:cut], stop)
    stream = TextStream(ByteTexts(decode_bytes), tokens[:cut], stop)
    assert run(stream, tokens[cut:]) == run(expected, tokens[cut:])
    assert (stream.text, stream.stopped) == (expected.text, expected.stopped)


def test_each_token_of_whole_characters_is_decoded_once() -> None:
    decoded: list[list[int]] = []

    def decode(ids: list[int]) -> str:
        decoded.append(ids)
        return decode_bytes(ids)

    texts = ByteTexts(decode)
    for _ in range(2):
        stream = TextStream(texts, b"in", ())
        assert run(stream, list(b"abab")) == ["a", "b", "a", "b", ""]
    one = [list(b"in"), [97], [98], [98]]  # [98] again when the text is finished
    assert decoded == [*one, list(b"in"), [98]]


def test_the_kind_of_decoder_follows_from_the_tokenizer() -> None:
    fast = byte_tokenizer()
    decode = decoder(fast)
    assert isinstance(decode, ByteTexts)
    assert (decode([258, 256]), decode[258], decode[256]) == ("the", "the", "")
    fast.backend_tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    assert not isinstance(decoder(fast), ByteTexts)
    joined = Tokenizer(models.WordLevel({"▁in": 0, "▁the": 1, "?": 2}, unk_token="?"))
    joined.decoder = decoders.Metaspace()
    decode = decoder(PreTrainedTokenizerFast(tokenizer_object=joined))
    assert not isinstance(decode, ByteTexts)
    assert decode([0, 1]) == "in the"


@pytest.mark.parametrize("tokens", [[[97], [98, 99]], [[97, 98], [99]]])
def test_text_that_may_begin_a_stop_string_waits(tokens: list[list[int]]) -> None:
    stream = TextStream(lambda ids: decode_bytes(ids), b"", ("abd",))
    assert [stream.push(token) for part in tokens for token in part] == ["", "", "abc"]
