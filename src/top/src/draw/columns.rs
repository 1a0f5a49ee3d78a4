//! Choice of the columns that fit a terminal.

use crate::table::Table;

/// Cells between columns.
pub(super) const GAP: usize = 2;
/// Least width of a cut column.
const LEAST: usize = 10;
/// Least width of a flexible column.
const LEAST_FLEXIBLE: usize = 20;
/// Width of a bar, with the space after it.
pub(super) const BAR: usize = 13;
/// Rank of bars: columns with a higher rank are less important.
const BAR_RANK: u8 = 6;

/// Column on the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shown {
    /// Index in the table.
    pub(super) column: usize,
    /// Width without the gap and without the bar.
    pub(super) width: usize,
    pub(super) has_bar: bool,
}

/// Part of a table that needs width.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Bar,
    Column,
}

/// Returns the columns that fit `width` cells, chosen by rank and in the order of the table. The most
/// important column is always shown, cut if necessary.
pub(super) fn choose(table: &Table, width: usize) -> Vec<Shown> {
    let mut parts: Vec<(u8, Part, usize)> = Vec::new();
    for (index, column) in table.columns.iter().enumerate() {
        parts.push((column.rank, Part::Column, index));
        let mut cells = table.rows.iter().filter_map(|row| row.cells.get(index));
        if cells.any(|cell| cell.share.is_some()) {
            parts.push((BAR_RANK, Part::Bar, index));
        }
    }
    parts.sort();
    let mut shown: Vec<Shown> = Vec::new();
    let mut left = width;
    for (_, part, column) in parts {
        match part {
            Part::Bar => {
                let shown = shown.iter_mut().find(|shown| shown.column == column);
                if let Some(shown) = shown.filter(|_| left >= BAR) {
                    shown.has_bar = true;
                    left -= BAR;
                }
            }
            Part::Column => {
                let gap = if shown.is_empty() { 0 } else { GAP };
                let full = table.width(column);
                let (wanted, least) = match (shown.is_empty(), table.columns[column].is_flexible) {
                    // The most important column leaves room for others.
                    (true, _) => (full.min((width * 2 / 5).max(LEAST)).min(width), 0),
                    (false, true) => (full.min(LEAST_FLEXIBLE), full.min(LEAST_FLEXIBLE)),
                    (false, false) if table.columns[column].is_number => (full, full),
                    (false, false) => (full, full.min(LEAST)),
                };
                let granted = wanted.min(left.saturating_sub(gap));
                // A less important column never replaces a more important one.
                if !shown.is_empty() && (granted < least || granted == 0) {
                    break;
                }
                shown.push(Shown {
                    column,
                    width: granted,
                    has_bar: false,
                });
                left = left.saturating_sub(gap + granted);
            }
        }
    }
    // Columns that were cut are widened to their full width, as far as cells are left.
    for shown in &mut shown {
        let more = table.width(shown.column).saturating_sub(shown.width).min(left);
        shown.width += more;
        left -= more;
    }
    shown.sort_by_key(|shown| shown.column);
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{Cell, Column, Row};

    const COLUMNS: [Column; 4] = [
        Column::text("AGE", 3),
        Column::text("NAME", 0),
        Column::number("MEMORY", 1),
        Column::flexible("MESSAGE", 2),
    ];

    fn shown(width: usize) -> String {
        let table = Table {
            columns: &COLUMNS,
            rows: vec![Row {
                id: "a".to_owned(),
                cells: vec![
                    Cell::text("5d"),
                    Cell::text("x".repeat(20)),
                    Cell::text("12.0/16.0Gi").with_share(0.5),
                    Cell::text("y".repeat(100)),
                ],
            }],
        };
        let chosen = choose(&table, width);
        let gaps = GAP * chosen.len().saturating_sub(1);
        let used: usize = chosen
            .iter()
            .map(|one| one.width + if one.has_bar { BAR } else { 0 })
            .sum();
        assert!(used + gaps <= width, "{chosen:?} in {width}");
        let show = |one: &Shown| {
            let bar = if one.has_bar { "+bar" } else { "" };
            format!("{}={}{bar}", COLUMNS[one.column].heading, one.width)
        };
        chosen.iter().map(show).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn narrow_terminals_show_the_most_important_columns() {
        assert_eq!(shown(0), "NAME=0");
        assert_eq!(shown(5), "NAME=5");
        assert_eq!(shown(30), "NAME=17 MEMORY=11");
        assert_eq!(shown(40), "NAME=20 MEMORY=11");
        assert_eq!(shown(60), "AGE=3 NAME=20 MEMORY=11 MESSAGE=20");
    }

    #[test]
    fn wide_terminals_show_bars_and_long_texts() {
        assert_eq!(shown(90), "AGE=3 NAME=20 MEMORY=11+bar MESSAGE=37");
        assert_eq!(shown(300), "AGE=3 NAME=20 MEMORY=11+bar MESSAGE=100");
    }
}
