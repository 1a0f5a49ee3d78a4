//! Styles.

use ratatui::style::{Color, Modifier, Style};

use crate::table::Tone;

/// Styles, with or without colors. Without colors, `NO_COLOR` is set; other attributes are used
/// then, too.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Theme {
    pub(crate) has_colors: bool,
}

impl Theme {
    fn color(self, color: Color) -> Style {
        match self.has_colors {
            true => Style::default().fg(color),
            false => Style::default(),
        }
    }

    pub(super) fn heading(self) -> Style {
        self.color(Color::Cyan).add_modifier(Modifier::BOLD)
    }

    pub(super) fn selected(self) -> Style {
        Style::default().add_modifier(Modifier::REVERSED)
    }

    pub(super) fn faint(self) -> Style {
        Style::default().add_modifier(Modifier::DIM)
    }

    pub(super) fn warning(self) -> Style {
        self.color(Color::Yellow).add_modifier(Modifier::BOLD)
    }

    pub(super) fn of(self, tone: Tone) -> Style {
        match tone {
            Tone::Plain => Style::default(),
            Tone::Good => self.color(Color::Green),
            Tone::Warning => self.color(Color::Yellow),
            Tone::Bad => self.color(Color::Red).add_modifier(Modifier::BOLD),
        }
    }
}
