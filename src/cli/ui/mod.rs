//! The only code that prints. What may be piped goes to standard output, everything else to standard error.
#![expect(clippy::print_stderr, reason = "this is the module the ban points to")]

use std::io;
use std::sync::OnceLock;

/// Why the first text that was lost was.
static LOST: OnceLock<io::Error> = OnceLock::new();

/// Prints text that a user may pipe into another program. What cannot be written is [told](lost) in the end.
pub(crate) fn output(text: &str) {
    match output_bytes(text.as_bytes()) {
        // A closed pipe (`| head`) is no failure of ours.
        Err(err) if err.kind() != io::ErrorKind::BrokenPipe => drop(LOST.set(err)),
        Ok(()) | Err(_) => {}
    }
}

/// Why not all of the output is where it should be.
pub(crate) fn lost() -> Option<&'static io::Error> {
    LOST.get()
}

/// Passes bytes on as they come, not only whole lines. Fails when nobody reads them any more.
pub(crate) fn output_bytes(bytes: &[u8]) -> io::Result<()> {
    use std::io::Write;
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()
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
    eprintln!("error: {}", printable(&format!("{error:#}")));
}

/// Prints one line on progress.
pub(crate) fn progress(line: &str) {
    eprintln!("{}", printable(line));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_does_not_steer_the_terminal() {
        assert_eq!(printable("a\n\tb \u{1b}[2J\rc é"), "a\n\tb \\u{1b}[2J\\rc é");
    }
}
