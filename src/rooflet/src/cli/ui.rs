//! The only code that prints. What may be piped goes to standard output, everything else to standard error.
//! Messages that cannot be written, because nobody reads them any more or the disk is full, are dropped.

pub(crate) mod digits;
pub(crate) mod html;
pub(crate) mod output;
mod table;

pub(super) use table::Table;

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::sync::OnceLock;

/// Why the first text that was lost was.
static LOST: OnceLock<io::Error> = OnceLock::new();

/// Prints text that a user may pipe into another program. What cannot be written is [told](lost) in the end.
pub(crate) fn output(text: &str) {
    if let Err(err) = output_bytes(text.as_bytes()) {
        drop(LOST.set(err));
    }
}

/// Why not all of the output is where it should be.
pub(crate) fn lost() -> Option<&'static io::Error> {
    LOST.get()
}

/// Passes bytes on as they come, not only whole lines. Breaks where nobody reads them any more (`| head`), which is no
/// failure of ours.
pub(crate) fn output_bytes(bytes: &[u8]) -> io::Result<ControlFlow<()>> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(ControlFlow::Continue(())),
        Err(err) if err.kind() == io::ErrorKind::BrokenPipe => Ok(ControlFlow::Break(())),
        Err(err) => Err(err),
    }
}

/// What hubs, nodes and files say must not steer the terminal.
fn printable(text: &str) -> String {
    let escapes = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    text.chars()
        .fold(String::with_capacity(text.len()), |mut out, c| {
            if escapes(c) {
                out.extend(c.escape_default());
            } else {
                out.push(c);
            }
            out
        })
}

/// Prints what went wrong with all its causes on one line.
pub(crate) fn error(error: &anyhow::Error) {
    progress(&format!("error: {error:#}"));
}

/// Prints one line on progress.
pub(crate) fn progress(line: &str) {
    drop(writeln!(io::stderr(), "{}", printable(line)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_does_not_steer_the_terminal() {
        assert_eq!(printable("a\n\tb \u{1b}[2J\rc é"), "a\n\tb \\u{1b}[2J\\rc é");
    }
}
