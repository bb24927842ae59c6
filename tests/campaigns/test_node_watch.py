"""The tap of the campaign `misrouted` sees a record of another node, however the bytes are cut."""

from campaigns.misrouted.node_watch import ConnectionWatch, Node, Seen, mark
from protocol.api_versions import misrouted_reply
from testkit import wire
from testkit.cases import every_case

HERE, ELSEWHERE, OTHER_CLUSTER = Node("abc-_1", 2), Node("abc-_1", 3), Node("xyz", 2)


def named(node: Node | None) -> bytes:
    names = {} if node is None else {"cluster_id": node.cluster_id, "node_id": node.node_id}
    software = {"client_software_name": "a", "client_software_version": "1"}
    return wire.request("ApiVersions", 5, client_id="reader-1", **software, **names)


def watched(node: Node | None, to_client: bytes, *, pieces: int = 1 << 20, bootstrap: bool = False) -> Seen:
    """What is seen when a client names a node and gets these bytes, in pieces."""
    watch = ConnectionWatch(seen := Seen(), bootstrap=bootstrap)
    for look, data in ((watch.from_client, named(node)), (watch.to_client, to_client)):
        for at in range(0, len(data), pieces):
            look(data[at : at + pieces])
    return seen


ANSWER = wire.response("ApiVersions", 5, error_code=0, api_keys=[])


@every_case("pieces", [1, 3, 7, 50, 1 << 20])
def test_records_of_the_named_node_are_right_and_all_others_wrong(pieces: int) -> None:
    data = ANSWER + bytes(100) + b"".join(mark(each) + bytes(9) for each in (HERE, ELSEWHERE, HERE, OTHER_CLUSTER))
    seen = watched(HERE, data, pieces=pieces)
    assert seen.records == 4
    assert seen.wrong == [(ELSEWHERE, HERE), (OTHER_CLUSTER, HERE)]
    assert seen.sent_back == set()


@every_case("bootstrap", [False, True])
def test_a_client_that_names_no_node_at_a_brokers_port_is_known_by_name(bootstrap: bool) -> None:
    seen = watched(None, ANSWER + mark(HERE), bootstrap=bootstrap)
    assert (seen.wrong, seen.records, seen.unnamed_records) == ([], 1, 1)
    assert seen.unnamed == (set() if bootstrap else {"reader-1"})


@every_case("pieces", [1, 5, 1 << 20])
def test_clients_that_are_sent_back_are_known_by_name(pieces: int) -> None:
    seen = watched(HERE, misrouted_reply(1), pieces=pieces)
    assert (seen.sent_back, seen.records) == ({"reader-1"}, 0)
