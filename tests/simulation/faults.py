"""Faults that are planted in a copy of the sources; a law has to find each of them."""

from __future__ import annotations

from typing import Final

from testkit.planted_fault import Fault

FAULTS: Final = {
    "announced bytes are charged and not given back": Fault(
        "gateway/handlers/produce.py", ("            row.count(came_bytes)\n"), ("            row.count(size)\n")
    ),
    "announced bytes are charged to the quota": Fault(
        "gateway/handlers/produce.py",
        ("        for tracker in trackers:\n            tracker.record_part(came_bytes, now_ms=now_ms)\n"),
        ("        for tracker in trackers:\n            tracker.record_part(size, now_ms=now_ms)\n"),
    ),
    "the rest of a request is not counted": Fault(
        "gateway/session/parts.py",
        ("            self._row.add(came_bytes)\n        if not self._left_bytes:\n"),
        ("            pass\n        if not self._left_bytes:\n"),
    ),
    "a reply that comes in parts is counted twice": Fault(
        "gateway/session/response_queue.py",
        ("            answer.row.count(0)\n"),
        ("            answer.row.count(size - answer.less_bytes)\n"),
    ),
    "a debt leaves with its connection": Fault(
        "quotas/rate_quotas.py",
        ("        self.blocked_until_ms = blocked_ms\n        if blocked_ms > now_ms"),
        ("        if blocked_ms > now_ms"),
    ),
    "a throttled client is not muted": Fault(
        "gateway/session/session.py",
        ("        self.throttle(final_ms, sensor.tracker, now_ms=now_ms)\n        if self.meter.claim(by"),
        ("        if self.meter.claim(by"),
    ),
    "a mute is not ended": Fault(
        "gateway/session/session.py",
        ("            self.unmute(MuteReason.THROTTLED, now_ms=now_ms)\n"),
        ("            pass\n"),
    ),
    "the timer of a mute is not set": Fault(
        "gateway/session/session.py",
        ("        if until_ms < self.wake_at_ms:\n            self.wake_at_ms = until_ms\n"),
        (""),
    ),
    "a wait is ten times too long": Fault(
        "quotas/rate_quotas.py",
        ("        throttle_time_ms = meter.record_and_check(value, self._limit, self._allowance, now_ms=now_ms)\n"),
        (
            "        throttle_time_ms = 10 * meter.record_and_check(value, self._limit, self._allowance, now_ms=now_ms)\n"  # noqa: E501
        ),
    ),
    "a muted client is read": Fault(
        "gateway/net/channel.py",
        ("            else:\n                self._transport.pause_reading()\n        self._follow_upstream()\n"),
        ("        self._follow_upstream()\n"),
    ),
    "a member never asks for what it missed": Fault(
        "gateway/fleet/exchange.py",
        ("                return False\n        return True\n\n    def _next(self)"),
        ("                return False\n        return False\n\n    def _next(self)"),
    ),
    "a reply ends the wrong wait": Fault(
        "gateway/session/response_queue.py",
        ("                pending.pop(0)\n                if isinstance(answer, CollectedAnswer):\n"),
        ("                pending.pop()\n                if isinstance(answer, CollectedAnswer):\n"),
    ),
    "a reply passes that names brokers": Fault(
        "gateway/session/response_queue.py",
        ("            if not _take_unseen(answer, data, 0, size, not left):\n                return False\n"),
        ("            _take_unseen(answer, data, 0, size, not left)\n"),
    ),
    "a client without permits is not muted": Fault(
        "gateway/handlers/mutation_exchange.py",
        ("        if throttle_time_ms <= 0:\n            return\n        if self._trace"),
        ("        if throttle_time_ms >= 0:\n            return\n        if self._trace"),
    ),
    "a place at the bound is kept for ever": Fault(
        "gateway/session/throttle_state.py",
        ("                tracker.leave(self)\n        muting = self._muting\n"),
        ("                pass\n        muting = self._muting\n"),
    ),
    "a Fetch stays under way when its client leaves": Fault(
        "gateway/session/throttle_state.py",
        ("        while self._fetching:\n            self.fetch_ends()\n        self.fetch_answer"),
        ("        self.fetch_answer"),
    ),
    "a reply is not timed": Fault(
        "gateway/session/session.py",
        ("            reply.timed = self.meter.start(api, client_id)\n"),
        ("            if api.key != 12:\n                reply.timed = self.meter.start(api, client_id)\n"),
    ),
    "the gateway's own replies are not timed": Fault(
        "gateway/session/session.py",
        ("            self.request_answered(timed, now_ms=now_ms)\n            self._answering = timed\n"),
        ("            pass\n"),
    ),
    "replies are swapped": Fault(
        "gateway/session/response_queue.py",
        ("        if self.idle:\n            self.to_client.append(frame)\n"),
        ("        if True:\n            self.to_client.append(frame)\n"),
    ),
    "a connection ends with a reply unsent": Fault(
        "gateway/session/session.py",
        (
            "        if self.muted & _IN_FLIGHT_FULL and len(self.responses) <= self.throttling.most_in_flight // 2:\n"  # noqa: E501
            "            self.muted &= ~_IN_FLIGHT_FULL\n"
        ),
        (""),
    ),
    "an announcement is not ended": Fault(
        "gateway/session/session.py",
        (
            "        self._end_watch(now_ms)\n"
            "        self._end_announcement()\n"
            "        self.responses.ended(now_ms=now_ms)\n"
        ),
        ("        self._end_watch(now_ms)\n        self.responses.ended(now_ms=now_ms)\n"),
    ),
    "memory is not given back": Fault("gateway/session/session.py", ("        self._memory.leave(self)\n"), ("")),
    "a place of a connection is given back twice": Fault(
        "gateway/net/listener.py",
        ("        self._places.release(self.name, channel.ip)\n"),
        (
            "        self._places.release(self.name, channel.ip)\n"
            "        if len(self.channels) > 6:\n"
            "            self._places.release(self.name, channel.ip)\n"
        ),
    ),
    "permits are given back twice": Fault(
        "quotas/mutations.py",
        ("        tracker.give_back(amount, now_ms=now_ms)\n"),
        ("        tracker.give_back(amount, now_ms=now_ms)\n        tracker.give_back(amount, now_ms=now_ms)\n"),
    ),
    "a group gets no permits back": Fault(
        "quotas/mutations.py",
        ("                counter.give_back(amount, now_ms=now_ms)\n"),
        ("                pass\n"),
    ),
    "members are charged alone": Fault(
        "quotas/mutations.py",
        ("            shared = own.shared\n            counters = (own, *counters)\n"),
        ("            shared = own.shared\n            counters = (own,)\n"),
    ),
    "refused topics are charged": Fault(
        "quotas/mutations.py",
        ("                asking.throttles.refused_total += 1\n"),
        (
            "                asking.throttles.refused_total += 1\n"
            "                asking.meter.record(permits, now_ms=now_ms)\n"
        ),
    ),
    "topics that Metadata creates cost nothing": Fault(
        "gateway/handlers/metadata.py",
        ("        decision = self._charge(session, client_id, name, strict=True, now_ms=now_ms)\n"),
        ('        decision = self._charge(session, "", name, strict=True, now_ms=now_ms)\n'),
    ),
    "a member tells all that it ever charged": Fault(
        "quotas/mutations.py", ("        untold = recorded - self._settled\n"), ("        untold = recorded\n")
    ),
    "what was told is told again": Fault(
        "quotas/rate_quotas.py",
        ("        self._settled += told\n        self._quiet = 0.0\n"),
        ("        self._quiet = 0.0\n"),
    ),
    "a share is negative": Fault(
        "gateway/fleet/exchange.py",
        ("        return 1 / max(self.members(now_ms=now_ms), self._rules.members)\n"),
        ("        return 0.5 - max(self.members(now_ms=now_ms), self._rules.members)\n"),
    ),
    "a worker's tick ends with an exception": Fault(
        "gateway/server/worker.py",
        (
            "        # First, so that what fails in one tick does not end them.\n"
            "        self._tick = asyncio.get_running_loop().call_later(TICK_S, self._alive)\n"
            '        self.link.tell("alive")\n'
            "        for each in self.on_tick:\n"
            "            each()\n"
        ),
        (
            '        self.link.tell("alive")\n'
            "        for each in self.on_tick:\n"
            "            each()\n"
            "        if len(self.handlers) > 3:\n"
            "            raise RuntimeError\n"
            "        self._tick = asyncio.get_running_loop().call_later(TICK_S, self._alive)\n"
        ),
    ),
    "a chunk for one side is written twice": Fault(
        "gateway/net/channel.py",
        ("                    upstream.writelines(chunks)\n                chunks.clear()\n"),
        (
            "                    upstream.writelines(chunks)\n"
            "                    upstream.write(chunks[0])\n"
            "                chunks.clear()\n"
        ),
    ),
    "a place of a connection is not given back": Fault(
        "gateway/net/listener.py",
        ("        self._places.release(self.name, channel.ip)\n"),
        ("        if len(self.channels) != 3:\n            self._places.release(self.name, channel.ip)\n"),
    ),
    "rows of a second are lost": Fault(
        "gateway/usage/recorder.py",
        ("now_ms=now_ms) for row in turn])\n"),
        ("now_ms=now_ms) for row in turn[:9]])\n"),
    ),
    "rows of a worker are written twice": Fault(
        "gateway/usage/recorder.py",
        ("                builder.add_rows(rows[at : at + ROWS_PER_TURN])\n"),
        (
            "                builder.add_rows(rows[at : at + ROWS_PER_TURN])\n"
            "                builder.add_rows(rows[at : at + 1])\n"
        ),
    ),
    "half of a Fetch is charged": Fault(
        "gateway/handlers/fetch.py",
        ("        wanted_ms = counter.record(delivered_bytes, throttling"),
        ("        wanted_ms = counter.record(delivered_bytes // 2, throttling"),
    ),
    "clients that lose power are not noticed": Fault(
        "gateway/net/listening.py", ("            watch_peer(listening)\n"), ("")
    ),
    "brokers that lose power are not noticed": Fault(
        "gateway/net/channel.py",
        ("                    watch_connected(connection.fileno(), connection.family)\n"),
        ("                    pass\n"),
    ),
    "a shorter wait replaces a longer one": Fault(
        "gateway/session/throttle_state.py",
        ("        if until_ms > self.until_ms:\n            if tracker is not None or"),
        ("        if True:\n            if tracker is not None or"),
    ),
    "the last part of a request is not charged": Fault(
        "gateway/session/parts.py",
        ("            self._on_last(came_bytes, now_ms)\n"),
        ("            self._on_last(0, now_ms)\n"),
    ),
    "a reply is charged at its head and as it comes": Fault(
        "gateway/session/parts.py", ("            tracker.expect(size, now_ms=now_ms)\n"), ("            pass\n")
    ),
    "what another member recorded is counted twice": Fault(
        "gateway/fleet/exchange.py",
        ("                    counter.record_others(amount, now_ms=max(now_ms, counter.last_ms))\n"),
        (
            "                    counter.record_others(amount, now_ms=max(now_ms, counter.last_ms))\n"
            "                    counter.record_others(amount, now_ms=max(now_ms, counter.last_ms))\n"
        ),
    ),
}

FAULTS_OF_SHARES: Final = {
    "weights are ignored": Fault(
        "quotas/lent_rates.py",
        ("        weight = limits.get(entity, QuotaKey.WEIGHT)\n"),
        ("        weight = None\n"),
    ),
    "guarantees are ignored": Fault(
        "quotas/lent_rates.py", ("            min(guarantee, ceiling),\n"), ("            0.0,\n")
    ),
    "a bucket that is not empty wants everything": Fault(
        "quotas/lent_rates.py",
        ("            if counter.blocked_until_ms > now_ms - _NEARLY_FULL_MS:\n"),
        ("            if True:\n"),
    ),
}
"""Those that the promises of `simulation.shares` have to find."""

FAULTS_OF_ATTACKS: Final = {
    "split": Fault(
        "quotas/group_quotas.py",
        ("            counters = (self._counter(GroupKey(scope, group), now_ms) for group in of_client)\n"),
        ("            counters = (self._counter(GroupKey(client_id, group), now_ms) for group in of_client)\n"),
    ),
    "overlap": Fault(
        "quotas/group_quotas.py",
        ("            found = tuple(each for each in counters if each is not None)\n"),
        ("            found = tuple(each for each in counters if each is not None)[:1]\n"),
    ),
    "idle": Fault(
        "quotas/rate_quotas.py",
        ("            blocked_ms = empty_ms\n"),
        ("            blocked_ms = max(blocked_ms, empty_ms - 5_000)\n"),
    ),
    "lie": Fault(
        "quotas/overload.py",
        ("    return sorted(values)[(len(values) - 1) // 2]\n"),
        ("    return sorted(values)[-1]\n"),
    ),
    "flap": Fault(
        "quotas/lent_rates.py",
        ("        division = self._of_tiers.get(tier)\n"),
        ("        division = self._of_tiers.get(tier) if tier == 2 else None\n"),
    ),
    "rename": Fault(
        "quotas/rate_quotas.py",
        ("        if lender.is_young(match, name):\n"),
        ("        if lender.is_new(match, name):\n"),
    ),
}
"""Those that the attacks of `simulation.attacks` have to find, by the name of the attack."""
