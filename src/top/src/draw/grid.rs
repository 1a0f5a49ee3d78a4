//! Rows of a table.

use ratatui::layout::Rect;
use ratatui::style::Style;

use super::Canvas;
use super::bar::bar;
use super::columns::{BAR, GAP, Shown, choose};
use crate::connection::Status;
use crate::screen::Screen;
use crate::table::{Cell, Table, pad, width};
use crate::view::View;

pub(super) fn draw(canvas: &mut Canvas<'_>, body: Rect, view: &View, screen: &Screen, status: &Status) {
    let rows = screen.rows(view);
    let list = screen.list();
    let shown = choose(&rows, usize::from(body.width));
    let mut lines = body.rows();
    // A single line shows a row, not the headings.
    if body.height > 1
        && let Some(line) = lines.next()
    {
        headings(canvas, line, &rows, &shown, screen);
    }
    if rows.rows.is_empty() {
        if let Some(line) = lines.next() {
            canvas.text(line, 0, &empty(view, screen, status), canvas.theme.faint());
        }
        return;
    }
    let selected = list.position(&rows);
    for ((index, row), line) in rows.rows.iter().enumerate().skip(list.offset).zip(lines) {
        let is_selected = selected == Some(index);
        if is_selected {
            canvas.buffer.set_style(line, canvas.theme.selected());
        }
        let mut x = 0;
        for one in &shown {
            if let Some(cell) = row.cells.get(one.column) {
                draw_cell(
                    canvas,
                    line,
                    x,
                    cell,
                    *one,
                    rows.columns[one.column].is_number,
                    is_selected,
                );
            }
            x += to_u16(one.width + if one.has_bar { BAR } else { 0 } + GAP);
        }
    }
}

/// Returns the text of an empty table.
fn empty(view: &View, screen: &Screen, status: &Status) -> String {
    let title = screen.table.title();
    if !status.is_loaded {
        format!("Reading objects of {} ...", status.server)
    } else if view.problem(screen.table).is_some() {
        format!("{title}: not readable")
    } else if !screen.list().filter.is_empty() {
        format!("{title}: no row matches the filter")
    } else {
        format!("{title}: none")
    }
}

fn headings(canvas: &mut Canvas<'_>, line: Rect, table: &Table, shown: &[Shown], screen: &Screen) {
    let list = screen.list();
    let mut x = 0;
    for one in shown {
        let column = table.columns[one.column];
        let whole = one.width + if one.has_bar { BAR } else { 0 };
        let mut style = canvas.theme.heading();
        if list.sort == one.column {
            style = style.patch(canvas.theme.selected());
        }
        let text = cut(column.heading, whole);
        let start = match column.is_number {
            true => x + to_u16(whole - width(&text)),
            false => x,
        };
        canvas.text(line, start, &text, style);
        x += to_u16(whole + GAP);
    }
}

fn draw_cell(
    canvas: &mut Canvas<'_>,
    line: Rect,
    x: u16,
    cell: &Cell,
    shown: Shown,
    is_number: bool,
    is_selected: bool,
) {
    let style = match is_selected {
        true => canvas.theme.selected(),
        false => canvas.theme.of(cell.tone),
    };
    let mut start = x;
    if shown.has_bar {
        if let Some(share) = cell.share {
            canvas.text(line, x, &bar(share, BAR - 1), style);
        }
        start += to_u16(BAR);
    }
    // The text next to a bar has no color of its own.
    let style = match cell.share {
        Some(_) if shown.has_bar && !is_selected => Style::default(),
        _ => style,
    };
    let text = pad(&cut(&cell.text, shown.width), shown.width, is_number);
    canvas.text_of_width(line, start, &text, to_u16(shown.width), style);
}

/// Cuts a text to a width. An ellipsis marks a cut text.
fn cut(text: &str, to: usize) -> String {
    if width(text) <= to {
        return text.to_owned();
    }
    let mut out = String::new();
    let mut used = 0;
    for c in text.chars() {
        used += width(c.encode_utf8(&mut [0; 4]));
        if used >= to {
            break;
        }
        out.push(c);
    }
    if to > 0 {
        out.push('…');
    }
    out
}

fn to_u16(cells: usize) -> u16 {
    u16::try_from(cells).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cut_texts_end_with_an_ellipsis() {
        assert_eq!(cut("abcdef", 6), "abcdef");
        assert_eq!(cut("abcdef", 4), "abc…");
        assert_eq!(cut("日本語", 4), "日…");
        assert_eq!(cut("abc", 0), "");
    }
}
