"""A table as text cells, before the terminal or a report gives it a form."""

from typing import NamedTuple


class Cells(NamedTuple):
    """A table: what it shows, its column names, and each row's name with its cells."""

    title: str
    columns: list[str]
    rows: list[tuple[str, list[str]]]

    def beside(self, other: "Cells") -> "Cells":
        """Both in one table; they have the same rows."""
        pairs = zip(self.rows, other.rows, strict=True)
        return Cells(self.title, self.columns + other.columns, [(name, row + more) for (name, row), (_, more) in pairs])

    def in_words(self, column: int) -> str:
        """One column as a sentence, for those who cannot see a figure."""
        return ", ".join(f"{name} {cells[column]}" for name, cells in self.rows)
