//! Commands of the operating system whose output is evaluated.

use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

/// Time after which a command is stopped.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Result of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) succeeded: bool,
    /// Standard output, then standard error: some commands write their result to the latter.
    pub(super) text: String,
}

/// Runs a command. Returns `None` if it does not exist or does not end.
pub(super) async fn run(program: &str, arguments: &[&str]) -> Option<Answer> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(TIMEOUT, command.output()).await.ok()?.ok()?;
    let texts = [output.stdout, output.stderr].concat();
    Some(Answer {
        succeeded: output.status.success(),
        text: String::from_utf8_lossy(&texts).into_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn both_outputs_and_the_status_are_read() {
        let answer = run("sh", &["-c", "echo out; echo err >&2; exit 3"])
            .await
            .unwrap();
        assert_eq!((answer.succeeded, answer.text.as_str()), (false, "out\nerr\n"));
        assert!(run("true", &[]).await.unwrap().succeeded);
        assert_eq!(run("/does/not/exist", &[]).await, None);
    }
}
