//! Lines of the terminal and their use.

use ratatui::layout::Rect;

/// Least number of lines of a body under which no bars are shown.
const LEAST_BODY: u16 = 6;

/// Use of the lines. A low terminal shows the body, then the tabs, the title, the footer and the
/// bars, as far as the lines suffice.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) title: Option<Rect>,
    /// Memory and bandwidth.
    pub(super) bars: Option<(Rect, Rect)>,
    pub(super) warning: Option<Rect>,
    pub(super) tabs: Option<Rect>,
    pub(super) body: Rect,
    pub(super) footer: Option<Rect>,
}

impl Layout {
    pub(super) fn new(area: Rect, has_warning: bool) -> Self {
        let mut y = area.y;
        let bottom = area.bottom();
        let has = |lines: u16| area.height >= lines;
        let warnings = u16::from(has_warning);
        let mut line = |is_shown: bool| {
            let line = Rect::new(area.x, y, area.width, 1);
            is_shown.then(|| {
                y += 1;
                line
            })
        };
        let title = line(has(5 + warnings));
        let has_bars = has(LEAST_BODY + 5 + warnings);
        let of_memory = line(has_bars);
        let of_bandwidth = line(has_bars);
        let warning = line(has_warning && has(3));
        let tabs = line(has(4 + warnings));
        let footers = u16::from(has(6 + warnings));
        let end = bottom - footers;
        Self {
            title,
            bars: of_memory.zip(of_bandwidth),
            warning,
            tabs,
            body: Rect::new(area.x, y, area.width, end - y),
            footer: (footers > 0).then(|| Rect::new(area.x, end, area.width, 1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn body_has_at_least_one_line_at_every_height() {
        for height in 1..=40 {
            for has_warning in [false, true] {
                let area = Rect::new(0, 0, 60, height);
                let layout = Layout::new(area, has_warning);
                let others = [layout.title, layout.warning, layout.tabs, layout.footer];
                let lines = others.iter().flatten().count() + 2 * usize::from(layout.bars.is_some());
                assert_eq!(lines + usize::from(layout.body.height), usize::from(height));
                assert!(layout.body.height >= 1, "{layout:?}");
            }
        }
    }
}
