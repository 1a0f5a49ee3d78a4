//! State of the view that keys change: table, selection, order, filter, details. The module is pure.
#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "most keys have no meaning in most modes"
)]

mod key;
mod list;

pub(crate) use self::key::Key;
pub(crate) use self::list::List;

use crate::table::Table;
use crate::table_kind::TableKind;
use crate::view::View;

/// Maximum length of a filter, in characters.
const MAX_FILTER: usize = 100;

/// Action of the terminal after a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    Continue,
    Quit,
    /// Stop the process, as Ctrl-Z does in a shell.
    Suspend,
    /// Draw every cell again.
    Redraw,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    /// A table is shown.
    #[default]
    Table,
    /// A table is shown, and the filter is edited.
    Filter,
    /// One object of the table is shown.
    Details { id: String, scroll: usize },
    /// Keys and columns are explained.
    Help { scroll: usize },
}

/// See the module documentation.
#[derive(Debug, Clone, Default)]
pub(crate) struct Screen {
    pub(crate) table: TableKind,
    pub(crate) mode: Mode,
    lists: [List; TableKind::ALL.len()],
    /// Number of lines of the body, as last drawn.
    page: usize,
}

impl Screen {
    pub(crate) fn new(table: TableKind) -> Self {
        Self {
            table,
            ..Self::default()
        }
    }

    /// State of the shown table.
    pub(crate) fn list(&self) -> &List {
        &self.lists[self.table.index()]
    }

    fn list_mut(&mut self) -> &mut List {
        &mut self.lists[self.table.index()]
    }

    /// Returns the rows of the shown table, filtered and in order.
    pub(crate) fn rows(&self, view: &View) -> Table {
        let list = self.list();
        let filtered = view.table(self.table).filtered(&list.filter);
        filtered.sorted(list.sort, list.is_reversed)
    }

    /// Adapts positions to the number of visible rows, and of lines of the details or of the help.
    pub(crate) fn fit(&mut self, view: &View, page: usize, lines: usize) {
        self.page = page;
        let rows = self.rows(view);
        self.list_mut().fit(&rows, page.saturating_sub(1));
        if let Mode::Details { scroll, .. } | Mode::Help { scroll } = &mut self.mode {
            *scroll = (*scroll).min(lines.saturating_sub(page));
        }
    }

    pub(crate) fn press(&mut self, key: Key, view: &View) -> Effect {
        match key {
            Key::Interrupt => return Effect::Quit,
            Key::Suspend => return Effect::Suspend,
            Key::Redraw => return Effect::Redraw,
            _ => {}
        }
        let page = self.page.saturating_sub(1).max(1);
        match &mut self.mode {
            Mode::Filter => self.press_in_filter(key),
            Mode::Help { scroll } => match key {
                Key::Escape | Key::Enter | Key::Char('?') => self.mode = Mode::Table,
                Key::Char('q') => return Effect::Quit,
                key => scroll_by(scroll, key, page),
            },
            Mode::Details { scroll, .. } => match key {
                Key::Escape | Key::Backspace => self.mode = Mode::Table,
                Key::Char('q') => return Effect::Quit,
                Key::Char('?') => self.mode = Mode::Help { scroll: 0 },
                key => scroll_by(scroll, key, page),
            },
            Mode::Table => return self.press_in_table(key, view),
        }
        Effect::Continue
    }

    fn press_in_filter(&mut self, key: Key) {
        let filter = &mut self.list_mut().filter;
        match key {
            Key::Enter => self.mode = Mode::Table,
            Key::Escape => {
                filter.clear();
                self.mode = Mode::Table;
            }
            Key::Backspace => drop(filter.pop()),
            Key::ClearLine => filter.clear(),
            Key::Char(c) if !c.is_control() && filter.chars().count() < MAX_FILTER => filter.push(c),
            _ => {}
        }
    }

    fn press_in_table(&mut self, key: Key, view: &View) -> Effect {
        let rows = self.rows(view);
        let page = self.page.saturating_sub(2).max(1);
        let columns = rows.columns.len().max(1);
        let list = self.list_mut();
        match key {
            Key::Up | Key::Char('k') => list.select_before(&rows, 1),
            Key::Down | Key::Char('j') => list.select_after(&rows, 1),
            Key::PageUp => list.select_before(&rows, page),
            Key::PageDown => list.select_after(&rows, page),
            Key::Home | Key::Char('g') => list.select_before(&rows, usize::MAX),
            Key::End | Key::Char('G') => list.select_after(&rows, usize::MAX),
            Key::Char('s') => list.sort = (list.sort + 1) % columns,
            Key::Char('S') => list.sort = (list.sort + columns - 1) % columns,
            Key::Char('r') => list.is_reversed = !list.is_reversed,
            Key::Escape => list.filter.clear(),
            Key::Enter => {
                if let Some(id) = list.selected(&rows) {
                    let id = id.to_owned();
                    self.mode = Mode::Details { id, scroll: 0 };
                }
            }
            Key::Tab | Key::Right | Key::Char('l') => self.table = self.table.after(1),
            Key::BackTab | Key::Left | Key::Char('h') => {
                self.table = self.table.after(TableKind::ALL.len() - 1);
            }
            Key::Char('/') => self.mode = Mode::Filter,
            Key::Char('?') => self.mode = Mode::Help { scroll: 0 },
            Key::Char('q') => return Effect::Quit,
            Key::Char(digit) => {
                let number = digit.to_digit(10).and_then(|digit| usize::try_from(digit).ok());
                let table = number.and_then(|number| TableKind::ALL.get(number.checked_sub(1)?));
                self.table = table.copied().unwrap_or(self.table);
            }
            Key::Backspace | Key::ClearLine | Key::Interrupt | Key::Suspend | Key::Redraw => {}
        }
        Effect::Continue
    }
}

/// Scrolls lines. [`Screen::fit`] limits the result.
fn scroll_by(scroll: &mut usize, key: Key, page: usize) {
    *scroll = match key {
        Key::Up | Key::Char('k') => scroll.saturating_sub(1),
        Key::Down | Key::Char('j') => scroll.saturating_add(1),
        Key::PageUp => scroll.saturating_sub(page),
        Key::PageDown | Key::Char(' ') => scroll.saturating_add(page),
        Key::Home | Key::Char('g') => 0,
        Key::End | Key::Char('G') => usize::MAX,
        _ => *scroll,
    };
}

#[cfg(test)]
mod tests;
