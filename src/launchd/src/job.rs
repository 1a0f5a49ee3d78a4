//! State of a job, as `launchctl print` reports it.

/// State of a job of launchd.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Job {
    /// Such as `running`, `not running` or `spawn scheduled`.
    pub state: String,
    pub pid: Option<u32>,
    /// Exit code of the last process, such as `0` or `78: EX_CONFIG`. `None` if no process has exited.
    pub last_exit: Option<String>,
}

impl Job {
    /// Parses the output of `launchctl print system/LABEL`.
    pub(crate) fn parse(output: &str) -> Self {
        // Fields of the job are indented by one tab, those of its parts by more.
        let field = |name: &str| {
            let fields = output.lines().filter_map(|line| line.strip_prefix('\t'));
            let mut pairs = fields.filter_map(|line| line.split_once(" = "));
            pairs.find_map(|(found, value)| (found == name).then_some(value))
        };
        let exit = |name| field(name).filter(|value| !value.starts_with('('));
        let signal = exit("last terminating signal").map(|signal| format!("signal {signal}"));
        Self {
            state: field("state").unwrap_or("unknown").to_owned(),
            pid: field("pid").and_then(|pid| pid.parse().ok()),
            last_exit: signal.or_else(|| exit("last exit code").map(str::to_owned)),
        }
    }

    /// Returns the process, if it runs.
    pub fn running(&self) -> Option<u32> {
        self.pid.filter(|_| self.state == "running")
    }

    /// Returns the failure of the last process, if it failed.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.last_exit.as_deref().filter(|exit| *exit != "0")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of public reports, in their order.
    const RUNNING: &str = "system/dev.rooflet.agent = {\n\tactive count = 1\n\tpath = /Library/LaunchDaemons/dev.rooflet.agent.plist\n\
        \ttype = LaunchDaemon\n\tstate = running\n\n\tprogram = /usr/local/bin/rooflet\n\truns = 1\n\tpid = 913\n\
        \tlast exit code = (never exited)\n\tspawn type = daemon (3)\n\tendpoints = {\n\t\t\"x\" = {\n\t\t\tstate = active\n\t\t}\n\t}\n}\n";

    #[test]
    fn running_job_has_a_process_and_no_failure() {
        let job = Job::parse(RUNNING);
        assert_eq!((job.running(), job.failure()), (Some(913), None));
    }

    #[test]
    fn failed_job_has_the_code_of_its_last_process() {
        let failed = RUNNING
            .replace("state = running", "state = spawn scheduled")
            .replace("\tpid = 913\n", "")
            .replace("(never exited)", "78: EX_CONFIG");
        let job = Job::parse(&failed);
        assert_eq!((job.running(), job.failure()), (None, Some("78: EX_CONFIG")));
        let stopped = failed
            .replace("spawn scheduled", "not running")
            .replace("78: EX_CONFIG", "0");
        assert_eq!(Job::parse(&stopped).failure(), None);
        let killed = failed.replace(
            "last exit code = 78: EX_CONFIG",
            "last terminating signal = Killed: 9",
        );
        assert_eq!(Job::parse(&killed).failure(), Some("signal Killed: 9"));
    }

    #[test]
    fn states_of_parts_are_ignored() {
        let without = RUNNING.replace("\tstate = running\n", "");
        assert_eq!(Job::parse(&without).state, "unknown");
    }
}
