//! Limit of wrong bootstrap tokens per client address, against guessing.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Wrong tokens after which a client must wait.
const WRONG_MAX: u32 = 10;
/// Time in which wrong tokens are counted, from the first one.
const WINDOW: Duration = Duration::from_secs(300);
/// Addresses whose wrong tokens are counted at a time.
const ADDRESSES_MAX: usize = 4096;
/// Bits of an IPv6 address that identify a network. One machine has many addresses in it.
const IPV6_NETWORK: u128 = u128::MAX << 64;

/// Wrong bootstrap tokens of all clients.
#[derive(Debug, Default)]
pub struct Guesses {
    by_address: Mutex<BTreeMap<IpAddr, Wrong>>,
}

/// Wrong tokens of one address.
#[derive(Debug, Clone, Copy)]
struct Wrong {
    count: u32,
    first: Instant,
}

impl Guesses {
    /// Returns the time that a client must wait before its next token, or `None` if it may send one.
    pub fn wait(&self, client: IpAddr, now: Instant) -> Option<Duration> {
        let all = self.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        let wrong = all
            .get(&network(client))
            .filter(|wrong| wrong.count >= WRONG_MAX)?;
        WINDOW
            .checked_sub(now.saturating_duration_since(wrong.first))
            .filter(|wait| !wait.is_zero())
    }

    /// Counts a wrong token. Returns true if the client must wait from now on.
    pub fn count(&self, client: IpAddr, now: Instant) -> bool {
        let mut all = self.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= ADDRESSES_MAX {
            all.retain(|_, wrong| now.saturating_duration_since(wrong.first) < WINDOW);
        }
        if all.len() >= ADDRESSES_MAX
            && let Some(oldest) = all
                .iter()
                .min_by_key(|(_, wrong)| wrong.first)
                .map(|(address, _)| *address)
        {
            all.remove(&oldest);
        }
        let fresh = Wrong { count: 0, first: now };
        let wrong = all.entry(network(client)).or_insert(fresh);
        if now.saturating_duration_since(wrong.first) >= WINDOW {
            *wrong = fresh;
        }
        wrong.count += 1;
        wrong.count == WRONG_MAX
    }
}

/// Returns the address, or the first address of an IPv6 client's network.
pub(super) fn network(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & IPV6_NETWORK)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_base::clock::Clock;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn client_with_too_many_wrong_tokens_waits_until_the_window_ends() {
        let guesses = Guesses::default();
        let start = Clock::System.instant();
        let at = |seconds| start + Duration::from_secs(seconds);
        let client = ip("192.0.2.7");
        for second in 0..9 {
            assert!(!guesses.count(client, at(second)));
            assert_eq!(guesses.wait(client, at(second)), None);
        }
        assert!(guesses.count(client, at(9)));
        assert_eq!(guesses.wait(client, at(10)), Some(Duration::from_secs(290)));
        assert_eq!(guesses.wait(ip("192.0.2.8"), at(10)), None);
        assert_eq!(guesses.wait(client, at(300)), None);
        assert!(!guesses.count(client, at(300)), "a new window starts");
        assert_eq!(guesses.wait(client, at(301)), None);
    }

    #[test]
    fn addresses_of_one_ipv6_network_count_together() {
        let guesses = Guesses::default();
        let now = Clock::System.instant();
        for host in 0..10 {
            guesses.count(ip(&format!("2001:db8::{host}")), now);
        }
        assert!(guesses.wait(ip("2001:db8::ffff"), now).is_some());
        assert_eq!(guesses.wait(ip("2001:db8:0:1::1"), now), None);
        for _ in 0..10 {
            guesses.count(ip("::ffff:192.0.2.7"), now);
        }
        assert!(guesses.wait(ip("192.0.2.7"), now).is_some());
    }

    #[test]
    fn memory_is_bounded() {
        let guesses = Guesses::default();
        let now = Clock::System.instant();
        for number in 0..2 * u32::try_from(ADDRESSES_MAX).expect("small") {
            guesses.count(
                IpAddr::from(number.to_be_bytes()),
                now + Duration::from_millis(number.into()),
            );
        }
        assert_eq!(
            guesses.by_address.lock().expect("not poisoned").len(),
            ADDRESSES_MAX
        );
    }
}
