//! HTML and SVG as text: everything that a user wrote goes through [`escaped`].

use std::fmt::Write;

/// Text that stands for itself in elements and in quoted attributes. Control characters become `�`.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// One cell of a table.
pub(crate) struct Cell {
    class: &'static str,
    html: String,
}

impl Cell {
    /// A name, by itself on its line.
    pub(crate) fn name(text: &str) -> Self {
        Self {
            class: "name",
            html: escaped(text),
        }
    }

    pub(crate) fn text(text: impl AsRef<str>) -> Self {
        Self {
            class: "",
            html: escaped(text.as_ref()),
        }
    }

    /// A word or two that stay on one line.
    pub(crate) fn short(text: &str) -> Self {
        Self {
            class: "w",
            html: escaped(text),
        }
    }

    /// A figure; figures of a column stand under one another.
    pub(crate) fn figure(text: impl AsRef<str>) -> Self {
        Self {
            class: "n",
            html: escaped(text.as_ref()),
        }
    }

    /// Markup of ours.
    pub(crate) fn markup(html: String) -> Self {
        Self { class: "", html }
    }
}

/// A table. Headings that begin with `#` are those of figures.
pub(crate) fn table(headings: &[&str], rows: impl IntoIterator<Item = Vec<Cell>>) -> String {
    let mut out = String::from("<div class=\"scroll\"><table>\n<thead><tr>");
    for heading in headings {
        out += &match heading.strip_prefix('#') {
            Some(heading) => format!("<th class=\"n\">{}</th>", escaped(heading)),
            None => format!("<th>{}</th>", escaped(heading)),
        };
    }
    out += "</tr></thead>\n<tbody>\n";
    for row in rows {
        out += "<tr>";
        for Cell { class, html } in row {
            match class {
                "" => push(&mut out, format_args!("<td>{html}</td>")),
                class => push(&mut out, format_args!("<td class=\"{class}\">{html}</td>")),
            }
        }
        out += "</tr>\n";
    }
    out + "</tbody>\n</table></div>\n"
}

/// A drawing with its own coordinates.
pub(crate) struct Drawing {
    width: f64,
    height: f64,
    body: String,
}

/// Where a text stands relative to its point.
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
            body: String::new(),
        }
    }

    /// A rectangle with what a pointer over it is told.
    pub(crate) fn rect(&mut self, class: &str, (x, y, width, height): (f64, f64, f64, f64), told: &str) {
        if width <= 0.0 {
            return;
        }
        let told = escaped(told);
        push(
            &mut self.body,
            format_args!(
                "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"2\"><title>{told}</title></rect>\n"
            ),
        );
    }

    pub(crate) fn line(&mut self, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        push(
            &mut self.body,
            format_args!(
                "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>\n"
            ),
        );
    }

    pub(crate) fn dot(&mut self, class: &str, (x, y): (f64, f64), told: &str) {
        let told = escaped(told);
        push(
            &mut self.body,
            format_args!(
                "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\"><title>{told}</title></circle>\n"
            ),
        );
    }

    pub(crate) fn text(&mut self, class: &str, (x, y): (f64, f64), anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escaped(text);
        push(
            &mut self.body,
            format_args!(
                "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>\n"
            ),
        );
    }

    /// `label` says in words what is drawn.
    pub(crate) fn finish(self, label: &str) -> String {
        let Self { width, height, body } = self;
        let label = escaped(label);
        format!(
            "<svg viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"{label}\">\n{body}</svg>\n"
        )
    }
}

/// At most so many characters, with `…` where there were more.
pub(crate) fn clipped(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(most.saturating_sub(1)).collect();
    short.push('…');
    short
}

fn push(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("writing into a String cannot fail");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_users_wrote_cannot_become_markup() {
        assert_eq!(
            escaped("<script>alert(\"1\" & '2')</script>\n\0"),
            "&lt;script&gt;alert(&quot;1&quot; &amp; &#39;2&#39;)&lt;/script&gt;\u{fffd}\u{fffd}"
        );
        let table = table(&["<b>"], [vec![Cell::text("<i>"), Cell::name("\"x\"")]]);
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
