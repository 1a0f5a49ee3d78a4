//! Events of objects, for `kubectl describe` and `kubectl get events`.
//!
//! Publishing never blocks: one task sends events from a bounded queue. The rules are those of
//! client-go: a repeated event increases the count of the existing one, many events that differ only
//! in their message become one, and the events of one object are rate-limited.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use super::{ApiError, Backoff, FIELD_MANAGER};
use rooflet_base::clock::Clock;
use rooflet_base::error::Chain;
use rooflet_base::task::Tasks;

/// Capacity of the queue. Further events are dropped; nothing depends on them.
const QUEUE: usize = 1024;
/// An equal event within this time only increases the count.
const DEDUPLICATION_WINDOW: Duration = Duration::from_secs(10 * 60);
/// Number of different messages of one object and reason within [`DEDUPLICATION_WINDOW`] from which
/// on their events are combined into one.
const MAX_SIMILAR: usize = 10;
/// Start of the message of a combined event, which ends with the newest message.
const COMBINED: &str = "(combined from similar events): ";
/// Number of different events that are remembered for deduplication.
const MAX_REMEMBERED: usize = 4096;
/// Interval at which expired events are removed from the memory.
const EXPIRY_PERIOD: Duration = Duration::from_secs(60);
/// Burst of events per object, and the interval of further events. Warnings and other events have
/// separate limits, so that normal events never suppress warnings.
const BURST: u32 = 25;
const REFILL: Duration = Duration::from_secs(60);
/// Number of retries per event while the server is unreachable.
const MAX_TRIES: usize = 30;
/// Maximum message size of the API server, in bytes.
const MAX_MESSAGE_BYTES: usize = 1024;
/// Namespace for events of cluster-scoped objects.
const CLUSTER_NAMESPACE: &str = "default";

/// Type of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventType {
    Normal,
    Warning,
}

impl EventType {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// Publisher of events for one component. Clones share the queue.
#[derive(Clone)]
pub struct Recorder {
    notes_tx: mpsc::Sender<Note>,
}

impl Recorder {
    /// Creates a recorder. `component` is the source of the events, such as `rooflet-scheduler`;
    /// `instance` is the node on which it runs.
    pub fn spawn(
        tasks: &Tasks,
        client: Client,
        clock: Clock,
        component: &'static str,
        instance: impl Into<String>,
    ) -> Self {
        let (notes_tx, notes_rx) = mpsc::channel(QUEUE);
        let publisher = Publisher {
            client,
            clock,
            component,
            instance: instance.into(),
            memory: Memory::default(),
        };
        let stop = tasks.stop_token();
        tasks.spawn_detached(publisher.run(notes_rx, stop));
        Self { notes_tx }
    }

    /// Publishes an event of `object`. Never blocks and never fails.
    pub fn publish<K: Resource<DynamicType = ()>>(
        &self,
        object: &K,
        kind: EventType,
        reason: &str,
        message: impl Into<String>,
    ) {
        let note = Note {
            regarding: object.object_ref(&()),
            kind,
            reason: reason.to_owned(),
            message: truncated(message.into()),
        };
        info!(
            kind = note.regarding.kind,
            namespace = note.regarding.namespace,
            name = note.regarding.name,
            reason,
            "{}",
            note.message
        );
        if self.notes_tx.try_send(note).is_err() {
            debug!(reason, "event queue is full; event dropped");
        }
    }
}

fn truncated(mut message: String) -> String {
    if message.len() > MAX_MESSAGE_BYTES {
        let end = (0..=MAX_MESSAGE_BYTES - '…'.len_utf8())
            .rev()
            .find(|at| message.is_char_boundary(*at))
            .unwrap_or(0);
        message.truncate(end);
        message.push('…');
    }
    message
}

#[derive(Debug, Clone)]
struct Note {
    regarding: ObjectReference,
    kind: EventType,
    reason: String,
    message: String,
}

/// Identity of similar events.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct SimilarKey {
    /// Identifies the object by UID: a new object with the same name is a different one.
    object: String,
    kind: EventType,
    reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct EventKey {
    similar: SimilarKey,
    /// `None` for the event that combines similar events.
    message: Option<String>,
}

impl Note {
    fn object(&self) -> String {
        let field = |field: &Option<String>| field.clone().unwrap_or_default();
        match &self.regarding.uid {
            Some(uid) => uid.clone(),
            None => format!(
                "{}/{}/{}",
                field(&self.regarding.kind),
                field(&self.regarding.namespace),
                field(&self.regarding.name)
            ),
        }
    }

    fn similar(&self) -> SimilarKey {
        SimilarKey {
            object: self.object(),
            kind: self.kind,
            reason: self.reason.clone(),
        }
    }

    fn namespace(&self) -> &str {
        self.regarding.namespace.as_deref().unwrap_or(CLUSTER_NAMESPACE)
    }
}

/// Decision about an event.
#[derive(Debug, PartialEq, Eq)]
enum Action {
    /// Create a new event.
    Create(EventKey),
    /// Increase the count of this event.
    Increment { key: EventKey, name: String, count: i32 },
    /// Drop the event because of the object's rate limit.
    RateLimited,
}

struct SentEvent {
    name: String,
    count: i32,
    last: Instant,
}

struct RateLimit {
    left: u32,
    since: Instant,
}

/// Messages of similar events, at most [`MAX_SIMILAR`].
struct Messages {
    different: HashSet<String>,
    last: Instant,
}

/// Recently sent events. Pure: the publisher passes in events and times.
#[derive(Default)]
struct Memory {
    events: HashMap<EventKey, SentEvent>,
    messages: HashMap<SimilarKey, Messages>,
    limits: HashMap<(String, EventType), RateLimit>,
    expired_at: Option<Instant>,
}

impl Memory {
    fn decide(&mut self, note: &Note, now: Instant) -> Action {
        self.expire(now);
        let key = (note.object(), note.kind);
        let limit = self.limits.entry(key).or_insert(RateLimit {
            left: BURST,
            since: now,
        });
        let refilled = u32::try_from((now - limit.since).as_secs() / REFILL.as_secs()).unwrap_or(BURST);
        if refilled > 0 {
            limit.left = limit.left.saturating_add(refilled).min(BURST);
            limit.since = now;
        }
        if limit.left == 0 {
            return Action::RateLimited;
        }
        limit.left -= 1;
        let key = self.key(note, now);
        let known = self.events.get(&key);
        match known.filter(|known| now - known.last < DEDUPLICATION_WINDOW) {
            Some(known) => Action::Increment {
                name: known.name.clone(),
                count: known.count.saturating_add(1),
                key,
            },
            None => Action::Create(key),
        }
    }

    /// Returns the key of the event that reports `note`: its own event, or the combined one of many
    /// similar events.
    fn key(&mut self, note: &Note, now: Instant) -> EventKey {
        let similar = note.similar();
        let messages = self.messages.entry(similar.clone()).or_insert_with(|| Messages {
            different: HashSet::new(),
            last: now,
        });
        if now - messages.last >= DEDUPLICATION_WINDOW {
            messages.different.clear();
        }
        messages.last = now;
        let is_known = messages.different.contains(&note.message);
        let is_own = is_known || messages.different.len() + 1 < MAX_SIMILAR;
        if is_own && !is_known {
            messages.different.insert(note.message.clone());
        }
        EventKey {
            similar,
            message: is_own.then(|| note.message.clone()),
        }
    }

    fn sent(&mut self, key: EventKey, name: String, count: i32, now: Instant) {
        self.events.insert(
            key,
            SentEvent {
                name,
                count,
                last: now,
            },
        );
    }

    /// Removes what no longer matters, from time to time: a memory of thousands of events is not
    /// searched for each event.
    fn expire(&mut self, now: Instant) {
        let lengths = [self.events.len(), self.messages.len(), self.limits.len()];
        if lengths.into_iter().any(|length| length >= MAX_REMEMBERED) {
            self.events.clear();
            self.messages.clear();
            self.limits.clear();
        }
        if self.expired_at.is_some_and(|at| now - at < EXPIRY_PERIOD) {
            return;
        }
        self.expired_at = Some(now);
        self.events
            .retain(|_, known| now - known.last < DEDUPLICATION_WINDOW);
        self.messages
            .retain(|_, messages| now - messages.last < DEDUPLICATION_WINDOW);
        let full_after = REFILL * BURST;
        self.limits.retain(|_, limit| now - limit.since < full_after);
    }
}

struct Publisher {
    client: Client,
    clock: Clock,
    component: &'static str,
    instance: String,
    memory: Memory,
}

impl Publisher {
    async fn run(mut self, mut notes_rx: mpsc::Receiver<Note>, stop: CancellationToken) {
        loop {
            let note = tokio::select! {
                () = stop.cancelled() => return,
                note = notes_rx.recv() => note,
            };
            let Some(note) = note else { return };
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.publish(&note) => {}
            }
        }
    }

    async fn publish(&mut self, note: &Note) {
        let mut action = self.memory.decide(note, self.clock.instant());
        let mut backoff = Backoff::default();
        for _ in 0..MAX_TRIES {
            let (key, outcome) = match &action {
                Action::RateLimited => return,
                Action::Create(key) => (key, self.create(note, key).await.map(|name| (name, 1))),
                Action::Increment { key, name, count } => {
                    let incremented = self.increment(note, key, name, *count).await;
                    (key, incremented.map(|()| (name.clone(), *count)))
                }
            };
            match outcome {
                Ok((name, count)) => {
                    self.memory.sent(key.clone(), name, count, self.clock.instant());
                    return;
                }
                // The event has expired or was deleted.
                Err(ApiError::NotFound(_)) if matches!(action, Action::Increment { .. }) => {
                    action = Action::Create(key.clone());
                }
                Err(err) if err.is_transient() => tokio::time::sleep(backoff.next_wait()).await,
                // For example, the namespace is being deleted.
                Err(err) => {
                    debug!(reason = note.reason, error = %Chain(&err), "API server rejected event");
                    return;
                }
            }
        }
        debug!(reason = note.reason, "event not sent: retries exhausted");
    }

    fn api(&self, note: &Note) -> Api<Event> {
        Api::namespaced(self.client.clone(), note.namespace())
    }

    async fn create(&self, note: &Note, key: &EventKey) -> Result<String, ApiError> {
        let event = self.event(note, key, self.clock.now());
        let params = PostParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        let created = self.api(note).create(&params, &event).await?;
        Ok(created.metadata.name.unwrap_or_default())
    }

    async fn increment(&self, note: &Note, key: &EventKey, name: &str, count: i32) -> Result<(), ApiError> {
        let mut patch = json!({ "count": count, "lastTimestamp": Time(self.clock.now()) });
        if key.message.is_none() {
            patch["message"] = json!(message(note, key));
        }
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        self.api(note).patch(name, &params, &Patch::Merge(&patch)).await?;
        Ok(())
    }

    fn event(&self, note: &Note, key: &EventKey, now: Timestamp) -> Event {
        let object_name = note.regarding.name.as_deref().unwrap_or(self.component);
        Event {
            metadata: ObjectMeta {
                namespace: Some(note.namespace().to_owned()),
                name: Some(format!("{object_name}.{:x}", now.as_nanosecond())),
                ..ObjectMeta::default()
            },
            involved_object: note.regarding.clone(),
            type_: Some(note.kind.as_str().to_owned()),
            reason: Some(note.reason.clone()),
            message: Some(message(note, key)),
            count: Some(1),
            first_timestamp: Some(Time(now)),
            last_timestamp: Some(Time(now)),
            event_time: None::<MicroTime>,
            source: Some(EventSource {
                component: Some(self.component.to_owned()),
                host: Some(self.instance.clone()),
            }),
            reporting_component: Some(self.component.to_owned()),
            reporting_instance: Some(self.instance.clone()),
            ..Event::default()
        }
    }
}

/// Returns the message of the event that reports `note`.
fn message(note: &Note, key: &EventKey) -> String {
    match &key.message {
        Some(message) => message.clone(),
        None => truncated(format!("{COMBINED}{}", note.message)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_base::clock::ManualClock;

    fn note(uid: &str, message: &str) -> Note {
        Note {
            regarding: ObjectReference {
                uid: Some(uid.to_owned()),
                ..ObjectReference::default()
            },
            kind: EventType::Normal,
            reason: "Scheduled".to_owned(),
            message: message.to_owned(),
        }
    }

    /// Decides about a note, and records the event as sent. Returns `+` for a new event, otherwise
    /// the count, and `c` for a combined event; `-` if the event is dropped.
    fn decide(memory: &mut Memory, note: &Note, now: Instant) -> String {
        let (key, name, count, shown) = match memory.decide(note, now) {
            Action::RateLimited => return "-".to_owned(),
            Action::Create(key) => (key, "e".to_owned(), 1, "+".to_owned()),
            Action::Increment { key, name, count } => (key, name, count, count.to_string()),
        };
        let is_combined = key.message.is_none();
        memory.sent(key, name, count, now);
        format!("{shown}{}", if is_combined { "c" } else { "" })
    }

    #[test]
    fn repeated_event_increments_the_count() {
        let clock = ManualClock::new(Timestamp::UNIX_EPOCH);
        let now = || Clock::Manual(clock.clone()).instant();
        let mut memory = Memory::default();
        let first = note("u", "m");
        assert_eq!(decide(&mut memory, &first, now()), "+");
        assert_eq!(decide(&mut memory, &first, now()), "2");
        let other = note("u", "other");
        assert_eq!(decide(&mut memory, &other, now()), "+", "another message");
        assert_eq!(decide(&mut memory, &note("v", "m"), now()), "+", "another object");
        clock.advance(DEDUPLICATION_WINDOW - Duration::from_millis(1));
        assert_eq!(decide(&mut memory, &first, now()), "3");
        clock.advance(DEDUPLICATION_WINDOW);
        assert_eq!(decide(&mut memory, &first, now()), "+");
    }

    /// client-go combines the events of one object and reason from the tenth message within ten
    /// minutes on (`defaultAggregateMaxEvents`, `defaultAggregateIntervalInSeconds`).
    #[test]
    fn tenth_message_of_one_reason_starts_a_combined_event() {
        let clock = ManualClock::new(Timestamp::UNIX_EPOCH);
        let now = || Clock::Manual(clock.clone()).instant();
        let mut memory = Memory::default();
        let numbered = |number: usize| note("u", &format!("created replica {number}"));
        let decided: Vec<_> = (1..=12)
            .map(|n| decide(&mut memory, &numbered(n), now()))
            .collect();
        assert_eq!(decided.join(" "), "+ + + + + + + + + +c 2c 3c");
        assert_eq!(decide(&mut memory, &numbered(1), now()), "2", "its event exists");
        let reason = Note {
            reason: "Stopped".to_owned(),
            ..numbered(20)
        };
        assert_eq!(decide(&mut memory, &reason, now()), "+", "another reason");
        clock.advance(DEDUPLICATION_WINDOW);
        assert_eq!(decide(&mut memory, &numbered(30), now()), "+");
    }

    #[test]
    fn combined_event_has_the_newest_message() {
        let (newest, similar) = (note("u", "created replica 12"), note("u", "").similar());
        let key = EventKey {
            similar,
            message: None,
        };
        let expect = "(combined from similar events): created replica 12";
        assert_eq!(message(&newest, &key), expect);
        let long = note("u", &"x".repeat(MAX_MESSAGE_BYTES));
        assert!(message(&long, &key).len() <= MAX_MESSAGE_BYTES);
    }

    #[test]
    fn rate_limit_is_per_object_and_event_type() {
        let clock = ManualClock::new(Timestamp::UNIX_EPOCH);
        let now = || Clock::Manual(clock.clone()).instant();
        let mut memory = Memory::default();
        for _ in 0..BURST {
            assert_ne!(decide(&mut memory, &note("u", "x"), now()), "-");
        }
        assert_eq!(decide(&mut memory, &note("u", "x"), now()), "-");
        assert_eq!(decide(&mut memory, &note("v", "x"), now()), "+");
        let warning = Note {
            kind: EventType::Warning,
            ..note("u", "x")
        };
        assert_eq!(decide(&mut memory, &warning, now()), "+");
        clock.advance(REFILL);
        assert_ne!(decide(&mut memory, &note("u", "y"), now()), "-");
        assert_eq!(decide(&mut memory, &note("u", "z"), now()), "-");
    }

    #[test]
    fn full_memory_is_cleared() {
        let clock = ManualClock::new(Timestamp::UNIX_EPOCH);
        let now = Clock::Manual(clock.clone()).instant();
        let mut memory = Memory::default();
        for number in 0..=MAX_REMEMBERED {
            assert_eq!(decide(&mut memory, &note(&number.to_string(), "m"), now), "+");
        }
        assert!(memory.events.len() <= MAX_REMEMBERED);
    }

    #[test]
    fn truncates_message_at_character_boundary() {
        assert_eq!(truncated("short".to_owned()), "short");
        let cut = truncated("ü".repeat(MAX_MESSAGE_BYTES));
        assert!(
            cut.len() <= MAX_MESSAGE_BYTES && cut.ends_with("ü…"),
            "{}",
            cut.len()
        );
    }
}
