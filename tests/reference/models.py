"""The rules of the quotas, written to be read and not to be fast: everything is kept and summed again.

The real classes are compared with these over random series. Nothing here imports what it is compared with.
"""

import math
from dataclasses import dataclass, field
from fractions import Fraction


@dataclass
class Sample:
    """One window's worth of records."""

    start_ms: int
    last_ms: int
    values: list[Fraction] = field(default_factory=list)


class RateModel:
    """Kafka's SampledStat with Rate: a ring of S + 1 samples, walked for every question."""

    def __init__(self, window_num: int, window_ms: int, now_ms: int) -> None:
        self.window_num, self.window_ms = window_num, window_ms
        self.samples = [Sample(now_ms, now_ms)]
        self.current = 0

    def record(self, value: float, now_ms: int) -> None:
        if now_ms - self.samples[self.current].start_ms >= self.window_ms:
            self.current = (self.current + 1) % (self.window_num + 1)
            if self.current == len(self.samples):
                self.samples.append(Sample(now_ms, now_ms))
            self.samples[self.current] = Sample(now_ms, now_ms)
        self.samples[self.current].values.append(Fraction(value))
        self.samples[self.current].last_ms = now_ms

    def purge(self, now_ms: int) -> None:
        for i, sample in enumerate(self.samples):
            if now_ms - sample.last_ms >= self.window_num * self.window_ms:
                self.samples[i] = Sample(now_ms, now_ms)

    def total(self, now_ms: int) -> Fraction:
        self.purge(now_ms)
        return sum((value for sample in self.samples for value in sample.values), Fraction(0))

    def window_size_ms(self, now_ms: int) -> int:
        self.purge(now_ms)
        elapsed = now_ms - min(sample.start_ms for sample in self.samples)
        whole = elapsed // self.window_ms
        if whole < self.window_num - 1:
            elapsed += (self.window_num - 1 - whole) * self.window_ms
        return max(elapsed, 1)

    def rate(self, now_ms: int) -> Fraction:
        return self.total(now_ms) * 1000 / self.window_size_ms(now_ms)

    def throttle_time_ms(self, limit: float, now_ms: int) -> int:
        """(O - T) / T * W, exactly, in whole milliseconds, halves up."""
        over = (self.rate(now_ms) - Fraction(limit)) / Fraction(limit) * self.window_size_ms(now_ms)
        return max(0, math.floor(over + Fraction(1, 2)))


class BucketModel:
    """Every event since the bucket was made, replayed in exact fractions for every question."""

    def __init__(self, quota: float, burst_s: float, now_ms: int) -> None:
        self.burst_s = Fraction(burst_s)
        self.start_ms, self.first_quota = now_ms, Fraction(quota)
        self.events: list[tuple[int, Fraction | None, Fraction]] = []  # time, new quota or None, permits

    def quota(self, quota: float, now_ms: int) -> None:
        self.events.append((now_ms, Fraction(quota), Fraction(0)))

    def record(self, permits: float, now_ms: int) -> None:
        self.events.append((now_ms, None, Fraction(permits)))

    def look(self, now_ms: int) -> Fraction:
        """Tokens now. Looking refills, as in Kafka, so it is an event of its own."""
        self.record(0, now_ms)
        tokens, quota, last_ms = self.first_quota * self.burst_s, self.first_quota, self.start_ms
        for at_ms, new_quota, permits in self.events:
            if new_quota is not None:
                quota = new_quota  # no refill here: the time since the last use is priced at the new quota
                continue
            tokens = min(quota * self.burst_s, tokens + quota * (at_ms - last_ms) / 1000)
            tokens = min(quota * self.burst_s, tokens - permits)
            last_ms = at_ms
        return tokens


def precedence_model(
    quotas: dict[tuple[str | None, str | None], float], user: str, client_id: str
) -> tuple[float | None, str]:
    """The limit and the counter's tags of a client with an id; ``*`` stands for the default entity."""
    ladder: list[tuple[tuple[str | None, str | None], str]] = [
        ((user, client_id), f"{user}:{client_id}"),
        ((user, "*"), f"{user}:{client_id}"),
        ((user, None), f"{user}:"),
        (("*", client_id), f"{user}:{client_id}"),
        (("*", "*"), f"{user}:{client_id}"),
        (("*", None), f"{user}:"),
        ((None, client_id), f":{client_id}"),
        ((None, "*"), f":{client_id}"),
    ]
    for entity, tags in ladder:
        if entity in quotas:
            return quotas[entity], tags
    shapes = {(named_user is not None, named_client is not None) for named_user, named_client in quotas}
    if shapes == {(True, True)}:
        return None, f"{user}:{client_id}"
    return None, f"{user}:" if shapes == {(True, False)} else f":{client_id}"


@dataclass
class BoundModel:
    """In no span of time passes more than limit x (time + bound), and the request that went beyond."""

    limit: float
    bound_ms: int
    passed: list[tuple[int, float]] = field(default_factory=list)

    def holds(self) -> bool:
        """Every span that begins and ends with something that passed is looked at."""
        for i, (from_ms, _) in enumerate(self.passed):
            total = Fraction(0)
            for until_ms, value in self.passed[i:]:
                if total > Fraction(self.limit) * (until_ms - from_ms + self.bound_ms) / 1000 + 1:
                    return False  # it passed although so much had gone before
                total += Fraction(value)
        return True
