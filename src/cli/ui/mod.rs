//! The only code that prints. What may be piped goes to standard output, everything else to standard error.
#![expect(clippy::print_stderr, reason = "this is the module the ban points to")]

/// Prints text that a user may pipe into another program.
pub(crate) fn output(text: &str) {
    // A closed pipe (`| head`) is no failure of ours.
    drop(output_bytes(text.as_bytes()));
}

/// Passes bytes on as they come, not only whole lines. Fails when nobody reads them any more.
pub(crate) fn output_bytes(bytes: &[u8]) -> std::io::Result<()> {
    use std::io::Write;
    let mut stdout = std::io::stdout().lock();
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
