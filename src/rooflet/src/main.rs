//! The `rooflet` binary. Everything lives in the library, so that dead code is still reported.

use std::process::ExitCode;

fn main() -> ExitCode {
    rooflet::run(std::env::args_os())
}
