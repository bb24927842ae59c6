import pytest

from config.mapping_rules import DEFAULT_RULES, MAX_NAME_CHARS, MAX_RULES, MappingRules, NoRuleMatches

SERVICE = r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/"
MAIL = r"RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L"


def mapped(rules: str, name: str) -> str:
    return MappingRules.parse(rules).name(name)


def test_first_rule_that_matches_the_whole_name_decides_by_groups_commas_and_escaped_slashes() -> None:
    rules = f"{SERVICE}, {MAIL} ,DEFAULT"
    assert mapped(rules, "CN=kafka,OU=ServiceUsers,O=Org") == "kafka"
    assert mapped(rules, "CN=Duke,OU=SME,O=x,L=y,ST=z,C=US") == "duke@sme"
    assert mapped(rules, "CN=other,OU=None") == "CN=other,OU=None"
    with pytest.raises(NoRuleMatches):
        mapped(SERVICE, "CN=kafka,OU=Others")
    with pytest.raises(NoRuleMatches):
        mapped("RULE:CN=a/x/", "CN=a,O=b")
    assert mapped("DEFAULT", "CN=A b") == "CN=A b"
    assert DEFAULT_RULES.name("CN=A b") == "CN=A b"
    assert mapped("RULE:CN=(.*)/$1@$4/", "CN=a") == "a@$4"
    with pytest.raises(ValueError, match="names group 1, the pattern has 0"):
        MappingRules.parse("RULE:CN=.*/$1/")
    assert mapped(r"RULE:^CN=([^,DEFAULT,]+)(,.*|$)/$1\/x/", "CN=a,O=b") == "a/x"


@pytest.mark.parametrize(("case", "name"), [("", "Ab"), ("L", "ab"), ("U", "AB")])
def test_letter_behind_the_rule_sets_the_case(case: str, name: str) -> None:
    assert mapped(f"RULE:CN=(.*)/$1/{case}", "CN=Ab") == name


@pytest.mark.parametrize("text", [
    "", " , ,", "default", "RULE:a", "RULE:a/b", "RULE:a/b/X", "RULE:a/b/LU", "RULE:(/b/", "RULE:a/$/",
    "RULE:[a[b]]/x/", "DEFAULT DEFAULT", "DEFAULT,RULE:a",
])  # fmt: skip
def test_what_is_no_list_of_rules_is_refused_when_it_is_read(text: str) -> None:
    with pytest.raises(ValueError, match=r"^has "):
        MappingRules.parse(text)


def test_number_of_rules_and_length_of_names_are_bounded() -> None:
    assert MappingRules.parse(",".join(["DEFAULT"] * MAX_RULES))
    with pytest.raises(ValueError, match="at most"):
        MappingRules.parse(",".join(["DEFAULT"] * (MAX_RULES + 1)))
    assert mapped("DEFAULT", "x" * MAX_NAME_CHARS)
    with pytest.raises(NoRuleMatches):
        mapped("DEFAULT", "x" * (MAX_NAME_CHARS + 1))
