//! What is known of one replica: the requests that it has, how it has answered before, and what other gateways have there.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::request::ask::Ask;
use crate::routing::estimate::{Estimate, Experience, Load};
use crate::routing::health::Health;
use crate::routing::length::Length;

/// How long what was seen of other gateways' requests counts: about as long as an answer takes.
pub(super) const OTHERS_STAND: Duration = Duration::from_secs(10);

/// One request at a replica.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) rows: u32,
    pub(super) max_tokens: Option<u64>,
    pub(super) has_logprobs: bool,
    pub(super) began: Instant,
    pub(super) load: Load,
    /// What was seen of the replica before, and what was expected by it.
    pub(super) experience: Experience,
    pub(super) expected: Estimate,
    pub(super) first_token: Option<Instant>,
}

#[derive(Debug, Default)]
pub(super) struct ReplicaState {
    pub(super) health: Health,
    pub(super) experience: Experience,
    pub(super) flights: BTreeMap<u64, Flight>,
    pub(super) last_chosen: u64,
    pub(super) others: Others,
}

/// Requests that other gateways have at a replica, as far as that was seen.
#[derive(Debug, Default)]
pub(super) struct Others {
    pub(super) seen: Option<(u64, Instant)>,
    /// What its agent had reported when that was looked at last.
    pub(super) reported: Option<u64>,
    /// When this gateway's last request there was over.
    pub(super) ours_ended: Option<Instant>,
}

impl Others {
    pub(super) fn at(&self, now: Instant) -> u32 {
        let fresh = |seen: Instant| now.saturating_duration_since(seen) < OTHERS_STAND;
        let count = self
            .seen
            .filter(|(_, seen)| fresh(*seen))
            .map_or(0, |(count, _)| count);
        u32::try_from(count).unwrap_or(u32::MAX)
    }
}

impl ReplicaState {
    pub(super) fn rows(&self) -> u32 {
        self.flights.values().map(|flight| flight.rows).sum()
    }

    pub(super) fn land(&mut self, flight: u64, now: Instant) -> Option<Flight> {
        self.others.ours_ended = Some(now);
        self.flights.remove(&flight)
    }

    /// An agent's report holds our own requests, too; it tells of the others where there were none of ours.
    pub(super) fn saw_report(&mut self, reported: Option<u64>, now: Instant) {
        let is_new = self.others.reported != reported;
        self.others.reported = reported;
        let quiet = |ended: Instant| now.saturating_duration_since(ended) >= 2 * OTHERS_STAND;
        if is_new && self.flights.is_empty() && self.others.ours_ended.is_none_or(quiet) {
            self.others.seen = reported.map(|count| (count, now));
        }
    }

    pub(super) fn load(
        &self,
        ask: &Ask,
        rows: u32,
        seen_bytes: u64,
        typical_answer: u64,
        now: Instant,
    ) -> Load {
        let streams = self
            .rows()
            .saturating_add(self.others.at(now))
            .saturating_add(ask.rows);
        Load {
            backlog_tokens: self.flights.values().map(|flight| flight.unread(now)).sum(),
            unread_tokens: ask.prompt_tokens.saturating_sub(Ask::tokens(seen_bytes)),
            streams,
            ahead: streams.saturating_sub(rows),
            answer_tokens: ask.answer_tokens(typical_answer),
        }
    }
}

impl Flight {
    /// Tokens of one of its choices; `None` where the length says nothing of them.
    pub(super) fn row_tokens(&self, length: Length) -> Option<u64> {
        let rows = u64::from(self.rows.max(1));
        match length {
            Length::Counted(tokens) => Some(tokens / rows),
            // The probabilities are many times the text.
            Length::Guessed(_) if self.has_logprobs => None,
            Length::Guessed(tokens) => Some((tokens / rows).min(self.max_tokens.unwrap_or(u64::MAX))),
        }
    }

    /// Seconds that it should still take.
    pub(super) fn left(&self, now: Instant) -> f64 {
        let elapsed = now.saturating_duration_since(self.began).as_secs_f64();
        (self.expected.finish - elapsed).max(0.0)
    }

    /// Tokens of its prompt that should not be read yet. Whole answers show no first token, so time has to tell.
    fn unread(&self, now: Instant) -> u64 {
        let elapsed = now.saturating_duration_since(self.began).as_secs_f64();
        let left = 1.0 - elapsed / self.expected.first_token;
        match self.first_token {
            None if left > 0.0 => (self.load.unread_tokens as f64 * left) as u64,
            None | Some(_) => 0,
        }
    }
}
