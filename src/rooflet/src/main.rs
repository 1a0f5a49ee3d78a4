//! The `rooflet` binary. All code is in the library, so that dead code is reported.

use std::process::ExitCode;

fn main() -> ExitCode {
    rooflet::run(std::env::args_os())
}
