import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.java_regex import JavaRegexError, compile_java, parse_replacement, replace_all


@pytest.mark.parametrize(("pattern", "text", "whole"), [
    (r"CN=(.*)", "CN=a", True),
    (r"CN=.*", "CN=a\u2028b", False),  # Java's dot stops at every line terminator
    (r"CN=[^,]*", "CN=a\u2028b", True),
    (r"(?i)cn=é", "CN=é", True),
    (r"(?i)cn=é", "CN=É", False),  # ASCII letters only
    (r"\w+\d", "a٣", False),
    (r"(?<who>[\w.-]+)@\k<who>", "a-b@a-b", True),
    (r"(.)\1", "aa", True),
    (r"\Qa.b\E+", "a.bbb", True),
    (r"\Qa.b", "axb", False),
    (r"\p{Alpha}+[\p{Digit}x]\P{Upper}", "ab5c", True),
    (r"\x41\u0042\t", "AB\t", True),
    (r"[--/]{2}[a\-z]", "./-", True),
    (r"[^\]a-c|&~-]", "d", True),
    (r"a{2}+b*?c++(?:d|e)?", "aac", True),
    (r"a\/b\,\=", "a/b,=", True),
])  # fmt: skip
def test_patterns_match_what_they_match_in_java(pattern: str, text: str, whole: bool) -> None:
    assert (compile_java(pattern).fullmatch(text) is not None) is whole


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", "\u0085", "\u2028", "\u2029"])
def test_dollar_is_also_before_a_last_line_terminator(end: str) -> None:
    found = compile_java("$").search(f"a{end}")
    assert found is not None
    assert found.start() == 1
    assert compile_java(r"a\z").search(f"a{end}") is None


@pytest.mark.parametrize("pattern", [
    "(", "a)", "[a", "*a", "a{", "a{,3}", "a{x}", "\\", "[]a]", "[a[b]]", "[a&&b]", "(?m)a", "a(?i)", "(?P<n>a)",
    r"\bA", r"\p{L}", r"\P{Foo", r"[\P{Alpha}]", r"\12", r"\h", r"\G", r"[\b]", r"\k<n>", r"(?<=a*)b", r"\xZ",
    "(?#c)",
])  # fmt: skip
def test_what_java_refuses_or_reads_otherwise_is_refused(pattern: str) -> None:
    with pytest.raises(JavaRegexError):
        compile_java(pattern)


@pytest.mark.parametrize(("pattern", "replacement", "text", "result"), [
    ("CN=(.*)", "$1", "CN=a", "a"), ("(a)(b)?", "[$2$1]", "a", "[a]"), ("(a)", "$12", "a", "a2"),
    ("(?<n>a)", r"${n}\$\\$0", "a", r"a$\a"), (".*", "x", "abc", "xx"), ("(.*?)", "-", "ab", "-a-b-"),
    ("|.*", "-", "ab", "-a-b-"),
])  # fmt: skip
def test_replacements_are_java_s(pattern: str, replacement: str, text: str, result: str) -> None:
    compiled = compile_java(pattern)
    assert replace_all(compiled, parse_replacement(replacement, compiled), text) == result


@pytest.mark.parametrize("replacement", ["$", "$x", "\\", "$2", "${other}", "${n", "${}", "$٣"])
def test_replacement_that_java_would_refuse_is_refused_before_it_is_used(replacement: str) -> None:
    with pytest.raises(JavaRegexError):
        parse_replacement(replacement, compile_java("(?<n>a)"))


@given(st.text(alphabet=r"ab.\[](){}|*+?^$-&,QEdpx0k<n>i:=!", max_size=12), st.text(max_size=5))
def test_any_pattern_is_compiled_or_refused(pattern: str, text: str) -> None:
    try:
        compiled = compile_java(pattern)
    except JavaRegexError:
        return
    assert isinstance(compiled, re.Pattern)
    compiled.search(text)
