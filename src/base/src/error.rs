//! Presentation of errors: [`Chain`] prints an error with its sources; [`ExitStatus`] lists the
//! exit codes.

use std::error::Error;
use std::fmt::{self, Write as _};

/// Display form of an error and all its sources on one line, such as `reading file x: not found`.
///
/// The `Display` implementations of rooflet's errors never print the source, so nothing is
/// repeated. Errors can contain texts of servers and files. Control characters are escaped, so that
/// these texts cannot forge log lines or control a terminal.
pub struct Chain<'a>(pub &'a (dyn Error + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = OneLine(f);
        write!(out, "{}", self.0)?;
        let mut source = self.0.source();
        while let Some(err) = source {
            write!(out, ": {err}")?;
            source = err.source();
        }
        Ok(())
    }
}

/// Writer that escapes control characters.
struct OneLine<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl fmt::Write for OneLine<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.split_inclusive(char::is_control).try_for_each(|part| {
            let control = part.chars().next_back().filter(|c| c.is_control());
            let plain = control.map_or(part, |control| &part[..part.len() - control.len_utf8()]);
            self.0.write_str(plain)?;
            control.map_or(Ok(()), |control| write!(self.0, "{}", control.escape_default()))
        })
    }
}

/// Exit codes of the binary, documented in docs/reference/command-line.md. Values follow
/// sysexits(3) where possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitStatus {
    Success = 0,
    /// Failure at run time.
    Failure = 1,
    /// Invalid command line.
    Usage = 2,
    /// The model does not fit. The command prints the result.
    DoesNotFit = 3,
    /// The checked claim has findings. The command prints them.
    Flagged = 4,
    /// The claim contains nothing that can be checked.
    Untestable = 5,
    /// Another process uses a required port, lock, directory or name.
    Unavailable = 69,
    /// Invalid configuration, manifest or model directory. A retry does not help.
    Config = 78,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chain_prints_every_source_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("reading `a.yaml`")]
        struct Outer(#[source] std::io::Error);
        let err = Outer(std::io::Error::other("disk on fire"));
        assert_eq!(Chain(&err).to_string(), "reading `a.yaml`: disk on fire");
    }

    #[test]
    fn chain_escapes_control_characters() {
        let err = std::io::Error::other("file `a\r\n2026 INFO fine\u{1b}[2Jé\u{9b}`");
        assert_eq!(
            Chain(&err).to_string(),
            r"file `a\r\n2026 INFO fine\u{1b}[2Jé\u{9b}`"
        );
    }
}
