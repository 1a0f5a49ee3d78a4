//! HTML pages with tables and SVG drawings. maud escapes every text that is spliced into markup.

use maud::{DOCTYPE, Markup, PreEscaped, html};

const STYLE: &str = include_str!("html.css");
/// Content security policy: the page loads nothing and runs no script, whatever names it contains.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

/// Returns a complete page. Control characters in its texts become `�`; the markup contains none.
pub(crate) fn page(title: &str, body: Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (printable(title)) }
                style { (PreEscaped(STYLE)) }
            }
            body { main { (PreEscaped(printable(&body.into_string()))) } }
        }
    };
    page.into_string()
}

fn printable(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}

/// Cell of a table.
pub(crate) struct Cell {
    class: Option<&'static str>,
    content: Markup,
}

impl Cell {
    /// Creates a cell with a name, by itself on its line.
    pub(crate) fn name(text: &str) -> Self {
        Self::new(Some("name"), text)
    }

    pub(crate) fn text(text: impl AsRef<str>) -> Self {
        Self::new(None, text)
    }

    /// Creates a cell with one or two words that stay on one line.
    pub(crate) fn short(text: &str) -> Self {
        Self::new(Some("w"), text)
    }

    /// Creates a cell with a figure. The figures of a column are aligned.
    pub(crate) fn figure(text: impl AsRef<str>) -> Self {
        Self::new(Some("n"), text)
    }

    pub(crate) fn markup(content: Markup) -> Self {
        Self { class: None, content }
    }

    fn new(class: Option<&'static str>, text: impl AsRef<str>) -> Self {
        Self {
            class,
            content: html! { (text.as_ref()) },
        }
    }
}

/// Returns a table. A heading that begins with `#` belongs to a column of figures.
pub(crate) fn table(headings: &[&str], rows: impl IntoIterator<Item = Vec<Cell>>) -> Markup {
    html! {
        div class="scroll" {
            table {
                thead {
                    tr {
                        @for heading in headings {
                            @if let Some(heading) = heading.strip_prefix('#') {
                                th class="n" { (heading) }
                            } @else {
                                th { (heading) }
                            }
                        }
                    }
                }
                tbody {
                    @for row in rows {
                        tr {
                            @for Cell { class, content } in row {
                                td class=[class] { (content) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// An SVG drawing with its own coordinates.
pub(crate) struct Drawing {
    width: f64,
    height: f64,
    shapes: Vec<Markup>,
}

/// Position of a text relative to its point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

impl Drawing {
    pub(crate) fn new(width: f64, height: f64) -> Self {
        Self {
            width,
            height,
            shapes: Vec::new(),
        }
    }

    /// Adds a rectangle with a tooltip.
    pub(crate) fn rect(&mut self, class: &str, (x, y, width, height): (f64, f64, f64, f64), tooltip: &str) {
        if width <= 0.0 {
            return;
        }
        self.shapes.push(html! {
            rect class=(class) x=(tenths(x)) y=(tenths(y)) width=(tenths(width)) height=(tenths(height)) rx="2" {
                title { (tooltip) }
            }
        });
    }

    pub(crate) fn line(&mut self, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        self.shapes.push(html! {
            line class=(class) x1=(tenths(x1)) y1=(tenths(y1)) x2=(tenths(x2)) y2=(tenths(y2)) {}
        });
    }

    /// Adds a dot with a tooltip.
    pub(crate) fn dot(&mut self, class: &str, (x, y): (f64, f64), tooltip: &str) {
        self.shapes.push(html! {
            circle class=(class) cx=(tenths(x)) cy=(tenths(y)) r="5" { title { (tooltip) } }
        });
    }

    pub(crate) fn text(&mut self, class: &str, (x, y): (f64, f64), anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        self.shapes.push(html! {
            text class=(class) x=(tenths(x)) y=(tenths(y)) text-anchor=(anchor) { (text) }
        });
    }

    /// Returns the drawing. `label` describes it for screen readers.
    pub(crate) fn finish(self, label: &str) -> Markup {
        let view = format!("0 0 {:.0} {:.0}", self.width, self.height);
        html! {
            svg viewBox=(view) role="img" aria-label=(label) {
                @for shape in &self.shapes { (shape) }
            }
        }
    }
}

fn tenths(value: f64) -> String {
    format!("{value:.1}")
}

/// Shortens a text to `most` characters, ending with `…`.
pub(crate) fn clipped(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(most.saturating_sub(1)).collect();
    short.push('…');
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_text_cannot_become_markup() {
        let text = "<script>alert(\"1\" & '2')</script>\n\0";
        let page = page(text, html! { p title=(text) { (text) } });
        let escaped = "&lt;script&gt;alert(&quot;1&quot; &amp; '2')&lt;/script&gt;\u{fffd}\u{fffd}";
        assert!(page.contains(&format!("<title>{escaped}</title>")), "{page}");
        assert!(
            page.contains(&format!("<p title=\"{escaped}\">{escaped}</p>")),
            "{page}"
        );
        let table = table(&["<b>"], [vec![Cell::text("<i>"), Cell::name("\"x\"")]]).into_string();
        assert!(
            !table.contains("<b>") && !table.contains("<i>") && !table.contains("\"x\""),
            "{table}"
        );
    }

    #[test]
    fn long_names_are_clipped_by_characters() {
        assert_eq!(clipped("abcdef", 6), "abcdef");
        assert_eq!(clipped("äöüäöüä", 6), "äöüäö…");
    }
}
