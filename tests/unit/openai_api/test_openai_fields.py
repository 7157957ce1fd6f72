import pytest

from backends.api.errors import ServingError
from openai_api.fields import Fields, read_integer, read_string


def failure(read):
    with pytest.raises(ServingError) as caught:
        read()
    return caught.value.reason, caught.value.param


def test_null_is_absent():
    fields = Fields({"n": None, "stop": None, "stream": None, "tools": None, "options": None, "user": None})
    assert fields.integer("n") is None
    assert fields.number("temperature", 0, 2) is None
    assert fields.flag("stream", True) is True
    assert fields.array("tools", read_string, 4) is None
    assert fields.child("options") is None
    assert fields.string("user") is None


@pytest.mark.parametrize("value", ["2", True, [], {}, 2.5])
def test_an_integer_is_an_integer(value):
    assert failure(lambda: Fields({"n": value}).integer("n")) == ("invalid_type", "n")


@pytest.mark.parametrize("value", ["2", True, [], {}])
def test_a_number_is_a_number(value):
    assert failure(lambda: Fields({"t": value}).number("t", 0, 2)) == ("invalid_type", "t")


@pytest.mark.parametrize("value", ["true", 1, 0])
def test_a_boolean_is_a_boolean(value):
    assert failure(lambda: Fields({"stream": value}).flag("stream")) == ("invalid_type", "stream")


def test_a_whole_float_is_an_integer():
    n = Fields({"n": 2.0}).integer("n")
    assert n == 2
    assert isinstance(n, int)


def test_bounds_are_named_in_openais_words():
    fields = Fields({"n": 0, "t": 2.5, "p": 0, "s": "abcd", "a": [], "b": [1, 2, 3]})
    assert failure(lambda: fields.integer("n", 1)) == ("integer_below_min_value", "n")
    assert failure(lambda: Fields({"n": 200}).integer("n", 1, 128)) == ("integer_above_max_value", "n")
    assert failure(lambda: fields.number("t", 0, 2)) == ("decimal_above_max_value", "t")
    assert failure(lambda: fields.number("p", 0, 1, low_is_out=True)) == ("decimal_below_min_value", "p")
    assert failure(lambda: fields.string("s", 3)) == ("string_above_max_length", "s")
    assert failure(lambda: fields.array("a", read_integer, 2, min_length=1)) == ("empty_array", "a")
    assert failure(lambda: fields.array("b", read_integer, 2)) == ("array_above_max_length", "b")


def test_a_path_leads_to_the_wrong_item():
    fields = Fields({"messages": [{"content": [1, "x"]}]})
    read = lambda value, param: Fields(value, param).array("content", read_integer, 9)  # noqa: E731
    assert failure(lambda: fields.array("messages", read, 9)) == ("invalid_type", "messages[0].content[1]")


def test_members_nobody_asked_for_are_known():
    fields = Fields({"n": 1, "x": 2, "y": 3})
    fields.integer("n")
    assert fields.unread() == ["x", "y"]


def test_a_huge_value_is_not_echoed():
    with pytest.raises(ServingError) as caught:
        Fields({"n": 10**200}).integer("n")
    assert len(caught.value.message) < 100
