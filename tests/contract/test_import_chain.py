"""How far a reader of the gateway has to go: the longest chain of imports, those for types included."""

from functools import cache

from grimp import build_graph

MOST_FILES = 9


def test_no_chain_of_imports_in_the_gateway_is_longer_than_the_bound() -> None:
    graph = build_graph("gateway", cache_dir=None)

    @cache
    def longest(module: str) -> tuple[str, ...]:
        imported = graph.find_modules_directly_imported_by(module)
        return (module, *max(map(longest, sorted(imported)), key=len, default=()))

    chain = max(map(longest, sorted(graph.modules)), key=len)
    assert len(chain) <= MOST_FILES, " > ".join(chain)
    assert len(chain) > MOST_FILES // 2  # the graph is read
