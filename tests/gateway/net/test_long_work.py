"""First steps of long work: as many in one turn of the loop as it has time for."""

from gateway.net.long_work import FREE_BYTES, LongWork
from tests.gateway.net.test_batch_scheduler import Loop


def test_large_frames_that_come_together_begin_eight_in_a_turn() -> None:
    loop = Loop()
    work = LongWork(loop)  # type: ignore[arg-type]
    for _ in range(2):
        assert [work.begins_now(25_000) for _ in range(30)] == [True] * 8 + [False] * 22
        assert work.begins_now(FREE_BYTES)  # small ones go on
        loop.turn()
    assert not loop.soon
