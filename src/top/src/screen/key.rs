//! Keys of the view.

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

/// Key with a meaning in the view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Key {
    Up,
    Down,
    Left,
    Right,
    PageUp,
    PageDown,
    Home,
    End,
    Enter,
    Escape,
    Tab,
    BackTab,
    Backspace,
    /// Ctrl-U
    ClearLine,
    /// Ctrl-C
    Interrupt,
    /// Ctrl-Z
    Suspend,
    /// Ctrl-L
    Redraw,
    Char(char),
}

impl Key {
    /// Returns `None` for keys without a meaning, and for releases of keys.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "most keys of a keyboard have no meaning here"
    )]
    pub(crate) fn new(event: &KeyEvent) -> Option<Self> {
        if event.kind == KeyEventKind::Release {
            return None;
        }
        let is_control = event.modifiers.contains(KeyModifiers::CONTROL);
        Some(match event.code {
            KeyCode::Char(c) if is_control => match c.to_ascii_lowercase() {
                'c' => Self::Interrupt,
                'z' => Self::Suspend,
                'l' => Self::Redraw,
                'u' => Self::ClearLine,
                'b' => Self::PageUp,
                'f' => Self::PageDown,
                'p' => Self::Up,
                'n' => Self::Down,
                _ => return None,
            },
            KeyCode::Char(c) => Self::Char(c),
            KeyCode::Up => Self::Up,
            KeyCode::Down => Self::Down,
            KeyCode::Left => Self::Left,
            KeyCode::Right => Self::Right,
            KeyCode::PageUp => Self::PageUp,
            KeyCode::PageDown => Self::PageDown,
            KeyCode::Home => Self::Home,
            KeyCode::End => Self::End,
            KeyCode::Enter => Self::Enter,
            KeyCode::Esc => Self::Escape,
            KeyCode::Tab => Self::Tab,
            KeyCode::BackTab => Self::BackTab,
            KeyCode::Backspace => Self::Backspace,
            _ => return None,
        })
    }
}
