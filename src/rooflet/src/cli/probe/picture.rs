//! Roofline for a terminal: the roof in Braille dots, kernels as letters, and a legend.

use super::roofline::{Roofline, decade};
use super::table::{flops, gigabytes_per_second};

/// Size in characters.
const WIDTH: usize = 60;
const HEIGHT: usize = 14;
/// Dots of a Braille character.
const DOTS_ACROSS: usize = 2;
const DOTS_DOWN: usize = 4;
/// Width of the axis labels on the left.
const MARGIN: usize = 8;

pub(super) fn draw(roofline: &Roofline) -> String {
    let (x_axis, y_axis) = (roofline.intensities(), roofline.rates());
    let mut canvas = Canvas::new();
    for column in 0..WIDTH * DOTS_ACROSS {
        let share = column as f64 / (WIDTH * DOTS_ACROSS - 1) as f64;
        canvas.dot(column, y_axis.position(roofline.roof(x_axis.value(share))));
    }
    for point in &roofline.points {
        canvas.letter(
            x_axis.position(point.intensity),
            y_axis.position(point.flops_per_second),
            point.mark,
        );
    }
    let mut labels = vec![String::new(); HEIGHT];
    for exponent in y_axis.decades() {
        let position = y_axis.position(10_f64.powi(exponent));
        labels[row(position)] = decade(exponent);
    }
    let mut text = format!("{:>MARGIN$}\n", "FLOP/s");
    for (label, line) in labels.iter().zip(canvas.lines()) {
        let tick = if label.is_empty() { '│' } else { '┤' };
        text.push_str(format!("{label:>MARGIN$} {tick}{line}").trim_end());
        text.push('\n');
    }
    let mut rule = vec!['─'; WIDTH];
    let mut numbers = vec![' '; WIDTH + MARGIN];
    for exponent in x_axis.decades() {
        let column = column(x_axis.position(10_f64.powi(exponent)));
        rule[column] = '┬';
        for (offset, c) in decade(exponent).chars().enumerate() {
            numbers[column + offset] = c;
        }
    }
    let (rule, numbers): (String, String) = (rule.iter().collect(), numbers.iter().collect());
    text.push_str(&format!("{:MARGIN$} └{rule}\n", ""));
    text.push_str(format!("{:MARGIN$}  {}", "", numbers.trim_end()).trim_end());
    text.push_str("  FLOP/byte\n\n");
    text.push_str(&legend(roofline));
    text
}

fn legend(roofline: &Roofline) -> String {
    let mut text = format!(
        "  ⠉ roof: memory reads {}, matrix products {}; intersection at {:.1} FLOP/byte\n",
        gigabytes_per_second(roofline.bytes_per_second),
        flops(roofline.flops_per_second),
        roofline.ridge(),
    );
    for point in &roofline.points {
        text.push_str(&format!(
            "  {} {}: {}, {:.0} % of the roof\n",
            point.mark,
            point.name,
            flops(point.flops_per_second),
            point.flops_per_second / roofline.roof(point.intensity) * 100.0,
        ));
    }
    text
}

/// Returns the row of a vertical position, counted from the top.
fn row(position: f64) -> usize {
    HEIGHT - 1 - (position * (HEIGHT - 1) as f64).round() as usize
}

fn column(position: f64) -> usize {
    (position * (WIDTH - 1) as f64).round() as usize
}

/// Dots and letters. Letters replace dots.
struct Canvas {
    dots: [[u8; WIDTH]; HEIGHT],
    letters: [[Option<char>; WIDTH]; HEIGHT],
}

impl Canvas {
    fn new() -> Self {
        Self {
            dots: [[0; WIDTH]; HEIGHT],
            letters: [[None; WIDTH]; HEIGHT],
        }
    }

    fn dot(&mut self, across: usize, height: f64) {
        /// Bits of the dots relative to U+2800, by row and column.
        const BITS: [[u8; DOTS_ACROSS]; DOTS_DOWN] = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]];
        let most = HEIGHT * DOTS_DOWN - 1;
        let down = most - (height * most as f64).round() as usize;
        self.dots[down / DOTS_DOWN][across / DOTS_ACROSS] |= BITS[down % DOTS_DOWN][across % DOTS_ACROSS];
    }

    fn letter(&mut self, x: f64, y: f64, letter: char) {
        self.letters[row(y)][column(x)] = Some(letter);
    }

    fn lines(&self) -> impl Iterator<Item = String> {
        self.dots.iter().zip(&self.letters).map(|(dots, letters)| {
            let cell = |(bits, letter): (&u8, &Option<char>)| match (letter, bits) {
                (Some(letter), _) => *letter,
                (None, 0) => ' ',
                (None, bits) => char::from_u32(0x2800 + u32::from(*bits)).unwrap_or(' '),
            };
            dots.iter().zip(letters).map(cell).collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::roofline::example;
    use super::*;

    #[test]
    fn picture_of_a_fast_gpu() {
        let drawn = draw(&example());
        insta::assert_snapshot!(drawn, @r"
          FLOP/s
             1 P ┤                                      ⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀
                 │                                   ⡠⠔⠊
                 │                               ⢀⠤⠒⠉               P
           100 T ┤                            ⡠⠔⠊⠁
                 │                        ⢀⡠⠒⠉     B
                 │                     ⣀⠔⠊⠁
            10 T ┤                 ⢀⡠⠒⠉
                 │              ⣀⠔⠊⠁
                 │          ⢀⡠⠔⠉    D
                 │       ⣀⠤⠊⠁
             1 T ┤   ⢀⡠⠔⠉
                 │⣀⠤⠒⠁
                 │
           100 G ┤
                 └┬───────────┬───────────┬──────────┬───────────┬───────────┬
                  0.1         1           10         100         1 k         10 k  FLOP/byte

          ⠉ roof: memory reads 3566 GB/s, matrix products 567 TFLOPS; intersection at 159.0 FLOP/byte
          D decode, 4-bit, one sequence: 2.63 TFLOPS, 21 % of the roof
          B decode, 4-bit, 16 sequences: 53.5 TFLOPS, 26 % of the roof
          P prefill, 4-bit, 512 tokens: 200 TFLOPS, 35 % of the roof
        ");
    }

    #[test]
    fn every_mark_is_drawn_for_any_figures() {
        let mut roofline = example();
        for (read, matmul) in [(1e6, 1e6), (1e12, 1e7), (1e7, 1e15)] {
            roofline.bytes_per_second = read;
            roofline.flops_per_second = matmul;
            let text = draw(&roofline);
            for mark in ["D ", "B ", "P "] {
                assert!(text.contains(mark), "{text}");
            }
            assert!(text.lines().all(|line| line.chars().count() < 120), "{text}");
        }
    }
}
