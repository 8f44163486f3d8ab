"""Ids made again from the text of tokens, and what the ladder says of them, with a small tokenizer of bytes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samepolicy.engines.server_spelling import PIECE, Spelling
from samepolicy.records.run import Run
from samepolicy.records.side import Side
from samepolicy.structure import Fact, check

WORDS = [b"<s>", b"a", b"b", b"ab", b" c", b"d", b"d", *(bytes([i]) for i in "é\N{PARTY POPPER}".encode())]
BOS, A, B, AB, C, D, TWIN, E1, E2, P1, P2, P3, P4 = range(len(WORDS))


class Bytes:
    """The longest known bytes first, the first of equal ones; `<s>` is added in front."""

    is_fast = True
    all_special_ids = (BOS,)

    def __len__(self) -> int:
        return len(WORDS)

    def decode(self, ids: list[int], **_: Any) -> str:
        return b"".join(WORDS[i] for i in ids).decode(errors="replace")

    def __call__(self, text: str, add_special_tokens: bool = True, **_: Any) -> dict[str, Any]:
        raw, at = text.encode(), 0
        ids, spans = [BOS] if add_special_tokens else [], []
        while at < len(raw):
            best = max((w for w in WORDS if raw.startswith(w, at)), key=len)
            ids.append(WORDS.index(best))
            begin, end = (len(raw[:cut].decode(errors="ignore")) for cut in (at, at + len(best)))
            inside = len(raw[:at].decode(errors="replace")) > begin or begin == end
            spans.append((begin, begin + 1) if inside else (begin, end))
            at += len(best)
        return {"input_ids": ids, "offset_mapping": spans}


SPELLING = Spelling(Bytes())


def hidden(ids: list[int]) -> list[str]:
    """The text of each token as vLLM gives it: nothing within a character, all of it where it ends."""
    pieces, held = [], b""
    for token in ids:
        held += WORDS[token]
        try:
            pieces.append(held.decode())
            held = b""
        except UnicodeDecodeError:
            pieces.append("")
    return pieces


@given(st.lists(st.sampled_from([A, B, AB, C]), max_size=8))
def test_an_id_whose_text_is_its_own_is_certain(ids: list[int]):
    made = SPELLING.ids([SPELLING.spell([i]) for i in ids])
    assert (made.ids, made.guessed) == (ids, 0)


@pytest.mark.parametrize("ids", [[A, E1, E2, C], [P1, P2, P3, P4], [P1, P2, P3, P4, B, E1, E2]])
def test_pieces_of_a_character_are_guessed_from_the_whole_text(ids: list[int]):
    split = sum(i >= E1 for i in ids)
    made = SPELLING.ids(hidden(ids))
    assert made.ids == ids
    assert made.guessed == split
    marked = SPELLING.ids([Bytes().decode([i]) for i in ids], Bytes().decode(ids))
    assert (marked.ids, marked.guessed) == (ids, split)


def test_of_two_ids_with_one_text_the_tokenizers_own_is_a_guess():
    made = SPELLING.ids(["a", "d", "b"])
    assert (made.ids, made.guessed) == ([A, D, B], 1)


@pytest.mark.parametrize("pieces", [["a", "zz", "b"], ["a", "", "b"], ["a", PIECE, "b"]])
def test_nothing_stands_after_a_token_that_nothing_decides(pieces: list[str]):
    class Slow(Bytes):
        is_fast = False

    assert Spelling(Slow()).ids(pieces).ids == [A]


@pytest.mark.parametrize("ids", [[BOS, A, C], [BOS]])
def test_a_prompt_is_sent_without_the_bos_that_the_server_adds(ids: list[int]):
    assert SPELLING.encode(SPELLING.text(ids)) == ids


def tokens_fact(**told: Any) -> Fact:
    side = Side(extra={"by_text": {"sent": "text", "tokens": 4, "responses": 2, **told}})
    run = Run.from_lists(response_ids=[[1, 2], [3, 4]], rollout_logp=[[-1.0, -2.0], [-3.0, -4.0]], rollout=side)
    return next(fact for fact in check(run) if fact.name == "same ids")


def test_the_rung_says_what_was_sent():
    assert str(tokens_fact()) == (
        "not checked: only text was sent, and the ids were made again from it, so a token-id fault cannot be excluded; "
        "use a server that takes and gives token ids"
    )
    assert "token ids were sent, but only text came back" in tokens_fact(sent="ids").sentence


def test_the_rung_counts_what_is_unsure():
    found = tokens_fact(guessed=3, cut=1)
    assert found.status == "not checked"
    assert "3 of 4 ids could be others" in found.sentence
    assert "1 of 2 responses cut before a token whose id is not known" in found.sentence


@pytest.mark.parametrize("name", ["other", "misread"])
def test_ids_that_do_not_fit_the_servers_own_words_fail_the_rung(name: str):
    found = tokens_fact(**{name: 1})
    assert (found.status, found.breaks) == ("failed", False)
    assert "; 1 of 2 responses " in found.sentence
