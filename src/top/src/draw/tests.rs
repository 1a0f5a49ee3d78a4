use proptest::prelude::*;

use super::*;
use crate::connection::Checked;
use crate::fixture::view;
use crate::screen::{Effect, Key};
use ratatui::style::Color;

const COLORS: Theme = Theme { has_colors: true };

fn loaded() -> Status {
    let mut status = Status::new("https://127.0.0.1:7443");
    status.loaded();
    status
}

fn lines(buffer: &Buffer) -> Vec<String> {
    let area = buffer.area;
    let symbol = |x, y| buffer.cell((x, y)).map_or("", |cell| cell.symbol());
    let line = |y| (0..area.width).map(|x| symbol(x, y)).collect::<String>();
    (0..area.height).map(|y| line(y).trim_end().to_owned()).collect()
}

/// Returns the lines of a screen after keys.
fn shown(width: u16, height: u16, table: TableKind, keys: &str) -> Vec<String> {
    let (view, mut screen) = (view(), Screen::new(table));
    let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
    for key in keys.chars() {
        let key = if key == '\n' { Key::Enter } else { Key::Char(key) };
        screen.press(key, &view);
    }
    draw(&mut buffer, &view, &mut screen, &loaded(), COLORS);
    lines(&buffer)
}

#[test]
fn wide_terminal_shows_bars_and_all_columns() {
    let lines = shown(150, 24, TableKind::Macs, "");
    assert_eq!(
        lines[0],
        "rooflet top  2/2 Macs ready  1/2 replicas ready  2 running  1 waiting  https://127.0.0.1:7443"
    );
    assert_eq!(
        lines[1],
        format!(
            "Memory    [{}{}] 12.0/32.0Gi reserved",
            "|".repeat(14),
            " ".repeat(24)
        )
    );
    assert!(
        lines[2].ends_with("] 150/250GB/s reserved, 1 Macs not measured"),
        "{lines:#?}"
    );
    assert_eq!(lines[3], " 1 Macs  2 Replicas  3 Deployments  4 Events");
    assert!(
        lines[5].contains("[||||||||  ] 12.0/16.0Gi  [||||||    ] 150/250GB/s"),
        "{lines:#?}"
    );
    assert!(lines[4].starts_with("NAME    STATUS  CHIP"), "{lines:#?}");
    assert!(lines[23].starts_with("q quit"), "{lines:#?}");
}

#[test]
fn narrow_terminal_shows_the_most_important_columns() {
    let macs = shown(60, 14, TableKind::Macs, "");
    assert_eq!(
        macs[4],
        "NAME    STATUS       MEMORY    BANDWIDTH  REPLICAS  RUN/WAIT"
    );
    assert_eq!(
        macs[5],
        "mini-1  Ready   12.0/16.0Gi  150/250GB/s         1       2/1"
    );
    let replicas = shown(60, 14, TableKind::Replicas, "");
    assert_eq!(
        replicas[4],
        "NAME       PHASE    NODE    TOK/S PRED  TOK/S MEAS  RUN/WAIT"
    );
    let events = shown(60, 14, TableKind::Events, "");
    assert!(events[5].contains("message about mini-2"), "{events:#?}");
}

#[test]
fn details_show_prediction_measurement_conditions_and_events() {
    let lines = shown(100, 40, TableKind::Replicas, "\n").join("\n");
    for part in [
        "Replica default/guide-1-a",
        "Tok/s of one stream     predicted 55.0 (basis: Calibrated), measured 51.5",
        "Requests                2 running, 1 waiting, 40 completed, 0 failed",
        "Ready=True Serving (60m) about Ready",
        "2m  Restarted message about guide-1-a",
    ] {
        assert!(lines.contains(part), "{part} is not in\n{lines}");
    }
    let lines = shown(100, 40, TableKind::Macs, "j\n").join("\n");
    assert!(
        lines.contains("Bandwidth reserved      - (not measured)"),
        "{lines}"
    );
    assert!(
        lines.contains("Bandwidth of data sheet 273GB/s (not measured)"),
        "{lines}"
    );
}

#[test]
fn stale_data_is_marked_and_stays_visible() {
    let (view, mut screen, mut status) = (view(), Screen::new(TableKind::Macs), loaded());
    let message = "API server refused the connection".to_owned();
    status.checked(Checked::Fails { message }, "2026-01-01T11:59:30Z".parse().ok());
    let mut buffer = Buffer::empty(Rect::new(0, 0, 100, 20));
    draw(&mut buffer, &view, &mut screen, &status, COLORS);
    let lines = lines(&buffer);
    assert_eq!(
        lines[3],
        "STALE since 11:59:30Z (30s), reconnecting: API server refused the connection"
    );
    assert!(lines.iter().any(|line| line.starts_with("mini-1")), "{lines:#?}");
}

#[test]
fn without_colors_no_cell_has_a_color() {
    let colors = |theme| {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 120, 30));
        draw(
            &mut buffer,
            &view(),
            &mut Screen::new(TableKind::Macs),
            &loaded(),
            theme,
        );
        buffer
            .content
            .iter()
            .filter(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset)
            .count()
    };
    assert!(colors(COLORS) > 0);
    assert_eq!(colors(Theme { has_colors: false }), 0);
}

#[test]
fn cursor_is_at_the_end_of_the_filter() {
    let (view, mut screen) = (view(), Screen::new(TableKind::Macs));
    for key in ['/', 'a', 'b'] {
        screen.press(Key::Char(key), &view);
    }
    let mut buffer = Buffer::empty(Rect::new(0, 0, 60, 20));
    let position = draw(&mut buffer, &view, &mut screen, &loaded(), COLORS);
    assert_eq!(position, Some(Position::new(3, 19)));
}

fn any_key() -> impl Strategy<Value = Key> {
    prop_oneof![
        4 => prop::sample::select(vec![
            Key::Up, Key::Down, Key::Left, Key::Right, Key::PageUp, Key::PageDown, Key::Home, Key::End,
            Key::Enter, Key::Escape, Key::Tab, Key::BackTab, Key::Backspace, Key::ClearLine, Key::Redraw,
        ]),
        4 => prop::sample::select("jkghGlsSr/?1234 ".chars().collect::<Vec<_>>()).prop_map(Key::Char),
        1 => any::<char>().prop_map(Key::Char),
    ]
}

proptest! {
    /// Draws after every key, so that each state is drawn in a terminal of another size than before.
    #[test]
    fn draws_every_state_in_every_size(
        steps in prop::collection::vec((any_key(), 1..=300u16, 1..=100u16), 1..25),
        is_empty: bool, is_lost: bool, has_problem: bool,
    ) {
        let mut view = view();
        if is_empty {
            view.macs.clear();
            view.replicas.clear();
            view.events.clear();
        }
        if has_problem {
            view.problems.push(crate::view::Problem::new(TableKind::Macs, "forbidden"));
        }
        let mut status = loaded();
        if is_lost {
            status.checked(Checked::Fails { message: "refused".to_owned() }, None);
        }
        let mut screen = Screen::new(TableKind::Macs);
        for (key, width, height) in steps {
            let effect = screen.press(key, &view);
            prop_assert!(matches!(effect, Effect::Continue | Effect::Redraw | Effect::Quit));
            let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
            let cursor = draw(&mut buffer, &view, &mut screen, &status, COLORS);
            prop_assert!(cursor.is_none_or(|cursor| cursor.x < width && cursor.y < height));
            let has_control = |cell: &ratatui::buffer::Cell| cell.symbol().contains(char::is_control);
            prop_assert!(!buffer.content.iter().any(has_control));
        }
    }
}
