//! Request queue of one model: ordered by priority, and fair between clients of the same priority.
//!
//! Clients of one priority share by deficit round robin (Shreedhar and Varghese, 1995). The length
//! of a request is its expected number of tokens, so a client's backlog delays only that client. If
//! the queue is full, a new request evicts a request of the client with the longest backlog.

use std::collections::{BTreeMap, HashMap, VecDeque};

/// Tokens that a client may use before the next client's turn.
const QUANTUM: u64 = 2048;

#[derive(Debug)]
struct Entry<T> {
    id: u64,
    cost: u64,
    value: T,
}

#[derive(Debug)]
struct Flow<T> {
    credit: u64,
    entries: VecDeque<Entry<T>>,
}

/// Queued requests of one priority.
#[derive(Debug)]
struct Band<T> {
    flows: HashMap<u64, Flow<T>>,
    /// Clients with queued requests, in order of their turns.
    turns: VecDeque<u64>,
}

impl<T> Default for Band<T> {
    fn default() -> Self {
        Self {
            flows: HashMap::new(),
            turns: VecDeque::new(),
        }
    }
}

/// Priority queue with fair sharing between clients; see the module documentation.
#[derive(Debug)]
pub(super) struct FairQueue<T> {
    bands: BTreeMap<i32, Band<T>>,
    len: usize,
    max: usize,
    next_id: u64,
}

/// Handle of a queued request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct QueueTicket {
    priority: i32,
    client: u64,
    id: u64,
}

/// Result of [`FairQueue::push`].
#[derive(Debug, PartialEq)]
pub(super) enum PushResult<T> {
    /// The request is queued. If the queue was full, the second field is the evicted request.
    Queued(QueueTicket, Option<T>),
    /// The queue is full, and no request of lower priority or of a longer backlog can be evicted.
    Full(T),
}

impl<T> FairQueue<T> {
    /// Creates a queue with a limit of 0 requests; see [`Self::set_max`].
    pub(super) fn new() -> Self {
        Self {
            bands: BTreeMap::new(),
            len: 0,
            max: 0,
            next_id: 0,
        }
    }

    /// Sets the maximum number of queued requests. Requests beyond a lower limit stay queued.
    pub(super) fn set_max(&mut self, max: usize) {
        self.max = max;
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds a request. Lower `priority` values are served first; `cost` is in tokens.
    pub(super) fn push(&mut self, priority: i32, client: u64, cost: u64, value: T) -> PushResult<T> {
        let mut evicted = None;
        if self.len >= self.max {
            evicted = match self.evict_for(priority, client) {
                Some(evicted) => Some(evicted),
                None => return PushResult::Full(value),
            };
        }
        let id = self.next_id;
        self.next_id += 1;
        let band = self.bands.entry(priority).or_default();
        let flow = band.flows.entry(client).or_insert_with(|| {
            band.turns.push_back(client);
            Flow {
                credit: 0,
                entries: VecDeque::new(),
            }
        });
        flow.entries.push_back(Entry { id, cost, value });
        self.len += 1;
        PushResult::Queued(QueueTicket { priority, client, id }, evicted)
    }

    /// Evicts a request to admit one of `priority` from `client`, and returns the evicted request.
    ///
    /// The victim is the newest request of the client with the longest backlog in the lowest
    /// priority. A request of the same priority is evicted only if the victim's client has a longer
    /// backlog than `client` would have.
    fn evict_for(&mut self, priority: i32, client: u64) -> Option<T> {
        let (&last, band) = self.bands.last_key_value()?;
        if last < priority {
            return None;
        }
        let (&longest, flow) = band
            .flows
            .iter()
            .max_by_key(|(client, flow)| (flow.entries.len(), **client))?;
        let own = band.flows.get(&client).map_or(0, |flow| flow.entries.len());
        if last == priority && flow.entries.len() <= own + 1 {
            return None;
        }
        let id = flow.entries.back()?.id;
        self.remove(QueueTicket {
            priority: last,
            client: longest,
            id,
        })
    }

    /// Returns the priority of the next request.
    pub(super) fn most_urgent(&self) -> Option<i32> {
        self.bands.keys().next().copied()
    }

    /// Returns how many queued requests would be served before a new request.
    pub(super) fn count_ahead(&self, priority: i32, client: u64, cost: u64) -> usize {
        let of = |band: &Band<T>| band.flows.values().map(|flow| flow.entries.len()).sum::<usize>();
        let more_urgent = self.bands.range(..priority).map(|(_, band)| of(band)).sum();
        let Some(band) = self.bands.get(&priority) else {
            return more_urgent;
        };
        // A client whose credit covers its first request gets no quantum on its next turn.
        let head = |flow: &Flow<T>| flow.entries.front().map_or(cost, |head| head.cost);
        let has_turn_left = |flow: &Flow<T>| flow.credit >= head(flow);
        let own = band.flows.get(&client);
        let earlier: u64 = own.map_or(0, |flow| flow.entries.iter().map(|one| one.cost).sum());
        let unpaid = (earlier + cost).saturating_sub(own.map_or(0, |flow| flow.credit));
        let turns = unpaid.div_ceil(QUANTUM) + u64::from(own.map_or(cost == 0, has_turn_left));
        let position = band.turns.iter().position(|one| *one == client);
        let served_before = |(index, other): (usize, &u64)| {
            let Some(flow) = band.flows.get(other) else {
                return 0;
            };
            if *other == client {
                return flow.entries.len();
            }
            let is_after = position.is_some_and(|position| index > position);
            let turns = turns.saturating_sub(u64::from(is_after));
            if turns == 0 {
                return 0;
            }
            let mut left = flow.credit + (turns - u64::from(has_turn_left(flow))) * QUANTUM;
            let paid = flow.entries.iter().take_while(|one| {
                let is_paid = one.cost <= left;
                left = left.saturating_sub(one.cost);
                is_paid
            });
            paid.count()
        };
        more_urgent + band.turns.iter().enumerate().map(served_before).sum::<usize>()
    }

    /// Removes and returns the next request.
    pub(super) fn pop(&mut self) -> Option<(QueueTicket, T)> {
        let (&priority, band) = self.bands.first_key_value()?;
        let fewest = |flow: &Flow<T>| {
            let cost = flow.entries.front().map_or(0, |head| head.cost);
            cost.saturating_sub(flow.credit).div_ceil(QUANTUM)
        };
        // Skip the rounds in which no client has enough credit.
        let rounds = band.flows.values().map(fewest).min()?;
        let band = self.bands.get_mut(&priority)?;
        if rounds > 1 {
            for flow in band.flows.values_mut() {
                flow.credit += (rounds - 1) * QUANTUM;
            }
        }
        loop {
            let client = *band.turns.front()?;
            let flow = band.flows.get_mut(&client)?;
            let cost = flow.entries.front()?.cost;
            if flow.credit < cost {
                flow.credit += QUANTUM;
                if flow.credit < cost {
                    band.turns.rotate_left(1);
                    continue;
                }
            }
            flow.credit -= cost;
            let id = flow.entries.front()?.id;
            // The turn of a client ends when its credit does not cover its next request.
            let stays = flow.entries.get(1).is_some_and(|next| next.cost <= flow.credit);
            if !stays {
                band.turns.rotate_left(1);
            }
            let ticket = QueueTicket { priority, client, id };
            return self.remove(ticket).map(|value| (ticket, value));
        }
    }

    /// Removes the request of `ticket`. Returns `None` if the queue no longer contains the request.
    pub(super) fn remove(&mut self, ticket: QueueTicket) -> Option<T> {
        let band = self.bands.get_mut(&ticket.priority)?;
        let flow = band.flows.get_mut(&ticket.client)?;
        let index = flow.entries.iter().position(|entries| entries.id == ticket.id)?;
        let entries = flow.entries.remove(index)?;
        self.len -= 1;
        if flow.entries.is_empty() {
            // A client without queued requests keeps no credit.
            band.flows.remove(&ticket.client);
            band.turns.retain(|client| *client != ticket.client);
            if band.flows.is_empty() {
                self.bands.remove(&ticket.priority);
            }
        }
        Some(entries.value)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sized<T>(max: usize) -> FairQueue<T> {
        let mut queue = FairQueue::new();
        queue.set_max(max);
        queue
    }

    fn queue(max: usize, entries: &[(i32, u64, u64)]) -> FairQueue<(u64, usize)> {
        let mut queue = sized(max);
        for (number, (priority, client, cost)) in entries.iter().enumerate() {
            queue.push(*priority, *client, *cost, (*client, number));
        }
        queue
    }

    fn all<T>(queue: &mut FairQueue<T>) -> Vec<T> {
        std::iter::from_fn(|| queue.pop())
            .map(|(_, value)| value)
            .collect()
    }

    #[test]
    fn pops_by_priority_and_in_order_of_arrival() {
        let mut queue = queue(9, &[(0, 1, 10), (5, 1, 10), (-1, 1, 10), (0, 1, 10)]);
        let order: Vec<_> = all(&mut queue).into_iter().map(|(_, number)| number).collect();
        assert_eq!(order, [2, 0, 3, 1]);
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn backlog_of_one_client_does_not_delay_another() {
        let mut entries = vec![(0, 1, QUANTUM); 10];
        entries.push((0, 2, QUANTUM));
        let mut queue = queue(99, &entries);
        let order: Vec<_> = all(&mut queue).into_iter().map(|(client, _)| client).collect();
        assert_eq!(order.iter().position(|client| *client == 2), Some(1), "{order:?}");
    }

    #[test]
    fn shares_by_tokens_not_by_requests() {
        // Client 1 sends prompts ten times as long as client 2.
        let entries: Vec<_> = (0..40)
            .flat_map(|_| [(0, 1, 10 * QUANTUM), (0, 2, QUANTUM)])
            .collect();
        let mut queue = queue(99, &entries);
        let first = all(&mut queue).into_iter().take(33);
        let of_1 = first.filter(|(client, _)| *client == 1).count();
        assert!((2..=4).contains(&of_1), "{of_1} of 33");
    }

    #[test]
    fn full_queue_evicts_from_longest_backlog() {
        let mut full = queue(3, &[(0, 1, 1), (0, 1, 1), (0, 1, 1)]);
        assert_eq!(full.push(0, 1, 1, (1, 9)), PushResult::Full((1, 9)));
        assert!(matches!(
            full.push(0, 2, 1, (2, 3)),
            PushResult::Queued(_, Some((1, 2)))
        ));
        assert_eq!(full.push(0, 2, 1, (2, 9)), PushResult::Full((2, 9)));
        assert_eq!(full.push(1, 3, 1, (3, 9)), PushResult::Full((3, 9)));
        assert!(matches!(
            full.push(-1, 1, 1, (1, 4)),
            PushResult::Queued(_, Some(_))
        ));
        assert_eq!(full.len(), 3);
    }

    #[test]
    fn removes_request_by_ticket_once() {
        let mut queue = sized(9);
        let PushResult::Queued(ticket, None) = queue.push(0, 1, 1, "a") else {
            panic!("the queue is not full");
        };
        assert_eq!(queue.remove(ticket), Some("a"));
        assert_eq!(queue.remove(ticket), None);
        assert_eq!(queue.len(), 0);
        assert!(queue.pop().is_none());
    }

    proptest! {
        #[test]
        fn pops_every_request_once(entries in proptest::collection::vec((-1i32..2, 0u64..4, 0u64..100_000), 0..60), max in 1usize..60) {
            let mut queue = sized(max);
            let mut rejected = 0;
            for (number, (priority, client, cost)) in entries.iter().enumerate() {
                match queue.push(*priority, *client, *cost, number) {
                    PushResult::Queued(_, evicted) => rejected += usize::from(evicted.is_some()),
                    PushResult::Full(_) => rejected += 1,
                }
                prop_assert!(queue.len() <= max);
            }
            let mut left = all(&mut queue);
            prop_assert_eq!(left.len() + rejected, entries.len());
            let mut last = i32::MIN;
            for number in &left {
                prop_assert!(entries[*number].0 >= last);
                last = entries[*number].0;
            }
            left.sort_unstable();
            left.dedup();
            prop_assert_eq!(left.len() + rejected, entries.len());
        }

        #[test]
        fn count_ahead_matches_pop_order(
            entries in proptest::collection::vec((-1i32..2, 0u64..4, 0u64..9_000), 0..40), evicted in 0usize..20,
            priority in -1i32..2, client in 0u64..5, cost in 0u64..9_000,
        ) {
            let mut queue = queue(99, &entries);
            for _ in 0..evicted {
                queue.pop();
            }
            let expected = queue.count_ahead(priority, client, cost);
            queue.push(priority, client, cost, (client, 99));
            let position = all(&mut queue).into_iter().position(|(_, number)| number == 99);
            prop_assert_eq!(Some(expected), position);
        }

        #[test]
        fn backlogged_clients_get_equal_shares(costs in proptest::collection::vec((0u64..3, 1u64..5000), 30..90)) {
            // While every client has a backlog, shares differ by at most a quantum and the largest
            // request (theorem of the paper, plus one request because the loop stops mid-round).
            let mut queue = sized(1000);
            let mut left = [0usize; 3];
            for (client, cost) in &costs {
                queue.push(0, *client, *cost, (*client, *cost));
                left[*client as usize] += 1;
            }
            let largest = costs.iter().map(|(_, cost)| *cost).max().unwrap_or_default();
            let mut got = [0u64; 3];
            let all_wait = |left: &[usize; 3]| left.iter().all(|left| *left > 0);
            while all_wait(&left) {
                let (_, (client, cost)) = queue.pop().expect("all clients have a backlog");
                got[client as usize] += cost;
                left[client as usize] -= 1;
                let (most, least) = (got.iter().max().expect("three"), got.iter().min().expect("three"));
                prop_assert!(most - least <= 2 * QUANTUM + 2 * largest, "{got:?}");
            }
        }
    }
}
