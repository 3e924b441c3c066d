"""A table as cells, for the terminal and for a report: both show the same."""

from typing import NamedTuple

from rich import box
from rich.table import Table

from looprl.measure.page import number_table, shown


class Cells(NamedTuple):
    """A table: what it shows, what its rows are, its column names, and each row's name with its cells."""

    title: str
    row_kind: str
    columns: list[str]
    rows: list[tuple[str, list[str]]]

    def beside(self, other: "Cells") -> "Cells":
        """Both in one table; they have the same rows."""
        pairs = zip(self.rows, other.rows, strict=True)
        rows = [(name, row + more) for (name, row), (_, more) in pairs]
        return Cells(self.title, self.row_kind, self.columns + other.columns, rows)

    def in_words(self, column: int) -> str:
        """One column as a sentence, for those who cannot see a figure."""
        return ", ".join(f"{name} {cells[column]}" for name, cells in self.rows)

    def as_text(self) -> Table:
        """The table for the terminal."""
        table = Table(
            box=box.SIMPLE_HEAD,
            show_edge=False,
            padding=(0, 1, 0, 0),
            title=f"\n{self.title}",
            title_justify="left",
            title_style="",
        )
        table.add_column(self.row_kind, overflow="fold")
        for column in self.columns:  # folded where the terminal is narrow: an ellipsis would hide a number
            table.add_column(column, justify="right", overflow="fold")
        for name, row in self.rows:
            table.add_row(name, *row)
        return table

    def as_html(self) -> str:
        """The table under its title, for a page."""
        return f"<h3>{shown(self.title)}</h3>" + number_table(self.columns, self.rows)
