//! Requests that wait for a replica of one model: by priority, and within a priority fair between clients.
//!
//! Deficit round robin (Shreedhar and Varghese, 1995), with a request's expected tokens as its length: a client that
//! sends much, or long prompts, waits behind itself and not before others. When the queue is full, room is made
//! where the most is waiting.

use std::collections::{BTreeMap, HashMap, VecDeque};

/// Tokens a client may have computed before it is the next one's turn.
const QUANTUM: u64 = 2048;

/// One that waits.
#[derive(Debug)]
struct Waiting<T> {
    id: u64,
    cost: u64,
    value: T,
}

#[derive(Debug)]
struct Flow<T> {
    credit: u64,
    waiting: VecDeque<Waiting<T>>,
}

/// Those of one priority.
#[derive(Debug)]
struct Band<T> {
    flows: HashMap<u64, Flow<T>>,
    /// Clients with something waiting; it is the first one's turn.
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

/// See the module.
#[derive(Debug)]
pub(super) struct FairQueue<T> {
    bands: BTreeMap<i32, Band<T>>,
    len: usize,
    max: usize,
    next_id: u64,
}

/// Where one waits, to be taken out again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slip {
    priority: i32,
    client: u64,
    id: u64,
}

/// What became of one that came.
#[derive(Debug, PartialEq)]
pub(super) enum Pushed<T> {
    /// It waits; where the queue was full, another one had to go.
    Waits(Slip, Option<T>),
    /// Nobody has more waiting, or less urgently, than this client.
    Full(T),
}

impl<T> FairQueue<T> {
    /// Takes nobody until it is told how many.
    pub(super) fn new() -> Self {
        Self {
            bands: BTreeMap::new(),
            len: 0,
            max: 0,
            next_id: 0,
        }
    }

    /// How many may wait. Those that wait already stay.
    pub(super) fn set_max(&mut self, max: usize) {
        self.max = max;
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Lower priorities go first. `cost` is in tokens.
    pub(super) fn push(&mut self, priority: i32, client: u64, cost: u64, value: T) -> Pushed<T> {
        let mut gone = None;
        if self.len >= self.max {
            gone = match self.make_room(priority, client) {
                Some(gone) => Some(gone),
                None => return Pushed::Full(value),
            };
        }
        let id = self.next_id;
        self.next_id += 1;
        let band = self.bands.entry(priority).or_default();
        let flow = band.flows.entry(client).or_insert_with(|| {
            band.turns.push_back(client);
            Flow {
                credit: 0,
                waiting: VecDeque::new(),
            }
        });
        flow.waiting.push_back(Waiting { id, cost, value });
        self.len += 1;
        Pushed::Waits(Slip { priority, client, id }, gone)
    }

    /// Takes out the newest of the client with the most waiting in the least urgent priority, if that is less urgent
    /// than `priority`, or as urgent and of a client with more waiting than `client` would have.
    fn make_room(&mut self, priority: i32, client: u64) -> Option<T> {
        let (&last, band) = self.bands.last_key_value()?;
        if last < priority {
            return None;
        }
        let (&longest, flow) = band
            .flows
            .iter()
            .max_by_key(|(client, flow)| (flow.waiting.len(), **client))?;
        let own = band.flows.get(&client).map_or(0, |flow| flow.waiting.len());
        if last == priority && flow.waiting.len() <= own + 1 {
            return None;
        }
        let id = flow.waiting.back()?.id;
        self.remove(Slip {
            priority: last,
            client: longest,
            id,
        })
    }

    /// The priority of the one whose turn it is.
    pub(super) fn most_urgent(&self) -> Option<i32> {
        self.bands.keys().next().copied()
    }

    /// How many of those that wait would go before one that came now.
    pub(super) fn before(&self, priority: i32, client: u64, cost: u64) -> usize {
        let of = |band: &Band<T>| band.flows.values().map(|flow| flow.waiting.len()).sum::<usize>();
        let more_urgent = self.bands.range(..priority).map(|(_, band)| of(band)).sum();
        let Some(band) = self.bands.get(&priority) else {
            return more_urgent;
        };
        // A client whose credit pays for its first one gets no quantum with its next turn.
        let head = |flow: &Flow<T>| flow.waiting.front().map_or(cost, |head| head.cost);
        let has_turn_left = |flow: &Flow<T>| flow.credit >= head(flow);
        let own = band.flows.get(&client);
        let earlier: u64 = own.map_or(0, |flow| flow.waiting.iter().map(|one| one.cost).sum());
        let unpaid = (earlier + cost).saturating_sub(own.map_or(0, |flow| flow.credit));
        let turns = unpaid.div_ceil(QUANTUM) + u64::from(own.map_or(cost == 0, has_turn_left));
        let place = band.turns.iter().position(|one| *one == client);
        let goes = |(index, other): (usize, &u64)| {
            let Some(flow) = band.flows.get(other) else {
                return 0;
            };
            if *other == client {
                return flow.waiting.len();
            }
            let is_after = place.is_some_and(|place| index > place);
            let turns = turns.saturating_sub(u64::from(is_after));
            if turns == 0 {
                return 0;
            }
            let mut left = flow.credit + (turns - u64::from(has_turn_left(flow))) * QUANTUM;
            let paid = flow.waiting.iter().take_while(|one| {
                let is_paid = one.cost <= left;
                left = left.saturating_sub(one.cost);
                is_paid
            });
            paid.count()
        };
        more_urgent + band.turns.iter().enumerate().map(goes).sum::<usize>()
    }

    /// The one whose turn it is.
    pub(super) fn pop(&mut self) -> Option<(Slip, T)> {
        let (&priority, band) = self.bands.first_key_value()?;
        let fewest = |flow: &Flow<T>| {
            let cost = flow.waiting.front().map_or(0, |head| head.cost);
            cost.saturating_sub(flow.credit).div_ceil(QUANTUM)
        };
        // Rounds in which nobody has credit enough are skipped over.
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
            let cost = flow.waiting.front()?.cost;
            if flow.credit < cost {
                flow.credit += QUANTUM;
                if flow.credit < cost {
                    band.turns.rotate_left(1);
                    continue;
                }
            }
            flow.credit -= cost;
            let id = flow.waiting.front()?.id;
            // Its turn is over once its credit is used up.
            let stays = flow.waiting.get(1).is_some_and(|next| next.cost <= flow.credit);
            if !stays {
                band.turns.rotate_left(1);
            }
            let slip = Slip { priority, client, id };
            return self.remove(slip).map(|value| (slip, value));
        }
    }

    /// Takes one out that need not wait any longer. `None` if it is not there any more.
    pub(super) fn remove(&mut self, slip: Slip) -> Option<T> {
        let band = self.bands.get_mut(&slip.priority)?;
        let flow = band.flows.get_mut(&slip.client)?;
        let index = flow.waiting.iter().position(|waiting| waiting.id == slip.id)?;
        let waiting = flow.waiting.remove(index)?;
        self.len -= 1;
        if flow.waiting.is_empty() {
            // Who has nothing to send saves up nothing.
            band.flows.remove(&slip.client);
            band.turns.retain(|client| *client != slip.client);
            if band.flows.is_empty() {
                self.bands.remove(&slip.priority);
            }
        }
        Some(waiting.value)
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
    fn the_urgent_go_first_and_one_client_goes_in_order() {
        let mut queue = queue(9, &[(0, 1, 10), (5, 1, 10), (-1, 1, 10), (0, 1, 10)]);
        let order: Vec<_> = all(&mut queue).into_iter().map(|(_, number)| number).collect();
        assert_eq!(order, [2, 0, 3, 1]);
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn a_client_with_many_waits_behind_itself() {
        let mut entries = vec![(0, 1, QUANTUM); 10];
        entries.push((0, 2, QUANTUM));
        let mut queue = queue(99, &entries);
        let order: Vec<_> = all(&mut queue).into_iter().map(|(client, _)| client).collect();
        assert_eq!(order.iter().position(|client| *client == 2), Some(1), "{order:?}");
    }

    #[test]
    fn turns_are_counted_in_tokens_and_not_in_requests() {
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
    fn a_full_queue_makes_room_where_the_most_waits() {
        let mut full = queue(3, &[(0, 1, 1), (0, 1, 1), (0, 1, 1)]);
        assert_eq!(full.push(0, 1, 1, (1, 9)), Pushed::Full((1, 9)));
        assert!(matches!(
            full.push(0, 2, 1, (2, 3)),
            Pushed::Waits(_, Some((1, 2)))
        ));
        assert_eq!(full.push(0, 2, 1, (2, 9)), Pushed::Full((2, 9)));
        assert_eq!(full.push(1, 3, 1, (3, 9)), Pushed::Full((3, 9)));
        assert!(matches!(full.push(-1, 1, 1, (1, 4)), Pushed::Waits(_, Some(_))));
        assert_eq!(full.len(), 3);
    }

    #[test]
    fn who_leaves_is_gone() {
        let mut queue = sized(9);
        let Pushed::Waits(slip, None) = queue.push(0, 1, 1, "a") else {
            panic!("there is room");
        };
        assert_eq!(queue.remove(slip), Some("a"));
        assert_eq!(queue.remove(slip), None);
        assert_eq!(queue.len(), 0);
        assert!(queue.pop().is_none());
    }

    proptest! {
        #[test]
        fn all_that_came_go_once(entries in proptest::collection::vec((-1i32..2, 0u64..4, 0u64..100_000), 0..60), max in 1usize..60) {
            let mut queue = sized(max);
            let mut refused = 0;
            for (number, (priority, client, cost)) in entries.iter().enumerate() {
                match queue.push(*priority, *client, *cost, number) {
                    Pushed::Waits(_, gone) => refused += usize::from(gone.is_some()),
                    Pushed::Full(_) => refused += 1,
                }
                prop_assert!(queue.len() <= max);
            }
            let mut left = all(&mut queue);
            prop_assert_eq!(left.len() + refused, entries.len());
            let mut last = i32::MIN;
            for number in &left {
                prop_assert!(entries[*number].0 >= last);
                last = entries[*number].0;
            }
            left.sort_unstable();
            left.dedup();
            prop_assert_eq!(left.len() + refused, entries.len());
        }

        #[test]
        fn those_before_one_are_told_as_they_will_go(
            entries in proptest::collection::vec((-1i32..2, 0u64..4, 0u64..9_000), 0..40), gone in 0usize..20,
            priority in -1i32..2, client in 0u64..5, cost in 0u64..9_000,
        ) {
            let mut queue = queue(99, &entries);
            for _ in 0..gone {
                queue.pop();
            }
            let told = queue.before(priority, client, cost);
            queue.push(priority, client, cost, (client, 99));
            let place = all(&mut queue).into_iter().position(|(_, number)| number == 99);
            prop_assert_eq!(Some(told), place);
        }

        #[test]
        fn no_client_gets_far_ahead_of_another(costs in proptest::collection::vec((0u64..3, 1u64..5000), 30..90)) {
            // While all of them have something waiting, what they got differs by no more than a quantum and their
            // largest request (the theorem of the paper, with one more request for where the count stops).
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
                let (_, (client, cost)) = queue.pop().expect("some wait");
                got[client as usize] += cost;
                left[client as usize] -= 1;
                let (most, least) = (got.iter().max().expect("three"), got.iter().min().expect("three"));
                prop_assert!(most - least <= 2 * QUANTUM + 2 * largest, "{got:?}");
            }
        }
    }
}
