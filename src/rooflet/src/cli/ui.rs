//! The only module that prints. Output for pipes goes to standard output, everything else to
//! standard error. Messages that cannot be written, for example because the reader has exited or
//! the disk is full, are dropped.

pub(crate) mod address;
pub(crate) mod digits;
pub(crate) mod duration;
pub(crate) mod html;
pub(crate) mod output;
mod table;

pub(super) use table::Table;

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::sync::OnceLock;

/// First write error of standard output.
static LOST: OnceLock<io::Error> = OnceLock::new();

/// Prints text to standard output. A write error is kept for [`lost`].
pub(crate) fn output(text: &str) {
    if let Err(err) = output_bytes(text.as_bytes()) {
        drop(LOST.set(err));
    }
}

/// Returns the first write error of standard output, if any.
pub(crate) fn lost() -> Option<&'static io::Error> {
    LOST.get()
}

/// Writes bytes to standard output as they arrive. Returns `Break` if the reader has exited (`|
/// head`), which is not an error.
pub(crate) fn output_bytes(bytes: &[u8]) -> io::Result<ControlFlow<()>> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(ControlFlow::Continue(())),
        Err(err) if err.kind() == io::ErrorKind::BrokenPipe => Ok(ControlFlow::Break(())),
        Err(err) => Err(err),
    }
}

/// Escapes control characters, so that text from hubs, nodes and files cannot control the terminal.
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

/// Prints an error with all its causes on one line.
pub(crate) fn error(error: &anyhow::Error) {
    progress(&format!("error: {error:#}"));
}

/// Prints one line of progress.
pub(crate) fn progress(line: &str) {
    drop(writeln!(io::stderr(), "{}", printable(line)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(printable("a\n\tb \u{1b}[2J\rc é"), "a\n\tb \\u{1b}[2J\\rc é");
    }
}
