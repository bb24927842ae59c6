"""The layout of usage records is a promise to files that lie on disks for weeks."""

import pytest

from quotas.usage_record import VERSION, Event, Row

ROW_OF_VERSION_1 = (
    "listener user client_id api node requests bytes_in bytes_out offered admitted max_units rejected "
    "rejected_units delayed throttle_ms muted_ms quota level_end flags connections first_ms beside in_force"
)
EVENT_OF_VERSION_1 = "offset_ms listener user client_id api units strict admitted throttle_ms correlation_id attempt"


@pytest.mark.parametrize(("positions", "names"), [(Row, ROW_OF_VERSION_1), (Event, EVENT_OF_VERSION_1)])
def test_positions_of_version_1_stay_where_they_are(positions: type[Row | Event], names: str) -> None:
    assert VERSION == 1
    assert [position.name.lower() for position in positions] == names.split()
    assert [int(position) for position in positions] == list(range(len(positions)))
