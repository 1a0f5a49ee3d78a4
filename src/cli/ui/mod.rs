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

/// Prints what went wrong with all its causes on one line.
pub(crate) fn error(error: &anyhow::Error) {
    eprintln!("error: {error:#}");
}

/// Prints one line on progress.
pub(crate) fn progress(line: &str) {
    eprintln!("{line}");
}
