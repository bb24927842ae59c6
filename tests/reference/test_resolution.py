from hypothesis import given
from hypothesis import strategies as st

from quotas.entities import DEFAULT, Name, QuotaEntity, QuotaKey
from quotas.limits import Limits
from quotas.resolution import resolve
from tests.reference.models import precedence_model

KEY = QuotaKey.PRODUCER_BYTE_RATE
_pairs = st.tuples(st.sampled_from(["a", "b", "*", None]), st.sampled_from(["x", "y", "*", None])).filter(
    lambda pair: pair != (None, None)
)


def _name(text: str | None) -> Name | None:
    return DEFAULT if text == "*" else text


@given(st.lists(st.tuples(_pairs, st.one_of(st.none(), st.integers(1, 100))), max_size=20))
def test_resolution_is_the_ladder_of_eight_after_any_history(
    history: list[tuple[tuple[str | None, str | None], int | None]],
) -> None:
    limits = Limits()
    quotas: dict[tuple[str | None, str | None], float] = {}
    for pair, value in history:
        entity = QuotaEntity(_name(pair[0]), _name(pair[1]))
        if value is None:
            quotas.pop(pair, None)
            limits.remove(entity, KEY)
        else:
            quotas[pair] = value
            limits.set(entity, KEY, value)
    for user in ("a", "b", "c"):
        for client_id in ("x", "y", "z"):
            match = resolve(limits, KEY, user, client_id)
            assert (match.limit, ":".join(match.tracker_key)) == precedence_model(quotas, user, client_id)
