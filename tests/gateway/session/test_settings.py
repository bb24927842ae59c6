"""Defaults of a session's bounds, where another program decides what is right."""

from __future__ import annotations

from testkit.core import session_settings


def test_the_largest_frame_is_kafkas() -> None:
    assert session_settings().max_frame_bytes == 100 * 1024 * 1024


def test_c07_no_default_mute_reaches_the_delivery_timeout_of_java_producers() -> None:
    assert session_settings().max_mute_ms < 120_000


def test_b03_an_honest_client_at_50_kb_per_second_has_time_for_a_mebibyte() -> None:
    settings = session_settings()
    needed_ms = (1 << 20) * 1_000 // 50_000
    assert settings.frame_timeout_ms + (1 << 20) * 1_000 // settings.min_frame_bytes_per_s > needed_ms


def test_idle_connections_live_as_long_as_kafkas() -> None:
    assert session_settings().idle_timeout_ms == 10 * 60 * 1_000
