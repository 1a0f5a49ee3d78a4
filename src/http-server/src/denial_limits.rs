//! Limits of audit events about denied requests: a client must not replace the other events of a file.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::log_limit::LogLimit;

/// Users with a limit of their own. Further ones share a limit.
const MAX_USERS: usize = 1024;

/// Limits by user. All unknown clients share a limit.
#[derive(Debug)]
pub struct DenialLimits {
    unknown: LogLimit,
    users: BTreeMap<String, LogLimit>,
    other_users: LogLimit,
}

impl DenialLimits {
    pub fn new(now: Instant) -> Self {
        Self {
            unknown: LogLimit::new(now),
            users: BTreeMap::new(),
            other_users: LogLimit::new(now),
        }
    }

    /// Returns whether an event may be recorded: the number of events suppressed since the last one, or `None`.
    /// `user` is empty if the client is unknown.
    pub fn admit(&mut self, user: &str, now: Instant) -> Option<u64> {
        if user.is_empty() {
            return self.unknown.admit(now);
        }
        if self.users.len() >= MAX_USERS && !self.users.contains_key(user) {
            self.users.retain(|_, limit| !limit.is_idle(now));
            if self.users.len() >= MAX_USERS {
                return self.other_users.admit(now);
            }
        }
        let limit = self.users.entry(user.to_owned());
        limit.or_insert_with(|| LogLimit::new(now)).admit(now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use rooflet_base::clock::Clock;

    #[test]
    fn number_of_limits_is_bounded() {
        let start = Clock::System.instant();
        let mut limits = DenialLimits::new(start);
        let mut admitted = |user: usize, at| limits.admit(&format!("user-{user}"), at);
        for user in 0..MAX_USERS {
            assert_eq!(admitted(user, start), Some(0));
        }
        let further = (MAX_USERS..2 * MAX_USERS).filter(|user| admitted(*user, start).is_some());
        assert_eq!(further.count(), 20);
        assert_eq!(admitted(0, start), Some(0));
        let later = start + Duration::from_secs(1);
        for user in MAX_USERS..2 * MAX_USERS {
            assert_eq!(admitted(user, later), Some(0), "the first users are idle");
        }
        assert_eq!(limits.users.len(), MAX_USERS);
    }
}
