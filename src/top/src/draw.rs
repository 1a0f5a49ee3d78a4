//! The view as cells of a terminal. The module is pure.

mod bar;
mod columns;
mod grid;
mod help;
mod layout;
mod theme;

pub(crate) use self::theme::Theme;

use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};
use ratatui::style::Style;

use self::layout::Layout;
use crate::connection::Status;
use crate::details::{Details, Line};
use crate::screen::{Mode, Screen};
use crate::table_kind::TableKind;
use crate::view::View;
use crate::view::format::{bandwidth, memory};

/// Draws the view, after it has adapted the positions of `screen` to the size of the terminal.
/// Returns the position of the cursor while the filter is edited.
pub(crate) fn draw(
    buffer: &mut Buffer,
    view: &View,
    screen: &mut Screen,
    status: &Status,
    theme: Theme,
) -> Option<Position> {
    let area = buffer.area;
    if area.is_empty() {
        return None;
    }
    let warning = warning(view, screen, status);
    let layout = Layout::new(area, warning.is_some());
    let body = layout.body;
    let details = details(view, screen, usize::from(body.width));
    let lines = details.as_ref().map_or(0, |details| details.lines.len());
    screen.fit(view, usize::from(body.height), lines);
    let mut canvas = Canvas { buffer, theme };
    if let Some(line) = layout.title {
        title(&mut canvas, line, view, status);
    }
    if let Some((of_memory, of_bandwidth)) = layout.bars {
        bars(&mut canvas, of_memory, of_bandwidth, view);
    }
    if let Some((line, text)) = layout.warning.zip(warning.as_ref()) {
        canvas.text(line, 0, text, theme.warning());
    }
    if let Some(line) = layout.tabs {
        tabs(&mut canvas, line, screen, details.as_ref());
    }
    match &details {
        Some(details) => {
            let (Mode::Details { scroll, .. } | Mode::Help { scroll }) = &screen.mode else {
                return None;
            };
            for (line, y) in details.lines.iter().skip(*scroll).zip(body.rows()) {
                match line {
                    Line::Heading(text) => canvas.text(y, 0, text, theme.heading()),
                    Line::Text(text) => canvas.text(y, 0, text, Style::default()),
                };
            }
        }
        None => grid::draw(&mut canvas, body, view, screen, status),
    }
    layout.footer.and_then(|line| footer(&mut canvas, line, screen))
}

/// Buffer with the styles of its texts.
struct Canvas<'a> {
    buffer: &'a mut Buffer,
    theme: Theme,
}

impl Canvas<'_> {
    /// Writes a text into a line, from column `x`, cut at the end of the line. Returns the column
    /// after the text.
    fn text(&mut self, line: Rect, x: u16, text: &str, style: Style) -> u16 {
        self.text_of_width(line, x, text, line.width, style)
    }

    /// Like [`Self::text`], with at most `width` cells.
    fn text_of_width(&mut self, line: Rect, x: u16, text: &str, width: u16, style: Style) -> u16 {
        let left = line.width.saturating_sub(x).min(width);
        if left == 0 || line.height == 0 {
            return x;
        }
        let (end, _) =
            self.buffer
                .set_stringn(line.x.saturating_add(x), line.y, text, usize::from(left), style);
        end.saturating_sub(line.x)
    }
}

fn details(view: &View, screen: &Screen, width: usize) -> Option<Details> {
    match &screen.mode {
        Mode::Table | Mode::Filter => None,
        Mode::Details { id, .. } => Some(Details::new(view, screen.table, id, width)),
        Mode::Help { .. } => Some(help::help(width)),
    }
}

/// Returns the reason why shown data is old or missing.
fn warning(view: &View, screen: &Screen, status: &Status) -> Option<String> {
    let of_table = || view.problem(screen.table).map(str::to_owned);
    status.stale(view.time).or_else(of_table)
}

fn title(canvas: &mut Canvas<'_>, line: Rect, view: &View, status: &Status) {
    let totals = &view.totals;
    let heading = canvas.theme.heading();
    let mut x = canvas.text(line, 0, "rooflet top", heading);
    let mut text = format!(
        "  {}/{} Macs ready  {}/{} replicas ready",
        totals.ready_macs, totals.macs, totals.ready_replicas, totals.replicas
    );
    if let Some(requests) = totals.requests {
        text += &format!("  {} running  {} waiting", requests.running, requests.waiting);
    }
    if totals.simulated_macs > 0 {
        text += &format!("  {} Macs simulated", totals.simulated_macs);
    }
    x = canvas.text(line, x, &text, Style::default());
    canvas.text(line, x, &format!("  {}", status.server), Style::default());
}

fn bars(canvas: &mut Canvas<'_>, of_memory: Rect, of_bandwidth: Rect, view: &View) {
    let totals = &view.totals;
    let text = totals.memory.map(|usage| format!("{} reserved", memory(usage)));
    bar::line(canvas, of_memory, "Memory", totals.memory, text);
    let text = totals.bandwidth.map(|usage| {
        let unmeasured = match totals.macs_without_measured_bandwidth {
            0 => String::new(),
            count => format!(", {count} Macs not measured"),
        };
        format!("{} reserved{unmeasured}", bandwidth(usage))
    });
    bar::line(canvas, of_bandwidth, "Bandwidth", totals.bandwidth, text);
}

fn tabs(canvas: &mut Canvas<'_>, line: Rect, screen: &Screen, details: Option<&Details>) {
    if let Some(details) = details {
        canvas.text(line, 0, &details.title, canvas.theme.heading());
        return;
    }
    let mut x = 0;
    for (index, table) in TableKind::ALL.into_iter().enumerate() {
        let style = match table == screen.table {
            true => canvas.theme.selected(),
            false => Style::default(),
        };
        x = canvas.text(line, x, &format!(" {} {} ", index + 1, table.title()), style);
    }
    let filter = &screen.list().filter;
    if !filter.is_empty() && screen.mode != Mode::Filter {
        canvas.text(line, x, &format!("  filter: {filter}"), canvas.theme.warning());
    }
}

fn footer(canvas: &mut Canvas<'_>, line: Rect, screen: &Screen) -> Option<Position> {
    let text = match &screen.mode {
        Mode::Filter => {
            let end = canvas.text(line, 0, &format!("/{}", screen.list().filter), Style::default());
            let x = end.min(line.width.saturating_sub(1));
            canvas.text(line, end, "   Enter keep  Esc clear", canvas.theme.faint());
            return Some(Position::new(line.x.saturating_add(x), line.y));
        }
        Mode::Table => "q quit  ? help  Enter details  / filter  s sort  r reverse  Tab next table",
        Mode::Details { .. } => "q quit  ? help  Esc back  arrows scroll",
        Mode::Help { .. } => "q quit  Esc back  arrows scroll",
    };
    canvas.text(line, 0, text, canvas.theme.faint());
    None
}

#[cfg(test)]
mod tests;
