//! How errors are shown: [`Chain`] prints an error with its sources, [`ExitStatus`] is what a
//! process ends with.

use std::error::Error;
use std::fmt::{self, Write as _};

/// Prints an error and all its sources on one line, `what failed: why: why that`.
///
/// No `Display` of ours prints its own source, so nothing is said twice. Errors repeat what servers
/// and files say, which must not write lines of its own into a log or steer a terminal: control
/// characters are printed as escapes.
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

/// Writes control characters as escapes.
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

/// Exit codes of the binary; documented in docs/cli.md. The words and numbers of sysexits(3) where
/// one fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitStatus {
    Success = 0,
    /// Something failed at run time.
    Failure = 1,
    /// The command line is wrong.
    Usage = 2,
    /// What was asked about does not fit; the answer is printed.
    DoesNotFit = 3,
    /// A claim that was checked cannot stand as published; what is wrong is printed.
    Flagged = 4,
    /// A claim holds nothing that can be checked.
    Untestable = 5,
    /// A port, a lock, a directory or a name that is needed is taken by another process.
    Unavailable = 69,
    /// A configuration, a manifest or a model directory is unusable; trying again will not help.
    Config = 78,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_prints_every_source_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("reading `a.yaml`")]
        struct Outer(#[source] std::io::Error);
        let err = Outer(std::io::Error::other("disk on fire"));
        assert_eq!(Chain(&err).to_string(), "reading `a.yaml`: disk on fire");
    }

    #[test]
    fn what_others_said_stays_on_the_line() {
        let err = std::io::Error::other("file `a\r\n2026 INFO fine\u{1b}[2Jé\u{9b}`");
        assert_eq!(
            Chain(&err).to_string(),
            r"file `a\r\n2026 INFO fine\u{1b}[2Jé\u{9b}`"
        );
    }
}
