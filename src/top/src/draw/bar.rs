//! Bars.

use ratatui::layout::Rect;
use ratatui::style::Style;

use super::Canvas;
use crate::table::{pad, width};
use crate::view::Usage;
use crate::view::format::tone_of_share;

/// Width of the names of bars.
const NAME_WIDTH: usize = 10;
const LONGEST: usize = 40;
/// Shortest bar, with its brackets.
const SHORTEST: usize = 8;

/// Least share whose bar is not empty. Statuses contain rounded amounts.
const LEAST_SHARE: f64 = 0.01;

/// Returns a bar of `width` cells, brackets included.
pub(super) fn bar(share: f64, width: usize) -> String {
    let inner = width.saturating_sub(2);
    let filled = (share.clamp(0.0, 1.0) * inner as f64).round() as usize;
    let filled = filled.max(usize::from(share >= LEAST_SHARE)).min(inner);
    format!("[{}{}]", "|".repeat(filled), " ".repeat(inner - filled))
}

/// Draws a named bar with a text.
pub(super) fn line(
    canvas: &mut Canvas<'_>,
    line: Rect,
    name: &str,
    usage: Option<Usage>,
    text: Option<String>,
) {
    let mut x = canvas.text(line, 0, &pad(name, NAME_WIDTH, false), Style::default());
    let text = text.unwrap_or_else(|| "- (not measured)".to_owned());
    let left = usize::from(line.width).saturating_sub(NAME_WIDTH + width(&text) + 2);
    if let Some(usage) = usage.filter(|_| left >= SHORTEST) {
        let share = usage.reserved_share();
        let style = canvas.theme.of(tone_of_share(share));
        x = canvas.text(line, x, &bar(share, left.min(LONGEST)), style);
        x = canvas.text(line, x, " ", Style::default());
    }
    canvas.text(line, x, &text, Style::default());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar_shows_the_share() {
        assert_eq!(bar(0.5, 10), "[||||    ]");
        assert_eq!(bar(0.02, 10), "[|       ]");
        assert_eq!(bar(0.001, 10), "[        ]");
        assert_eq!(bar(0.0, 10), "[        ]");
        assert_eq!(bar(7.0, 6), "[||||]");
        assert_eq!(bar(f64::NAN, 6), "[    ]");
        assert_eq!(bar(1.0, 0), "[]");
    }
}
