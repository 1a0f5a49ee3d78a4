//! Whether the shown objects are current. The module is pure.

use jiff::Timestamp;

use crate::age::age;
use crate::printable::printable;
use crate::view::Problem;

/// Result of one check of the API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Checked {
    /// The server answers. It rejects the kinds of `problems`.
    Answers { problems: Vec<Problem> },
    /// The server does not answer.
    Fails { message: String },
}

/// Connection to the API server.
#[derive(Debug, Clone)]
pub(crate) struct Status {
    /// Address of the API server and namespace.
    pub(crate) server: String,
    /// True if the objects were read at least once.
    pub(crate) is_loaded: bool,
    pub(crate) problems: Vec<Problem>,
    lost: Option<Lost>,
}

/// Lost connection.
#[derive(Debug, Clone)]
struct Lost {
    /// Time of the last check that succeeded. `None` if no check did.
    since: Option<Timestamp>,
    /// `None` if the server answers again, and the objects were not read again yet.
    message: Option<String>,
}

/// Reaction to a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reaction {
    Continue,
    /// Read all objects again: changes may have been missed.
    ReadAgain,
}

impl Status {
    pub(crate) fn new(server: &str) -> Self {
        Self {
            server: printable(server),
            is_loaded: false,
            problems: Vec::new(),
            lost: None,
        }
    }

    /// Records a check. `last` is the time of the last successful check.
    pub(crate) fn checked(&mut self, checked: Checked, last: Option<Timestamp>) -> Reaction {
        match checked {
            Checked::Answers { problems } => {
                self.problems = problems;
                let failure = self.lost.as_mut().and_then(|lost| lost.message.take());
                match failure {
                    Some(_) => Reaction::ReadAgain,
                    None => Reaction::Continue,
                }
            }
            Checked::Fails { message } => {
                let since = self.lost.as_ref().map_or(last, |lost| lost.since);
                self.lost = Some(Lost {
                    since,
                    message: Some(printable(&message)),
                });
                Reaction::Continue
            }
        }
    }

    /// Records that all readable objects were read since the last [`Reaction::ReadAgain`].
    pub(crate) fn loaded(&mut self) {
        self.is_loaded = true;
        if self.lost.as_ref().is_some_and(|lost| lost.message.is_none()) {
            self.lost = None;
        }
    }

    /// Returns whether the server does not answer, or its objects were not read again yet.
    pub(crate) fn is_stale(&self) -> bool {
        self.lost.is_some()
    }

    /// Returns the warning that the shown data is stale.
    pub(crate) fn stale(&self, now: Timestamp) -> Option<String> {
        let lost = self.lost.as_ref()?;
        let reason = lost
            .message
            .as_deref()
            .unwrap_or("the API server answers again; reading its objects");
        let action = if lost.message.is_some() {
            "reconnecting"
        } else {
            "connected"
        };
        Some(match lost.since {
            Some(since) => format!(
                "STALE since {} ({}), {action}: {reason}",
                since.strftime("%H:%M:%SZ"),
                age(since, now)
            ),
            None => format!("NOT CONNECTED, retrying: {reason}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    fn fails(message: &str) -> Checked {
        let message = message.to_owned();
        Checked::Fails { message }
    }

    const ANSWERS: Checked = Checked::Answers { problems: Vec::new() };

    #[test]
    fn data_is_stale_until_the_objects_were_read_again() {
        let mut status = Status::new("https://example");
        assert_eq!(status.checked(ANSWERS, None), Reaction::Continue);
        status.loaded();
        assert_eq!(status.stale(at(1)), None);
        assert_eq!(status.checked(fails("refused"), Some(at(10))), Reaction::Continue);
        // Objects that arrive now are from a watch that has not noticed the failure.
        status.loaded();
        status.checked(fails("no\u{1b}route"), Some(at(10)));
        let warning = status.stale(at(15)).expect("stale");
        assert_eq!(
            warning,
            "STALE since 00:00:10Z (5s), reconnecting: no\\u{1b}route"
        );
        assert_eq!(status.checked(ANSWERS, Some(at(10))), Reaction::ReadAgain);
        assert!(
            status
                .stale(at(20))
                .is_some_and(|text| text.contains("answers again"))
        );
        assert_eq!(status.checked(ANSWERS, Some(at(20))), Reaction::Continue);
        assert!(status.is_stale());
        status.loaded();
        assert_eq!(status.stale(at(30)), None);
    }

    #[test]
    fn failure_before_the_first_answer_is_no_stale_data() {
        let mut status = Status::new("https://example");
        status.checked(fails("refused"), None);
        assert_eq!(
            status.stale(at(1)).as_deref(),
            Some("NOT CONNECTED, retrying: refused")
        );
    }
}
