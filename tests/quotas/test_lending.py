import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.lending import LEAST_PART, TIERS, Claim, Division, divide, shed

INF = math.inf
NUMBERS = st.integers(0, 1_000).map(float)


@st.composite
def claims(draw: st.DrawFn) -> Claim:
    """Guarantee below the ceiling, as the configuration has it."""
    guarantee = draw(NUMBERS)
    ceiling = guarantee + 1 + draw(st.one_of(NUMBERS, st.just(INF)))
    demand = draw(st.one_of(NUMBERS, st.just(INF)))
    return Claim(guarantee, ceiling, draw(st.sampled_from((0.5, 1.0, 3.0))), draw(st.integers(0, TIERS - 1)), demand)


MANY = st.lists(claims(), max_size=12)
CAPACITIES = st.integers(1, 20_000).map(float)


def poured(amount: float, vessels: list[tuple[float, float]]) -> list[Fraction]:
    """The textbook's way: fill all vessels at the pace of their widths, and stop each as it is full."""
    volumes = [(Fraction(min(volume, 10**9)), Fraction(width)) for volume, width in vessels]
    got = [Fraction(0)] * len(volumes)
    left = Fraction(amount)
    while left > 0 and (open_ := [at for at, (volume, _) in enumerate(volumes) if got[at] < volume]):
        width = sum(volumes[at][1] for at in open_)
        step = min(left / width, *((volumes[at][0] - got[at]) / volumes[at][1] for at in open_))
        for at in open_:
            got[at] += step * volumes[at][1]
        left -= step * width
    return got


@given(CAPACITIES, MANY)
def test_a_division_is_that_of_the_textbook(capacity: float, wanted: list[Claim]) -> None:
    division = divide(capacity, wanted)
    got = [division.share(claim) for claim in wanted]
    surplus = capacity - sum(claim.certain for claim in wanted)
    if surplus < 0:
        expected = poured(capacity, [(claim.certain, claim.guarantee) for claim in wanted])
    else:
        beyond = poured(surplus, [(claim.wanted - claim.certain, claim.weight) for claim in wanted])
        expected = [Fraction(claim.certain) + more for claim, more in zip(wanted, beyond, strict=True)]
    floors = [min(division.floor, claim.wanted) for claim in wanted]
    at_least = [max(float(share), floor) for share, floor in zip(expected, floors, strict=True)]
    assert got == pytest.approx(at_least, rel=1e-9, abs=1e-6)


@given(CAPACITIES, MANY)
def test_nothing_is_left_while_anybody_wants_more(capacity: float, wanted: list[Claim]) -> None:
    division = divide(capacity, wanted)
    total = math.fsum(division.share(claim) for claim in wanted)
    assert total <= capacity * (1 + LEAST_PART + 1e-9)
    if any(division.share(claim) < claim.wanted * (1 - 1e-9) for claim in wanted):
        assert total >= capacity * (1 - 1e-9)


@given(CAPACITIES, MANY)
def test_limits_keep_guarantees_that_fit_and_ceilings(capacity: float, wanted: list[Claim]) -> None:
    """Also the limit of one that wants little: it has its guarantee with the next request."""
    division = divide(capacity, wanted)
    for claim in wanted:
        assert division.limit(claim) <= claim.ceiling
        if math.fsum(each.certain for each in wanted) <= capacity:
            assert division.limit(claim) >= claim.guarantee


def test_equals_get_equal_parts() -> None:
    division = divide(90, [Claim()] * 3)
    assert [division.share(Claim())] * 3 == [30.0] * 3


def test_a_lender_has_its_guarantee_with_the_next_request() -> None:
    idle, hungry = Claim(guarantee=60, demand=0), Claim(guarantee=40)
    division = divide(100, [idle, hungry])
    assert (division.limit(hungry), division.limit(idle)) == (100, 60)
    wants_it_back = Claim(guarantee=60, demand=60)
    assert divide(100, [wants_it_back, hungry]).limit(hungry) == 40


@given(CAPACITIES, MANY)
def test_one_that_wants_little_does_not_more_than_double_its_use_beyond_its_guarantee(
    capacity: float, wanted: list[Claim]
) -> None:
    """Otherwise a lender that returns has its bucket full of what the others have borrowed."""
    division = divide(capacity, wanted)
    for claim in wanted:
        most = max(claim.guarantee, 2 * claim.wanted, division.part, division.floor)
        assert division.limit(claim) <= most * (1 + 1e-9)


def test_weights_divide_what_is_beyond_the_guarantees() -> None:
    small, large = Claim(guarantee=20), Claim(guarantee=20, weight=3)
    division = divide(120, [small, large])
    assert (division.share(small), division.share(large)) == (40, 80)


def test_guarantees_beyond_the_capacity_are_cut_alike() -> None:
    claims_ = [Claim(guarantee=100, tier=0), Claim(guarantee=300, tier=3)]
    division = divide(200, claims_)
    assert [division.share(claim) for claim in claims_] == [50, 150]


def test_without_claims_there_is_nothing_to_divide() -> None:
    assert divide(100, []) == Division(spare=100.0, part=100.0, floor=LEAST_PART * 100)
    assert Division().limit(Claim()) == INF


@pytest.mark.parametrize(
    ("demands", "shares"),
    [((10, INF, INF), (10, 72.5, 17.5)), ((INF, INF, INF), (56, 38, 6)), ((INF, 0, INF), (75, 0, 25))],
)
def test_the_example_of_three_teams(demands: tuple[float, ...], shares: tuple[float, ...]) -> None:
    """docs/how-to/share-a-cluster.md shows these."""
    teams = (
        Claim(50, 100, tier=0, demand=demands[0]),
        Claim(20, 100, weight=3, demand=demands[1]),
        Claim(0, 30, tier=3, demand=demands[2]),
    )
    division = divide(100, teams)
    assert tuple(division.share(team) for team in teams) == pytest.approx(shares)


TIER_SHARES = st.lists(NUMBERS, min_size=TIERS, max_size=TIERS)


@given(TIER_SHARES, st.floats(0, 1), st.floats(0, 1))
def test_what_can_not_be_used_is_shed_from_the_lowest_tiers_first(
    shares: list[float], certain_part: float, usable_part: float
) -> None:
    certain, usable = certain_part * shares[0], usable_part * math.fsum(shares)
    most = shed(shares, certain, usable)
    left = [most.get(tier, share) for tier, share in enumerate(shares)]
    least = [LEAST_PART * share for share in shares]
    for tier in range(TIERS):
        assert least[tier] - 1e-6 <= left[tier] <= shares[tier]
        if left[tier] < shares[tier] - 1e-6:
            assert left[tier + 1 :] == pytest.approx(least[tier + 1 :])
    assert left[0] >= certain - 1e-6
    assert math.fsum(left) == pytest.approx(max(usable, max(certain, least[0]) + math.fsum(least[1:])), abs=1e-6) or (
        math.fsum(left) == pytest.approx(usable, abs=1e-6)
    )
