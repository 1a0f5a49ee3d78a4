//! Property list of a job of launchd (`man launchd.plist`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Property list of a job. Keys that are not listed here are ignored when a file is read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct PropertyList {
    pub(crate) label: String,
    /// User as whom a daemon of the system runs. Without a user, it runs as root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_name: Option<String>,
    /// The program, then its arguments.
    pub program_arguments: Vec<String>,
    /// Variables that an administrator has added, such as the token of the hub.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) environment_variables: Option<BTreeMap<String, String>>,
    pub(crate) run_at_load: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) keep_alive: Option<KeepAlive>,
    /// Minimum time between two starts, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) throttle_interval: Option<u32>,
    /// Time between SIGTERM and SIGKILL, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exit_time_out: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) process_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) limit_load_to_session_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub standard_error_path: Option<String>,
}

/// Condition under which launchd starts a job again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct KeepAlive {
    /// `false`: launchd starts the job again after a failure only.
    pub(crate) successful_exit: bool,
}

impl PropertyList {
    /// Returns a job that runs once, when it is loaded. `log` is the file of standard error.
    pub fn once(label: String, program_arguments: Vec<String>, log: String) -> Self {
        Self {
            label,
            program_arguments,
            run_at_load: true,
            standard_error_path: Some(log),
            ..Self::default()
        }
    }

    /// Returns the job without a window session. A user's domain accepts only such jobs.
    #[must_use]
    pub fn in_background(self) -> Self {
        Self {
            limit_load_to_session_type: Some("Background".to_owned()),
            ..self
        }
    }

    /// Returns the arguments of a service, without the binary and the verb.
    pub fn service_arguments(&self) -> &[String] {
        self.program_arguments.get(2..).unwrap_or_default()
    }

    /// Returns the text of the file, as XML.
    pub fn text(&self) -> String {
        let mut text = Vec::new();
        plist::to_writer_xml(&mut text, self).expect("texts, numbers and lists are always valid");
        let mut text = String::from_utf8(text).expect("XML is UTF-8");
        text.push('\n');
        text
    }

    /// Returns the mode of the file. Variables can be secret.
    pub(crate) fn mode(&self) -> u32 {
        match self.environment_variables {
            Some(_) => 0o600,
            None => 0o644,
        }
    }

    /// Returns the job without the values of its variables.
    pub(crate) fn without_secrets(mut self) -> Self {
        for value in self
            .environment_variables
            .iter_mut()
            .flat_map(BTreeMap::values_mut)
        {
            "(hidden)".clone_into(value);
        }
        self
    }

    /// Parses a file in any format that launchd reads.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, plist::Error> {
        plist::from_bytes(text)
    }

    /// Returns the value of `--NAME=VALUE`; the last one counts.
    pub(crate) fn argument(&self, name: &str) -> Option<&str> {
        argument(&self.program_arguments, name)
    }
}

/// Returns the value of `--NAME=VALUE` in a list of arguments; the last one counts.
pub(crate) fn argument<'a>(arguments: &'a [String], name: &str) -> Option<&'a str> {
    let value = |argument: &'a String| argument.strip_prefix(name)?.strip_prefix('=');
    arguments.iter().rev().find_map(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_a_property_list_with_escaped_values() {
        let written = PropertyList {
            label: "dev.rooflet.agent".to_owned(),
            program_arguments: ["/usr/local/bin/rooflet", "--model-dir=/models <&> more"]
                .map(str::to_owned)
                .to_vec(),
            run_at_load: true,
            keep_alive: Some(KeepAlive {
                successful_exit: false,
            }),
            exit_time_out: Some(60),
            ..PropertyList::default()
        };
        let text = written.text();
        for part in [
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE plist PUBLIC \"-//Apple//DTD PLIST 1.0//EN\"",
            "\t<key>RunAtLoad</key>\n\t<true/>\n",
            "<string>--model-dir=/models &lt;&amp;&gt; more</string>",
            "<key>SuccessfulExit</key>\n\t\t<false/>",
            "<key>ExitTimeOut</key>\n\t<integer>60</integer>",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        assert!(!text.contains("UserName"), "{text}");
        assert_eq!(PropertyList::parse(text.as_bytes()).unwrap(), written);
        assert_eq!(written.argument("--model-dir"), Some("/models <&> more"));
        assert_eq!(written.argument("--model"), None);
    }

    #[test]
    fn variables_are_kept_and_private() {
        let text = "<?xml version=\"1.0\"?><plist version=\"1.0\"><dict><key>Label</key><string>a</string>\
                    <key>EnvironmentVariables</key><dict><key>HF_TOKEN</key><string>hf_1</string></dict></dict></plist>";
        let read = PropertyList::parse(text.as_bytes()).unwrap();
        let again = PropertyList::parse(read.text().as_bytes()).unwrap();
        assert_eq!(
            again.environment_variables,
            Some(BTreeMap::from([("HF_TOKEN".to_owned(), "hf_1".to_owned())]))
        );
        assert_eq!((read.mode(), PropertyList::default().mode()), (0o600, 0o644));
        let shown = read.without_secrets().text();
        assert!(shown.contains("HF_TOKEN") && !shown.contains("hf_1"), "{shown}");
    }

    #[test]
    fn other_keys_of_an_administrator_are_ignored() {
        let text = "<?xml version=\"1.0\"?><plist version=\"1.0\"><dict><key>Label</key><string>a</string>\
                    <key>Nice</key><integer>5</integer></dict></plist>";
        let read = PropertyList::parse(text.as_bytes()).unwrap();
        assert_eq!(read.label, "a");
        assert!(PropertyList::parse(b"no property list").is_err());
    }
}
