//! Sessions of signed-in users, in memory.

use std::collections::HashMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rand::TryRngCore as _;
use rand::rngs::OsRng;
use sha2::{Digest as _, Sha256};

use rooflet_base::clock::{Clock, Moment};

/// Time after which an unused session ends.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// Longest duration of a session.
pub(crate) const LIFETIME: Duration = Duration::from_secs(12 * 3600);
/// Maximum number of sessions. A further sign-in ends the session that was unused for longest.
pub(crate) const MAX_SESSIONS: usize = 256;

const RANDOM_BYTES: usize = 32;

/// Returns a secret of 256 bits with the operating system's random numbers.
pub(crate) fn random_secret() -> Result<String, rand::rand_core::OsError> {
    let mut bytes = [0; RANDOM_BYTES];
    OsRng.try_fill_bytes(&mut bytes)?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

/// Hash of a session's secret. The map contains hashes, so that the time of a lookup is independent
/// of the secrets.
type Hash = [u8; 32];

struct Session<V> {
    value: V,
    started: Moment,
    used: Moment,
}

impl<V> Session<V> {
    fn has_ended(&self, clock: &Clock) -> bool {
        self.started.age(clock) >= LIFETIME || self.used.age(clock) >= IDLE_TIMEOUT
    }
}

/// Sessions by their secret. A session ends after [`LIFETIME`], or [`IDLE_TIMEOUT`] after its last
/// use. Sleep of the machine counts.
pub(crate) struct Sessions<V> {
    by_secret: HashMap<Hash, Session<V>>,
}

impl<V> Default for Sessions<V> {
    fn default() -> Self {
        Self {
            by_secret: HashMap::new(),
        }
    }
}

impl<V: Clone> Sessions<V> {
    /// Adds a session. Returns the values of sessions that end because of it.
    pub(crate) fn insert(&mut self, secret: &str, value: V, clock: &Clock) -> Vec<V> {
        let mut ended = self.remove_ended(clock);
        while self.by_secret.len() >= MAX_SESSIONS {
            let longest_unused = self.by_secret.iter().max_by_key(|(_, s)| s.used.age(clock));
            let Some(hash) = longest_unused.map(|(hash, _)| *hash) else {
                break;
            };
            ended.extend(self.by_secret.remove(&hash).map(|session| session.value));
        }
        let now = Moment::now(clock);
        let session = Session {
            value,
            started: now,
            used: now,
        };
        self.by_secret.insert(hash(secret), session);
        ended
    }

    /// Returns the value of a session that has not ended, and marks the session as used.
    pub(crate) fn use_session(&mut self, secret: &str, clock: &Clock) -> Option<V> {
        let session = self.by_secret.get_mut(&hash(secret))?;
        if session.has_ended(clock) {
            return None;
        }
        session.used = Moment::now(clock);
        Some(session.value.clone())
    }

    pub(crate) fn remove(&mut self, secret: &str) -> Option<V> {
        self.by_secret.remove(&hash(secret)).map(|session| session.value)
    }

    /// Removes the sessions that have ended, and returns their values.
    pub(crate) fn remove_ended(&mut self, clock: &Clock) -> Vec<V> {
        let ended = self
            .by_secret
            .extract_if(|_, session| session.has_ended(clock))
            .map(|(_, session)| session.value);
        ended.collect()
    }
}

fn hash(secret: &str) -> Hash {
    Sha256::digest(secret.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use rooflet_base::clock::{ManualClock, at};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn start() -> (ManualClock, Clock, Sessions<u32>) {
        let manual = ManualClock::new(at(1_000_000));
        (manual.clone(), Clock::Manual(manual), Sessions::default())
    }

    #[test]
    fn unused_session_ends_after_idle_timeout() {
        let (manual, clock, mut sessions) = start();
        sessions.insert("a", 1, &clock);
        for _ in 0..3 {
            manual.advance(IDLE_TIMEOUT - SECOND);
            assert_eq!(sessions.use_session("a", &clock), Some(1));
        }
        manual.advance(IDLE_TIMEOUT);
        assert_eq!(sessions.use_session("a", &clock), None);
        assert_eq!(sessions.remove_ended(&clock), [1]);
    }

    #[test]
    fn used_session_ends_after_its_lifetime() {
        let (manual, clock, mut sessions) = start();
        sessions.insert("a", 1, &clock);
        let step = IDLE_TIMEOUT / 2;
        let mut age = Duration::ZERO;
        while age + step < LIFETIME {
            manual.advance(step);
            age += step;
            assert_eq!(sessions.use_session("a", &clock), Some(1), "{age:?}");
        }
        manual.advance(LIFETIME - age);
        assert_eq!(sessions.use_session("a", &clock), None);
    }

    #[test]
    fn sleep_counts_and_a_corrected_clock_does_not_end_or_extend_sessions() {
        let (manual, clock, mut sessions) = start();
        sessions.insert("a", 1, &clock);
        manual.set_back(Duration::from_secs(3600));
        assert_eq!(sessions.use_session("a", &clock), Some(1));
        manual.advance(IDLE_TIMEOUT);
        assert_eq!(sessions.use_session("a", &clock), None, "set back");
        sessions.insert("b", 2, &clock);
        manual.sleep(IDLE_TIMEOUT);
        assert_eq!(sessions.use_session("b", &clock), None, "slept");
    }

    #[test]
    fn unknown_or_removed_secret_has_no_session() {
        let (_, clock, mut sessions) = start();
        sessions.insert("a", 1, &clock);
        assert_eq!(sessions.use_session("b", &clock), None);
        assert_eq!(sessions.remove("a"), Some(1));
        assert_eq!(sessions.use_session("a", &clock), None);
        assert_eq!(sessions.remove("a"), None);
    }

    #[test]
    fn further_session_ends_the_session_unused_for_longest() {
        let (manual, clock, mut sessions) = start();
        for n in 0..MAX_SESSIONS {
            assert!(sessions.insert(&format!("s{n}"), n as u32, &clock).is_empty());
            manual.advance(SECOND);
        }
        assert_eq!(sessions.use_session("s0", &clock), Some(0));
        assert_eq!(sessions.insert("new", 999, &clock), [1]);
        assert_eq!(sessions.use_session("s1", &clock), None);
        assert_eq!(sessions.use_session("s0", &clock), Some(0));
    }

    #[test]
    fn secrets_are_long_and_distinct() {
        let secret = random_secret().expect("random");
        assert_eq!(secret.len(), 43);
        assert_ne!(secret, random_secret().expect("random"));
    }
}
