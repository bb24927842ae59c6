"""The screen of ``sluice top``, in Textual. All text is passed as `Text`, which has no markup."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static

from gateway.cli.admin_port import AdminPortError
from gateway.cli.top_rows import COLUMNS, NEAR, SORTED_BY, Client, Snapshot, shown, snapshot_of, why_of
from gateway.cli.why import text_of


class WhyScreen(ModalScreen[None]):
    """What the journal has of one counter."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "dismiss", "Back"),
    ]
    CSS = "WhyScreen { align: center middle; } #box { width: 90%; height: 80%; border: round $accent; padding: 1; }"

    def __init__(self, client: Client, text: str) -> None:
        """Show this text about a client."""
        super().__init__()
        self._title = f"why: {shown(client.user) or '(all)'} / {shown(client.client_id) or '(all)'}"
        self._text = text

    def compose(self) -> ComposeResult:
        """See Textual."""
        with VerticalScroll(id="box"):
            yield Static(Text(f"{self._title}\n\n{self._text}"))
        yield Footer()


class TopScreen(App[None]):
    """Asks the gateway again and again, and shows its answers."""

    TITLE = "sluice top"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "sort", "Sort"),
        Binding("r", "reverse", "Reverse"),
        Binding("slash", "filter", "Filter"),
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
        """Begin with the first answer."""
        super().__init__()
        self._url = url
        self._snapshot = first
        self._interval_s = interval_s
        self._by = "used"
        self._reversed = False
        self._wanted = ""
        self._with_members = False
        self._fault = ""
        self._rows: list[Client] = []

    def compose(self) -> ComposeResult:
        """See Textual."""
        yield Static(id="head")
        yield Input(placeholder="part of a user or client id", id="filter")
        yield DataTable(cursor_type="row", zebra_stripes=True)
        yield Footer()

    def on_mount(self) -> None:
        """See Textual."""
        self._table.add_columns(*COLUMNS)
        self._table.focus()
        self._draw()
        self.set_interval(self._interval_s, self._ask)

    @property
    def _table(self) -> DataTable[Text]:
        return self.query_one(DataTable)

    async def _ask(self) -> None:
        try:
            self._snapshot = await asyncio.to_thread(snapshot_of, self._url)
            self._fault = ""
        except AdminPortError as exc:
            self._fault = f"{exc}; these numbers are old"
        self._draw()

    def _draw(self) -> None:
        head = Text("\n".join(self._snapshot.head + (self._snapshot.members if self._with_members else [])))
        order = f"sorted by {self._by}{', waiting clients first' if self._by == 'used' else ''}"
        order += ", reversed" if self._reversed else ""
        found = self._snapshot.rows(by=self._by, reverse=self._reversed, wanted=self._wanted)
        filtered = f", filter: {shown(self._wanted)}" if self._wanted else ""
        head.append(f"\n{len(found)} of {len(self._snapshot.clients)} rows, {order}{filtered}", "dim")
        if self._fault:
            head.append(f"\n{self._fault}", "bold red")
        self.query_one("#head", Static).update(head)
        table = self._table
        row = table.cursor_row
        chosen = self._rows[row].key if 0 <= row < len(self._rows) else None
        self._rows = found
        table.clear()
        for at, client in enumerate(found):
            style = "bold red" if (client.used or 0) > 1 else "yellow" if (client.used or 0) >= NEAR else ""
            names, rest = client.cells()[:2], client.cells()[2:]
            table.add_row(
                *(Text(cell, style) for cell in names), *(Text(cell, style, justify="right") for cell in rest)
            )
            if client.key == chosen:
                row = at
        if found:
            table.move_cursor(row=min(max(row, 0), len(found) - 1), animate=False)

    async def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """A row's client is looked into."""
        client = self._rows[event.cursor_row]
        try:
            # Its first line names the client, as the title does.
            text = text_of(await asyncio.to_thread(why_of, self._url, client)).partition("\n\n")[2]
        except (AdminPortError, KeyError, TypeError) as exc:
            text = str(exc)
        self.push_screen(WhyScreen(client, text))

    def action_sort(self) -> None:
        """By the next column."""
        self._by = SORTED_BY[(SORTED_BY.index(self._by) + 1) % len(SORTED_BY)]
        self._draw()

    def action_reverse(self) -> None:
        """The other way round."""
        self._reversed = not self._reversed
        self._draw()

    def action_members(self) -> None:
        """Lines of members and workers, or none."""
        self._with_members = not self._with_members
        self._draw()

    def action_filter(self) -> None:
        """Ask for a part of a name."""
        field = self.query_one("#filter", Input)
        field.add_class("on")
        field.focus()

    def action_all(self) -> None:
        """No filter."""
        field = self.query_one("#filter", Input)
        field.value = ""
        field.remove_class("on")
        self._table.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """The filter has changed."""
        self._wanted = event.value
        self._draw()

    def on_input_submitted(self) -> None:
        """Back to the rows."""
        self._table.focus()
