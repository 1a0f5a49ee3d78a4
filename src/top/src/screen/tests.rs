use super::*;
use crate::fixture::{mac, now, objects, view};
use crate::objects::Objects;
use std::sync::Arc;

/// Screen on which keys are pressed, with 10 lines of the body.
struct Keys {
    screen: Screen,
    view: View,
}

impl Keys {
    fn new(table: TableKind) -> Self {
        let mut keys = Self {
            screen: Screen::new(table),
            view: view(),
        };
        keys.fit();
        keys
    }

    fn fit(&mut self) {
        self.screen.fit(&self.view, 10, 100);
    }

    fn press(&mut self, keys: impl IntoIterator<Item = Key>) -> &mut Self {
        for key in keys {
            assert_eq!(self.screen.press(key, &self.view), Effect::Continue, "{key:?}");
            self.fit();
        }
        self
    }

    fn type_text(&mut self, text: &str) -> &mut Self {
        self.press(text.chars().map(Key::Char))
    }

    fn names(&self) -> Vec<String> {
        let rows = self.screen.rows(&self.view).rows;
        rows.into_iter().map(|row| row.id).collect()
    }

    fn selected(&self) -> Option<String> {
        let rows = self.screen.rows(&self.view);
        self.screen.list().selected(&rows).map(str::to_owned)
    }
}

fn macs(names: &[&str]) -> View {
    let node = |name: &&str| Arc::new(serde_json::from_value(mac(name, 1.0, None)).expect("a node"));
    let objects = Objects {
        nodes: names.iter().map(node).collect(),
        ..objects()
    };
    View::new(&objects, Vec::new(), now())
}

#[test]
fn tab_and_numbers_change_the_table() {
    let mut keys = Keys::new(TableKind::Macs);
    assert_eq!(keys.press([Key::Tab]).screen.table, TableKind::Replicas);
    assert_eq!(
        keys.press([Key::BackTab, Key::BackTab]).screen.table,
        TableKind::Events
    );
    assert_eq!(keys.press([Key::Char('3')]).screen.table, TableKind::Deployments);
    assert_eq!(
        keys.press([Key::Char('9'), Key::Char('0')]).screen.table,
        TableKind::Deployments
    );
    assert_eq!(
        keys.press([Key::Left, Key::Right, Key::Right, Key::Right])
            .screen
            .table,
        TableKind::Macs
    );
}

#[test]
fn filter_is_edited_kept_and_cleared() {
    let mut keys = Keys::new(TableKind::Macs);
    assert_eq!(keys.type_text("/mini-2q").names(), [""; 0]);
    assert_eq!(keys.press([Key::Backspace, Key::Enter]).names(), ["mini-2"]);
    assert_eq!(keys.press([Key::Escape]).names(), ["mini-1", "mini-2"]);
    keys.type_text("/x\u{1b}y");
    assert_eq!(keys.screen.list().filter, "xy");
    assert_eq!(keys.press([Key::Escape]).screen.list().filter, "");
    assert_eq!(keys.screen.mode, Mode::Table);
    keys.type_text("/").type_text(&"z".repeat(300));
    assert_eq!(keys.screen.list().filter.len(), MAX_FILTER);
}

#[test]
fn sort_keys_change_column_and_direction() {
    let mut keys = Keys::new(TableKind::Macs);
    assert_eq!(keys.type_text("r").names(), ["mini-2", "mini-1"]);
    // The fourth column is the share of reserved memory.
    assert_eq!(keys.type_text("rsss").names(), ["mini-2", "mini-1"]);
    assert_eq!(keys.type_text("r").names(), ["mini-1", "mini-2"]);
    keys.type_text("SSSS");
    assert_eq!(keys.screen.list().sort, 8);
}

#[test]
fn selection_follows_its_object() {
    let mut keys = Keys::new(TableKind::Macs);
    assert_eq!(keys.selected().as_deref(), Some("mini-1"));
    assert_eq!(
        keys.press([Key::Down, Key::Down]).selected().as_deref(),
        Some("mini-2")
    );
    keys.view = macs(&["mini-0", "mini-1", "mini-2", "mini-3"]);
    keys.fit();
    assert_eq!(keys.selected().as_deref(), Some("mini-2"));
    keys.view = macs(&["mini-0", "mini-1", "mini-3"]);
    keys.fit();
    assert_eq!(keys.selected().as_deref(), Some("mini-3"));
    keys.view = macs(&[]);
    keys.fit();
    assert_eq!(keys.press([Key::Up, Key::Down, Key::Enter]).selected(), None);
    assert_eq!(keys.screen.mode, Mode::Table);
}

#[test]
fn selected_row_is_always_visible() {
    let names: Vec<String> = (0..100).map(|number| format!("mini-{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut keys = Keys::new(TableKind::Macs);
    keys.view = macs(&names);
    let steps = [
        Key::End,
        Key::Up,
        Key::PageUp,
        Key::PageUp,
        Key::Home,
        Key::PageDown,
        Key::PageDown,
    ];
    let mut offsets = Vec::new();
    for step in steps {
        keys.press([step]);
        let list = keys.screen.list();
        let position = list.position(&keys.screen.rows(&keys.view)).expect("rows");
        assert!(
            (list.offset..list.offset + 9).contains(&position),
            "{step:?}: {list:?}"
        );
        offsets.push(list.offset);
    }
    assert_eq!(offsets, [91, 91, 90, 82, 0, 0, 8]);
}

#[test]
fn enter_shows_details_and_escape_returns() {
    let mut keys = Keys::new(TableKind::Replicas);
    keys.press([Key::Enter, Key::Down, Key::Down]);
    let mode = |scroll| Mode::Details {
        id: "default/guide-1-a".to_owned(),
        scroll,
    };
    assert_eq!(keys.screen.mode, mode(2));
    assert_eq!(keys.press([Key::End]).screen.mode, mode(90));
    assert_eq!(keys.press([Key::Escape]).screen.mode, Mode::Table);
    assert_eq!(keys.type_text("?").screen.mode, Mode::Help { scroll: 0 });
    assert_eq!(keys.press([Key::Escape]).screen.mode, Mode::Table);
}

#[test]
fn quit_and_suspend_are_effects() {
    let view = view();
    let mut screen = Screen::new(TableKind::Macs);
    assert_eq!(screen.press(Key::Char('q'), &view), Effect::Quit);
    assert_eq!(screen.press(Key::Suspend, &view), Effect::Suspend);
    assert_eq!(screen.press(Key::Redraw, &view), Effect::Redraw);
    screen.press(Key::Char('/'), &view);
    assert_eq!(screen.press(Key::Char('q'), &view), Effect::Continue);
    assert_eq!(screen.press(Key::Interrupt, &view), Effect::Quit);
}
