"""The screen of ``sluice top``, in Textual. All text is passed as `Text`, which has no markup."""

from __future__ import annotations

import asyncio
from typing import ClassVar
from urllib.parse import urlsplit

from rich.console import JustifyMethod
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static

from gateway.cli.admin_port import CLUSTERS, AdminPortError
from gateway.cli.top_rows import (
    FIRST_SORTED_BY,
    MAX_ROWS,
    NEAR,
    SORTED_BY,
    Client,
    Snapshot,
    Trend,
    columns_of,
    shown,
    snapshot_of,
    title_of,
    why_of,
)
from gateway.cli.why import text_of
from quotas.entities import counted


class ClientTable(DataTable[Text]):
    """The table of clients; the footer shows the effect of Enter."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "select_cursor", "Why")]


class WhyScreen(ModalScreen[None]):
    """The journal's entries of one counter."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "dismiss", "Back"),
    ]
    CSS = "WhyScreen { align: center middle; } #box { width: 90%; height: 80%; border: round $accent; padding: 1; }"

    def __init__(self, client: Client, text: str) -> None:
        """Show this text about a client."""
        super().__init__()
        self._title = f"why: {shown(client.name, 200)}"
        self._text = text

    def compose(self) -> ComposeResult:
        """See Textual."""
        with VerticalScroll(id="box"):
            yield Static(Text(f"{self._title}\n\n{self._text}"))
        yield Footer()


class TopScreen(App[None]):
    """Queries the gateway at an interval, and shows its responses."""

    TITLE = "sluice top"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "sort", "Sort"),
        Binding("r", "reverse", "Reverse"),
        Binding("slash", "filter", "Search"),
        Binding("m", "members", "Members"),
        Binding("escape", "all", "All", show=False),
        Binding("q", "quit", "Quit"),
    ]
    CSS = """
        #filter { display: none; }
        #filter.on { display: block; }
        #head { height: auto; max-height: 50%; overflow-y: auto; }
        DataTable { height: 1fr; }
    """

    def __init__(self, url: str, first: Snapshot, *, interval_s: float) -> None:
        """Begin with the first snapshot."""
        super().__init__()
        self._url = url
        self._snapshot = first
        self._interval_s = interval_s
        self._by = FIRST_SORTED_BY
        self._trend = Trend()
        self._trend.add(first.counters)
        path = urlsplit(url).path
        self._cluster = path.removeprefix(CLUSTERS) if path.startswith(CLUSTERS) else ""
        self._reversed = False
        self._wanted = ""
        self._with_members = False
        self._fault = ""
        self._rows: list[Client] = []

    def compose(self) -> ComposeResult:
        """See Textual."""
        yield Static(id="head")
        yield Input(placeholder="part of a user or client id", id="filter")
        yield ClientTable(cursor_type="row", zebra_stripes=True)
        yield Footer()

    def on_mount(self) -> None:
        """See Textual."""
        self._table.focus()
        self._draw()
        self.set_interval(self._interval_s, self._ask)

    @property
    def _table(self) -> ClientTable:
        return self.query_one(ClientTable)

    def on_resize(self) -> None:
        """Choose the columns for the new width."""
        self._draw()

    async def _ask(self) -> None:
        try:
            self._snapshot = await asyncio.to_thread(snapshot_of, self._url)
            self._trend.add(self._snapshot.counters)
            self._fault = ""
        except AdminPortError as exc:
            self._fault = f"{exc}; these numbers are old"
        self._draw()

    def _draw(self) -> None:
        snapshot, width = self._snapshot, self.size.width
        found = snapshot.rows(by=self._by, reverse=self._reversed, wanted=self._wanted)
        lines = [*snapshot.head, *(snapshot.members if self._with_members else [])]
        lines.insert(1, self._trend.line(width))
        if self._cluster:
            lines[0] = f"cluster {self._cluster}  {lines[0]}"
        head = Text("\n".join(lines))
        searched = f", search: {shown(self._wanted)}" if self._wanted else ""
        rows = (
            f"the first {MAX_ROWS} of {len(found)} rows"
            if len(found) > MAX_ROWS
            else counted(len(found), "row")
        )
        known = "; these are the busiest clients" if snapshot.summed else ""
        head.append(f"\n{rows}{known}{searched}", "dim")
        if self._fault:
            head.append(f"\n{self._fault}", "bold red")
        self.query_one("#head", Static).update(head)
        self._draw_table(found[:MAX_ROWS], width)

    def _draw_table(self, found: list[Client], width: int) -> None:
        table = self._table
        row = table.cursor_row
        # A cursor on the first row stays there. On another row it follows the client.
        chosen = self._rows[row].key if 0 < row < len(self._rows) else None
        self._rows = found
        columns = columns_of(width, self._by)
        table.clear(columns=True)
        for column in columns:
            title = title_of(column, self._by, reverse=self._reversed)
            justify: JustifyMethod = "left" if column.name == "name" else "right"
            style = "bold reverse" if column.name == self._by else "bold"
            table.add_column(Text(title, style, justify=justify), width=column.width, key=column.name)
        for at, client in enumerate(found):
            used = client.used or 0
            style = "bold red" if client.waits_ms or used > 1 else "yellow" if used >= NEAR else ""
            table.add_row(
                *(
                    Text(client.cell(column), style, justify="left" if column.name == "name" else "right")
                    for column in columns
                )
            )
            if client.key == chosen:
                row = at
        if found:
            table.move_cursor(row=min(max(row, 0), len(found) - 1), animate=False)

    async def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Show the journal's entries of the row's client."""
        client = self._rows[event.cursor_row]
        if client.other:
            return
        try:
            # The first line names the client, like the title, so it is left out.
            text = text_of(await asyncio.to_thread(why_of, self._url, client)).partition("\n\n")[2]
        except (AdminPortError, KeyError, TypeError) as exc:
            text = str(exc)
        self.push_screen(WhyScreen(client, text))

    def action_sort(self) -> None:
        """Sort by the next column."""
        self._by = SORTED_BY[(SORTED_BY.index(self._by) + 1) % len(SORTED_BY)]
        self._draw()

    def action_reverse(self) -> None:
        """Reverse the order."""
        self._reversed = not self._reversed
        self._draw()

    def action_members(self) -> None:
        """Show or hide the lines of shares, members and workers."""
        self._with_members = not self._with_members
        self._draw()

    def action_filter(self) -> None:
        """Open the input for a part of a name."""
        field = self.query_one("#filter", Input)
        field.add_class("on")
        field.focus()

    def action_all(self) -> None:
        """Remove the filter."""
        field = self.query_one("#filter", Input)
        field.value = ""
        field.remove_class("on")
        self._table.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Apply the changed filter."""
        self._wanted = event.value
        self._draw()

    def on_input_submitted(self) -> None:
        """Return to the rows."""
        self._table.focus()
