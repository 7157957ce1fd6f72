from hypothesis import given
from hypothesis import strategies as st

from backends.text.stop import StopMatcher

LETTERS = st.text(st.sampled_from("ab"), max_size=12)
STOPS = st.lists(st.text(st.sampled_from("ab"), min_size=1, max_size=4), max_size=4)


def run(stops: list[str], pieces: list[str], include: bool = False) -> tuple[list[str], str | None]:
    matcher = StopMatcher(stops, include)
    sent = [matcher.push(piece) for piece in pieces]
    return [*sent, matcher.flush()], matcher.matched


def cut_by_hand(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The text before the stop string that is complete first, tried character by character."""
    for end in range(1, len(text) + 1):
        for stop in stops:
            if text[:end].endswith(stop):
                return text[: end - len(stop)], stop
    return text, None


@given(pieces=st.lists(LETTERS, max_size=8), stops=STOPS)
def test_the_earliest_complete_match_wins_however_the_text_is_cut(pieces: list[str], stops: list[str]) -> None:
    sent, matched = run(stops, pieces)
    assert ("".join(sent), matched) == cut_by_hand("".join(pieces), stops)


@given(pieces=st.lists(LETTERS, max_size=8), stops=STOPS)
def test_only_what_may_still_become_a_stop_string_is_held(pieces: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    so_far, sent = "", ""
    for piece in pieces:
        so_far, sent = so_far + piece, sent + matcher.push(piece)
        if matcher.matched is not None:
            break
        held = so_far[len(sent) :]
        beginnings = [stop[:size] for stop in stops for size in range(1, len(stop)) if so_far.endswith(stop[:size])]
        assert held == max(beginnings, key=len, default="")


def test_ties_go_to_the_first_in_the_list() -> None:
    assert run(["cb", "b"], ["acb"])[1] == "cb"
    assert run(["b", "cb"], ["acb"]) == (["ac", ""], "b")


def test_a_stop_string_is_included_when_asked_for() -> None:
    assert run(["END"], ["the E", "ND of"], include=True) == (["the ", "END", ""], "END")


def test_nothing_leaves_after_a_match() -> None:
    matcher = StopMatcher(["x"])
    assert matcher.push("axb") == "a"
    assert matcher.push("more") == matcher.flush() == ""


def test_what_was_held_leaves_at_the_end() -> None:
    assert run(["abc"], ["xab"]) == (["x", "ab"], None)


def test_a_match_before_the_gate_opens_passes_and_one_begun_there_counts() -> None:
    matcher = StopMatcher(["ab", "cd"])
    assert matcher.push("xab", may_stop=False) == "xab"
    assert matcher.push("yc", may_stop=False) == "y"
    assert matcher.push("dz") == ""
    assert matcher.matched == "cd"


def test_a_match_that_passed_inside_held_text_does_not_count_later() -> None:
    matcher = StopMatcher(["ab", "xabc"])
    assert matcher.push("xab", may_stop=False) == ""
    assert matcher.push("d") == "xabd"
    assert matcher.matched is None


def test_empty_stop_strings_are_ignored() -> None:
    assert run([""], ["abc"]) == (["abc", ""], None)
