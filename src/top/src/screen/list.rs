//! Selection, order and filter of one table.

use crate::table::Table;

/// See the module documentation. The selection follows its object, not its position.
#[derive(Debug, Clone, Default)]
pub(crate) struct List {
    /// Column by which rows are sorted.
    pub(crate) sort: usize,
    pub(crate) is_reversed: bool,
    pub(crate) filter: String,
    /// `id` of the selected row. `None` before the first selection: the first row is selected.
    selected: Option<String>,
    /// Last position of the selected row, for the case that its object disappears.
    position: usize,
    /// First visible row.
    pub(crate) offset: usize,
}

impl List {
    /// Returns the position of the selected row. `None` without rows.
    pub(crate) fn position(&self, rows: &Table) -> Option<usize> {
        let selected = self.selected.as_ref();
        let found = rows.rows.iter().position(|row| Some(&row.id) == selected);
        let last = rows.rows.len().checked_sub(1)?;
        Some(found.unwrap_or(self.position).min(last))
    }

    /// Returns the `id` of the selected row.
    pub(super) fn selected<'a>(&self, rows: &'a Table) -> Option<&'a str> {
        let position = self.position(rows)?;
        rows.rows.get(position).map(|row| row.id.as_str())
    }

    pub(super) fn select_after(&mut self, rows: &Table, steps: usize) {
        let position = self.position(rows).unwrap_or_default();
        self.select(rows, position.saturating_add(steps));
    }

    pub(super) fn select_before(&mut self, rows: &Table, steps: usize) {
        let position = self.position(rows).unwrap_or_default();
        self.select(rows, position.saturating_sub(steps));
    }

    fn select(&mut self, rows: &Table, position: usize) {
        self.position = position.min(rows.rows.len().saturating_sub(1));
        self.selected = rows.rows.get(self.position).map(|row| row.id.clone());
    }

    /// Scrolls so that the selected row is one of `visible` rows.
    pub(super) fn fit(&mut self, rows: &Table, visible: usize) {
        let Some(position) = self.position(rows) else {
            self.offset = 0;
            return;
        };
        self.position = position;
        let earliest = (position + 1).saturating_sub(visible.max(1));
        let last = rows.rows.len().saturating_sub(visible);
        self.offset = self.offset.clamp(earliest, position).min(last.max(earliest));
    }
}
