//! Check of FileVault. Cached prefixes and keys of a node are encrypted on disk only by it.

use super::check::Check;
use super::system_command;

const NAME: &str = "FileVault";

/// Returns no check on other machines.
pub(super) async fn check() -> Option<Check> {
    if !cfg!(target_os = "macos") {
        return None;
    }
    let answer = system_command::run("/usr/bin/fdesetup", &["status"]).await;
    Some(judge(answer.map(|answer| answer.text).as_deref()))
}

fn judge(status: Option<&str>) -> Check {
    let is = |text: &str| status.is_some_and(|status| status.contains(text));
    if is("FileVault is On") {
        return Check::ok(
            NAME,
            "on: cached prefixes and keys are encrypted on disk. After a restart, the service starts as soon as the \
             disk is unlocked; `sudo fdesetup authrestart` restarts without that step",
        );
    }
    if is("FileVault is Off") {
        return Check::warn(
            NAME,
            "off: a person with physical access can read cached prefixes and keys",
            "turn it on in the system settings, or keep the machine in a locked room",
        );
    }
    Check::unknown(NAME, "fdesetup did not report the state")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Status;

    /// The first two texts are those of the manual page of fdesetup; the third adds the line of a disk that
    /// is being encrypted.
    #[test]
    fn state_is_read_from_the_first_line() {
        for (status, expect) in [
            (Some("FileVault is On.\n"), Status::Ok),
            (Some("FileVault is Off.\n"), Status::Warn),
            (
                Some("FileVault is On.\nEncryption in progress: Percent completed = 23.5\n"),
                Status::Ok,
            ),
            (Some("Error: unable to read\n"), Status::Unknown),
            (None, Status::Unknown),
        ] {
            let check = judge(status);
            assert_eq!(check.status, expect, "{status:?}");
            assert_eq!(check.remedy.is_some(), expect == Status::Warn);
        }
    }
}
