//! Tables for a terminal: aligned columns without borders and without trailing spaces.

use std::fmt;

/// Table. Its text ends without a line break.
pub(crate) struct Table(comfy_table::Table);

impl Table {
    pub(crate) fn new<'a>(headings: impl IntoIterator<Item = &'a str>) -> Self {
        let mut table = comfy_table::Table::new();
        table.load_style(comfy_table::presets::NOTHING);
        table.set_header(headings);
        Self(table)
    }

    pub(crate) fn add_row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.0.add_row(cells);
    }

    /// Returns true if the table has no rows.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.0.lines().map(|line| line.trim_end().to_owned()).collect();
        f.write_str(&lines.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_no_trailing_spaces() {
        let mut table = Table::new(["A", "LONG HEADING"]);
        assert!(table.is_empty());
        table.add_row(["wide cell".to_owned(), "x".to_owned()]);
        table.add_row(["y".to_owned(), String::new()]);
        assert_eq!(table.to_string(), " A          LONG HEADING\n wide cell  x\n y");
    }
}
