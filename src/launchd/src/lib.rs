//! Services of a Mac that launchd runs: their installation, state and removal.
//!
//! A pure plan ([`install`], [`uninstall`]) lists the steps. One adapter ([`System`]) executes them: it
//! changes the files, and runs `launchctl` and `dscl`. No code of this crate has run on a Mac;
//! tests replace these programs.

mod accounts;
mod daemon;
mod job;
mod plan;
mod property_list;
mod step;
mod system;
#[cfg(test)]
mod tests;

pub use self::daemon::{BINARIES, DATA, Daemon, USER};
pub use self::job::Job;
pub use self::plan::{Installation, Observed, install, kept, uninstall};
pub use self::property_list::PropertyList;
pub use self::step::Step;
pub use self::system::{Programs, System};
