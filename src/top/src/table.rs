//! Table of cells: filter, order, text form. The module is pure.

mod cell;

pub(crate) use self::cell::{Cell, Order, Tone};

use ratatui::text::Line;

/// Column of a table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    pub(crate) heading: &'static str,
    /// True if cells are aligned to the right, as numbers are.
    pub(crate) is_number: bool,
    /// Rank by which columns are chosen if the terminal is narrow: 0 is shown first.
    pub(crate) rank: u8,
    /// True if the column uses the width that other columns leave.
    pub(crate) is_flexible: bool,
}

impl Column {
    pub(crate) const fn text(heading: &'static str, rank: u8) -> Self {
        Self {
            heading,
            is_number: false,
            rank,
            is_flexible: false,
        }
    }

    pub(crate) const fn flexible(heading: &'static str, rank: u8) -> Self {
        Self {
            heading,
            is_number: false,
            rank,
            is_flexible: true,
        }
    }

    pub(crate) const fn number(heading: &'static str, rank: u8) -> Self {
        Self {
            heading,
            is_number: true,
            rank,
            is_flexible: false,
        }
    }
}

/// Row of a table. The `id` identifies the object between updates.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    pub(crate) id: String,
    pub(crate) cells: Vec<Cell>,
}

#[derive(Debug, Clone)]
pub(crate) struct Table {
    pub(crate) columns: &'static [Column],
    pub(crate) rows: Vec<Row>,
}

impl Table {
    /// Keeps the rows that contain every word of `filter`, ignoring case.
    pub(crate) fn filtered(mut self, filter: &str) -> Self {
        let filter = filter.to_lowercase();
        let words: Vec<&str> = filter.split_whitespace().collect();
        self.rows.retain(|row| {
            let texts: Vec<String> = row.cells.iter().map(|cell| cell.text.to_lowercase()).collect();
            words
                .iter()
                .all(|word| texts.iter().any(|text| text.contains(word)))
        });
        self
    }

    /// Sorts the rows by a column. Rows with equal or unknown cells keep their order, and unknown
    /// cells are last in both directions.
    pub(crate) fn sorted(mut self, column: usize, is_reversed: bool) -> Self {
        let unknown = Order::Unknown;
        let of = |row: &Row| {
            row.cells
                .get(column)
                .map_or(unknown.clone(), |cell| cell.order.clone())
        };
        self.rows
            .sort_by_cached_key(|row| cell::Key::new(of(row), is_reversed));
        self
    }

    /// Returns the width of a column in terminal cells.
    pub(crate) fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.cells.get(column));
        let heading = self.columns.get(column).map_or("", |column| column.heading);
        cells
            .map(|cell| width(&cell.text))
            .fold(width(heading), usize::max)
    }

    /// Returns the table as aligned columns without trailing spaces. `None` without rows.
    pub(crate) fn text(&self) -> Option<String> {
        if self.rows.is_empty() {
            return None;
        }
        let widths: Vec<usize> = (0..self.columns.len()).map(|column| self.width(column)).collect();
        let headings: Vec<&str> = self.columns.iter().map(|column| column.heading).collect();
        let rows = self.rows.iter();
        let rows = rows.map(|row| row.cells.iter().map(|cell| cell.text.as_str()).collect());
        let text = std::iter::once(headings).chain(rows).map(|cells: Vec<&str>| {
            let padded = cells.iter().zip(self.columns).zip(&widths);
            let padded: Vec<String> = padded
                .map(|((cell, column), width)| pad(cell, *width, column.is_number))
                .collect();
            padded.join("  ").trim_end().to_owned() + "\n"
        });
        Some(text.collect())
    }
}

/// Returns the width of a text in terminal cells.
pub(crate) fn width(text: &str) -> usize {
    Line::raw(text).width()
}

/// Pads a text with spaces to `to` terminal cells.
pub(crate) fn pad(text: &str, to: usize, is_number: bool) -> String {
    let spaces = " ".repeat(to.saturating_sub(width(text)));
    match is_number {
        true => spaces + text,
        false => text.to_owned() + &spaces,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 2] = [Column::text("NAME", 0), Column::number("TOK/S", 0)];

    fn table(rows: &[(&str, Option<f64>)]) -> Table {
        let row = |(name, speed): &(&str, Option<f64>)| Row {
            id: (*name).to_owned(),
            cells: vec![
                Cell::text(*name),
                Cell::number(*speed, |speed| format!("{speed:.1}")),
            ],
        };
        Table {
            columns: &COLUMNS,
            rows: rows.iter().map(row).collect(),
        }
    }

    fn names(table: &Table) -> Vec<&str> {
        table.rows.iter().map(|row| row.id.as_str()).collect()
    }

    #[test]
    fn sorts_by_number_with_unknown_values_last() {
        let rows = [("a", Some(9.0)), ("b", None), ("c", Some(10.0)), ("d", Some(9.0))];
        assert_eq!(names(&table(&rows).sorted(1, false)), ["a", "d", "c", "b"]);
        assert_eq!(names(&table(&rows).sorted(1, true)), ["c", "a", "d", "b"]);
        assert_eq!(names(&table(&rows).sorted(0, true)), ["d", "c", "b", "a"]);
        assert_eq!(names(&table(&rows).sorted(7, true)), ["a", "b", "c", "d"]);
    }

    #[test]
    fn names_with_numbers_are_sorted_by_number() {
        let rows = [("mini-10", None), ("mini-2", None), ("Mini-3", None)];
        assert_eq!(
            names(&table(&rows).sorted(0, false)),
            ["mini-2", "Mini-3", "mini-10"]
        );
    }

    #[test]
    fn filter_needs_every_word_in_some_cell() {
        let rows = [("mini-1", Some(9.0)), ("studio-1", Some(90.0)), ("mini-2", None)];
        let filtered = |filter| {
            let table = table(&rows).filtered(filter);
            names(&table).join(" ")
        };
        assert_eq!(filtered(""), "mini-1 studio-1 mini-2");
        assert_eq!(filtered("MINI"), "mini-1 mini-2");
        assert_eq!(filtered("mini 9.0"), "mini-1");
        assert_eq!(filtered(" 1 x"), "");
    }

    #[test]
    fn text_is_aligned_without_trailing_spaces() {
        let text = table(&[("mini-1", Some(9.0)), ("日本", None)]).text();
        assert_eq!(
            text.as_deref(),
            Some("NAME    TOK/S\nmini-1    9.0\n日本        -\n")
        );
        assert_eq!(table(&[]).text(), None);
    }
}
