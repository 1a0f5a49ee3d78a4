//! A Mac that answers `dscl`, `chown` and `launchctl`, for tests. Only root may change owners of files.

use std::collections::BTreeMap;

use super::{Answer, Invocation};

#[derive(Debug, Default)]
pub(crate) struct FakeMac {
    pub(crate) users: BTreeMap<String, u32>,
    pub(crate) groups: BTreeMap<String, u32>,
    /// Loaded jobs by target.
    pub(crate) loaded: BTreeMap<String, FakeJob>,
    /// Job that each start results in.
    pub(crate) next_job: FakeJob,
    /// Number of attempts to start a job that fail after a job was stopped.
    pub(crate) refused_starts: u32,
    /// Number of questions for which a stopped job is still there.
    pub(crate) slow_stops: u32,
    /// Commands that changed something.
    pub(crate) changes: Vec<String>,
    refuses: u32,
    /// Stopped jobs, with the number of questions for which they are still there.
    stopping: BTreeMap<String, u32>,
}

#[derive(Debug, Clone, Default)]
pub(crate) enum FakeJob {
    #[default]
    Runs,
    /// Ends with this exit code after each start.
    Fails(u8),
}

impl FakeJob {
    fn print(&self, target: &str) -> String {
        let fields = match self {
            Self::Runs => "\tstate = running\n\tpid = 913\n\tlast exit code = (never exited)\n".to_owned(),
            Self::Fails(code) => format!("\tstate = spawn scheduled\n\tlast exit code = {code}\n"),
        };
        format!("{target} = {{\n{fields}}}\n")
    }
}

impl FakeMac {
    pub(crate) fn run(&mut self, command: &Invocation) -> Answer {
        let words: Vec<&str> = command.arguments.iter().map(String::as_str).collect();
        let name = command.program.rsplit('/').next().unwrap_or_default();
        if !matches!(words.as_slice(), [".", "-list", ..] | ["print", _]) {
            self.changes.push(command.to_string());
        }
        let outcome = match name {
            "dscl" => self.dscl(&words),
            "launchctl" => self.launchctl(&words),
            "chown" => Ok(String::new()),
            _ => Err(format!("{name}: command not found")),
        };
        Answer {
            succeeded: outcome.is_ok(),
            text: outcome.unwrap_or_else(|err| err),
        }
    }

    fn dscl(&mut self, words: &[&str]) -> Result<String, String> {
        let accounts = |record: &str| match record.strip_prefix("/Users") {
            Some(name) => (true, name.trim_start_matches('/').to_owned()),
            None => (
                false,
                record
                    .trim_start_matches("/Groups")
                    .trim_start_matches('/')
                    .to_owned(),
            ),
        };
        let record = words.get(2).copied().unwrap_or_default();
        let (is_user, name) = accounts(record);
        let known = match is_user {
            true => &mut self.users,
            false => &mut self.groups,
        };
        match words {
            [_, "-list", ..] => {
                let line = |(name, id): (&String, &u32)| format!("{name:<24}{id}\n");
                return Ok(known.iter().map(line).collect());
            }
            [_, "-create", _, "UniqueID", id] if is_user => {
                known.insert(name, id.parse().map_err(|_| format!("{id} is no id"))?);
            }
            [_, "-create", _, "PrimaryGroupID", id] if !is_user => {
                known.insert(name, id.parse().map_err(|_| format!("{id} is no id"))?);
            }
            [_, "-delete", _] => {
                known.remove(&name).ok_or("eDSUnknownRecord")?;
            }
            _ => {}
        }
        Ok(String::new())
    }

    fn launchctl(&mut self, words: &[&str]) -> Result<String, String> {
        match words {
            ["print", target] => {
                if let Some(left) = self.stopping.get_mut(*target) {
                    if *left == 0 {
                        self.stopping.remove(*target);
                        self.loaded.remove(*target);
                        self.refuses = self.refused_starts;
                    } else {
                        *left -= 1;
                    }
                }
                let job = self.loaded.get(*target);
                let missing = "Bad request.\nCould not find service in domain for system";
                job.map(|job| job.print(target)).ok_or_else(|| missing.to_owned())
            }
            ["bootstrap", "system", file] => {
                let label = file
                    .rsplit('/')
                    .next()
                    .unwrap_or_default()
                    .trim_end_matches(".plist");
                let target = format!("system/{label}");
                if self.refuses > 0 || self.loaded.contains_key(&target) {
                    self.refuses = self.refuses.saturating_sub(1);
                    return Err("Bootstrap failed: 5: Input/output error".to_owned());
                }
                self.loaded.insert(target, self.next_job.clone());
                Ok(String::new())
            }
            ["bootout", target] => {
                if !self.loaded.contains_key(*target) {
                    return Err("Boot-out failed: 3: No such process".to_owned());
                }
                self.stopping.insert((*target).to_owned(), self.slow_stops);
                Ok(String::new())
            }
            ["enable", _] => Ok(String::new()),
            _ => Err(format!("Unrecognized subcommand: {words:?}")),
        }
    }
}
