//! Limit of failed sign-ins per client address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use rooflet_base::clock::{Clock, Moment};

/// Failed sign-ins that an address may have in a [`WINDOW`].
pub(crate) const MAX_FAILURES: u32 = 10;
pub(crate) const WINDOW: Duration = Duration::from_secs(60);
/// Maximum number of addresses. If there are more, the address with the oldest window is dropped.
const MAX_ADDRESSES: usize = 4096;

struct Window {
    started: Moment,
    attempts: u32,
}

/// Attempts by client address.
#[derive(Default)]
pub(crate) struct Failures {
    by_address: HashMap<IpAddr, Window>,
}

impl Failures {
    /// Counts an attempt. It counts as failed until [`Self::succeeded`], so that concurrent attempts
    /// are limited too. Returns the time to wait if there were too many.
    pub(crate) fn attempt(&mut self, from: IpAddr, clock: &Clock) -> Result<(), Duration> {
        self.by_address
            .retain(|_, window| window.started.age(clock) < WINDOW);
        if self.by_address.len() >= MAX_ADDRESSES && !self.by_address.contains_key(&from) {
            let oldest = self.by_address.iter().max_by_key(|(_, w)| w.started.age(clock));
            if let Some(oldest) = oldest.map(|(address, _)| *address) {
                self.by_address.remove(&oldest);
            }
        }
        let window = self.by_address.entry(from).or_insert_with(|| Window {
            started: Moment::now(clock),
            attempts: 0,
        });
        if window.attempts >= MAX_FAILURES {
            return Err(WINDOW.saturating_sub(window.started.age(clock)));
        }
        window.attempts += 1;
        Ok(())
    }

    /// Removes an attempt that did not fail because of its credential.
    pub(crate) fn succeeded(&mut self, from: IpAddr) {
        if let Some(window) = self.by_address.get_mut(&from) {
            window.attempts = window.attempts.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use rooflet_base::clock::{ManualClock, at};

    use super::*;

    fn address(n: usize) -> IpAddr {
        Ipv4Addr::from_bits(n as u32).into()
    }

    #[test]
    fn failures_are_limited_per_address_and_window() {
        let manual = ManualClock::new(at(0));
        let clock = Clock::Manual(manual.clone());
        let mut failures = Failures::default();
        for _ in 0..MAX_FAILURES {
            assert_eq!(failures.attempt(address(1), &clock), Ok(()));
        }
        manual.advance(WINDOW / 4);
        assert_eq!(failures.attempt(address(1), &clock), Err(WINDOW * 3 / 4));
        assert_eq!(failures.attempt(address(2), &clock), Ok(()));
        manual.advance(WINDOW * 3 / 4);
        assert_eq!(failures.attempt(address(1), &clock), Ok(()));
    }

    #[test]
    fn successful_attempts_do_not_count() {
        let clock = Clock::Manual(ManualClock::new(at(0)));
        let mut failures = Failures::default();
        for _ in 0..3 * MAX_FAILURES {
            assert_eq!(failures.attempt(address(1), &clock), Ok(()));
            failures.succeeded(address(1));
        }
    }

    #[test]
    fn memory_is_bounded() {
        let clock = Clock::Manual(ManualClock::new(at(0)));
        let mut failures = Failures::default();
        for n in 0..MAX_ADDRESSES + 10 {
            assert_eq!(failures.attempt(address(n), &clock), Ok(()));
        }
        assert_eq!(failures.by_address.len(), MAX_ADDRESSES);
    }
}
