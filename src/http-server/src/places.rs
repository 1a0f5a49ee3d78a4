//! Places of unfinished handshakes.
//!
//! If all places are taken, a further client displaces a handshake instead of waiting: otherwise, an attacker
//! blocks a port with a few connections that send nothing. The oldest handshake of the network with the most
//! unfinished handshakes loses its place, because handshakes of other clients end after milliseconds.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use tokio_util::sync::CancellationToken;

use rooflet_base::mutex::lock;

use crate::guesses::network;

/// Places of a server. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Places {
    max: usize,
    unfinished: Arc<Mutex<Unfinished>>,
}

/// Unfinished handshakes by network; in each network the oldest first.
#[derive(Debug, Default)]
struct Unfinished {
    next: u64,
    count: usize,
    networks: BTreeMap<IpAddr, BTreeMap<u64, CancellationToken>>,
}

impl Unfinished {
    fn add(&mut self, network: IpAddr, displaced: CancellationToken) -> u64 {
        let id = self.next;
        self.next += 1;
        self.count += 1;
        self.networks.entry(network).or_default().insert(id, displaced);
        id
    }

    fn remove(&mut self, network: IpAddr, id: u64) -> Option<CancellationToken> {
        let handshakes = self.networks.get_mut(&network)?;
        let removed = handshakes.remove(&id)?;
        self.count -= 1;
        if handshakes.is_empty() {
            self.networks.remove(&network);
        }
        Some(removed)
    }

    /// Returns network and id of the handshake that loses its place.
    fn victim(&self) -> Option<(IpAddr, u64)> {
        let oldest = |handshakes: &BTreeMap<u64, _>| handshakes.first_key_value().map(|(id, _)| *id);
        let (network, handshakes) = self
            .networks
            .iter()
            .max_by_key(|(_, handshakes)| (handshakes.len(), Reverse(oldest(handshakes))))?;
        Some((*network, oldest(handshakes)?))
    }
}

impl Places {
    pub(super) fn new(max: usize) -> Self {
        let unfinished = Arc::default();
        Self { max, unfinished }
    }

    /// Gives a place to a handshake of this client, until the place is dropped.
    pub(super) fn take(&self, client: IpAddr) -> Place {
        let mut unfinished = lock(&self.unfinished);
        let (network, displaced) = (network(client), CancellationToken::new());
        let id = unfinished.add(network, displaced.clone());
        if unfinished.count > self.max
            && let Some((network, id)) = unfinished.victim()
            && let Some(victim) = unfinished.remove(network, id)
        {
            victim.cancel();
        }
        Place {
            network,
            id,
            displaced,
            unfinished: Arc::clone(&self.unfinished),
        }
    }
}

/// Place of one handshake.
#[derive(Debug)]
pub(super) struct Place {
    network: IpAddr,
    id: u64,
    displaced: CancellationToken,
    unfinished: Arc<Mutex<Unfinished>>,
}

impl Place {
    /// Returns when another handshake has displaced this one.
    pub(super) async fn displaced(&self) {
        self.displaced.cancelled().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.unfinished).remove(self.network, self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_with_the_most_handshakes_loses_its_oldest_one() {
        let places = Places::new(4);
        let take = |client: &str| places.take(client.parse().expect("an address"));
        let other = take("192.0.2.7");
        let attacker = ["2001:db8::1", "2001:db8::2", "2001:db8::3"].map(take);
        let displaced = || attacker.iter().map(|place| place.displaced.is_cancelled());
        assert!(!displaced().any(|displaced| displaced));
        let fourth = take("2001:db8::4");
        assert_eq!(displaced().collect::<Vec<_>>(), [true, false, false]);
        let second = take("198.51.100.7");
        assert_eq!(displaced().collect::<Vec<_>>(), [true, true, false]);
        for place in [&other, &fourth, &second] {
            assert!(!place.displaced.is_cancelled());
        }
        // Finished handshakes free their places.
        drop(other);
        let third = take("203.0.113.7");
        assert_eq!(displaced().collect::<Vec<_>>(), [true, true, false]);
        assert!(!third.displaced.is_cancelled());
        drop((attacker, fourth, second, third));
        let unfinished = lock(&places.unfinished);
        assert!(
            unfinished.networks.is_empty() && unfinished.count == 0,
            "{unfinished:?}"
        );
    }
}
