//! Roofline as a self-contained SVG file with light and dark colors.

use super::roofline::{Roofline, decade};
use super::table::{flops, gigabytes_per_second};

/// Size of the drawing, and the area within the axes, in pixels.
const SIZE: (f64, f64) = (760.0, 596.0);
const LEFT: f64 = 104.0;
const RIGHT: f64 = 736.0;
const TOP: f64 = 84.0;
const BOTTOM: f64 = 456.0;

const STYLE: &str = "\
svg{--paper:#ffffff;--ink:#1b1f24;--soft:#57606a;--grid:#d8dee4;--roof:#0550ae;--mark:#bc4c00}
@media (prefers-color-scheme:dark){svg{--paper:#0d1117;--ink:#e6edf3;--soft:#9198a1;--grid:#2d333b;--roof:#58a6ff;--mark:#ffa657}}
text{font:13px system-ui,-apple-system,'Segoe UI',sans-serif;fill:#1b1f24;fill:var(--ink)}
.title{font-size:17px;font-weight:600}
.soft{fill:#57606a;fill:var(--soft);font-size:12px}
.paper{fill:#ffffff;fill:var(--paper)}
.grid{stroke:#d8dee4;stroke:var(--grid);stroke-width:1}
.drop{stroke:#57606a;stroke:var(--soft);stroke-width:1;stroke-dasharray:2 4}
.roof{fill:none;stroke:#0550ae;stroke:var(--roof);stroke-width:3;stroke-linejoin:round}
.mark{fill:#bc4c00;fill:var(--mark)}
.letter{fill:#ffffff;fill:var(--paper);font-size:12px;font-weight:700}
";

/// Draws the roofline. `title` and `subtitle` may contain any text.
pub(super) fn draw(roofline: &Roofline, title: &str, subtitle: &str) -> String {
    let (x_axis, y_axis) = (roofline.intensities(), roofline.rates());
    let x = |value: f64| LEFT + x_axis.position(value) * (RIGHT - LEFT);
    let y = |value: f64| BOTTOM - y_axis.position(value) * (BOTTOM - TOP);
    let mut body = String::new();
    let mut add = |line: String| {
        body.push_str(&line);
        body.push('\n');
    };
    let (width, height) = SIZE;
    add(format!(
        r#"<rect class="paper" width="{width}" height="{height}"/>"#
    ));
    add(text(LEFT, 34.0, "title", "start", title));
    add(text(LEFT, 56.0, "soft", "start", subtitle));
    for exponent in y_axis.decades() {
        let at = y(10_f64.powi(exponent));
        add(line("grid", (LEFT, at), (RIGHT, at)));
        let label = format!("{}FLOP/s", spaced(&decade(exponent)));
        add(text(LEFT - 8.0, at + 4.0, "soft", "end", &label));
    }
    for exponent in x_axis.decades() {
        let at = x(10_f64.powi(exponent));
        add(line("grid", (at, TOP), (at, BOTTOM)));
        add(text(at, BOTTOM + 20.0, "soft", "middle", &decade(exponent)));
    }
    let caption = "operations per byte of weights (FLOP/byte)";
    add(text(
        (LEFT + RIGHT) / 2.0,
        BOTTOM + 44.0,
        "soft",
        "middle",
        caption,
    ));

    let (from, ridge, to) = (x_axis.value(0.0), roofline.ridge(), x_axis.value(1.0));
    let corners = [from, ridge, to].map(|at| format!("{:.1},{:.1}", x(at), y(roofline.roof(at))));
    add(format!(
        r#"<polyline class="roof" points="{}"/>"#,
        corners.join(" ")
    ));
    let ceiling = format!("matrix products {}", flops(roofline.flops_per_second));
    add(text(
        RIGHT - 4.0,
        y(roofline.flops_per_second) - 8.0,
        "",
        "end",
        &ceiling,
    ));
    let slope = format!("memory reads {}", gigabytes_per_second(roofline.bytes_per_second));
    // Label position low on the slope and to its right, where no kernel is.
    let at = (from.ln() + (ridge.ln() - from.ln()) * 0.25).exp();
    add(text(
        x(at) + 12.0,
        y(roofline.roof(at)) + 14.0,
        "",
        "start",
        &slope,
    ));

    for (row, point) in roofline.points.iter().enumerate() {
        let roof = roofline.roof(point.intensity);
        let (px, py) = (x(point.intensity), y(point.flops_per_second));
        add(line("drop", (px, y(roof)), (px, py)));
        let share = point.flops_per_second / roof * 100.0;
        let reached = format!(
            "{}: {}, {share:.0} % of the roof",
            point.name,
            flops(point.flops_per_second)
        );
        // Each mark appears in the drawing and in the legend.
        let below = BOTTOM + 72.0 + row as f64 * 22.0;
        for (px, py) in [(px, py), (LEFT + 9.0, below)] {
            add(format!(
                r#"<circle class="mark" cx="{px:.1}" cy="{py:.1}" r="9"/>"#
            ));
            add(text(px, py + 4.5, "letter", "middle", &point.mark.to_string()));
        }
        add(text(LEFT + 28.0, below + 4.5, "", "start", &reached));
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\" role=\"img\">\n<title>{}</title>\n<style>\n{STYLE}</style>\n{body}</svg>\n",
        escaped(title)
    )
}

/// Appends a space for the unit: `1 G` stays `1 G`, `1` becomes `1 `.
fn spaced(decade: &str) -> String {
    match decade.contains(' ') {
        true => decade.to_owned(),
        false => format!("{decade} "),
    }
}

fn line(class: &str, from: (f64, f64), to: (f64, f64)) -> String {
    format!(
        r#"<line class="{class}" x1="{:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}"/>"#,
        from.0, from.1, to.0, to.1
    )
}

fn text(x: f64, y: f64, class: &str, anchor: &str, text: &str) -> String {
    format!(
        r#"<text class="{class}" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{}</text>"#,
        escaped(text)
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::roofline::example;
    use super::*;

    #[test]
    fn file_is_self_contained_and_has_both_color_schemes() {
        let svg = draw(&example(), "A <chip> & more", "mlx");
        assert!(svg.contains("<title>A &lt;chip&gt; &amp; more</title>"), "{svg}");
        assert!(svg.contains("prefers-color-scheme:dark"));
        for outside in ["href", "url(", "<script", "<image"] {
            assert!(!svg.contains(outside), "{outside}");
        }
        assert_eq!(svg.matches("<circle").count(), 2 * 3);
        assert_eq!(svg.matches('<').count(), svg.matches('>').count());
    }
}
