//! Residency of the model: the time after which an idle engine frees the weights and the prefix cache. The next
//! request loads the model again. Only workers with a keep-alive time do so.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::sync::watch;

use rooflet_base::clock::Clock;
use rooflet_base::latest::LatestSeen as _;
use rooflet_base::mutex::lock;
use rooflet_inference_api::ollama::keep_alive::KeepAlive;

/// Maximum time to load the model again. After it, the engine counts as stalled.
pub(super) const MAX_LOADING: Duration = Duration::from_secs(30 * 60);

#[derive(Debug)]
pub(crate) struct Residency {
    clock: Clock,
    /// Keep-alive time of requests that set none. `None`: the model stays loaded.
    default: Option<Duration>,
    state: Mutex<State>,
    /// Time at which the engine should wake up to free the model.
    expiry_tx: watch::Sender<Option<Instant>>,
}

#[derive(Debug)]
struct State {
    /// Value of the last request that set one. Applies until the model is freed.
    keep_alive: KeepAlive,
    is_loaded: bool,
    /// Time of the last request's end; `None` while the engine has work.
    idle_since: Option<Instant>,
}

impl State {
    /// Returns the end of the residency. `None` if the engine has work or keeps the model.
    fn expiry(&self) -> Option<Instant> {
        match self.keep_alive {
            KeepAlive::For(time) if self.is_loaded => self.idle_since?.checked_add(time),
            KeepAlive::For(_) | KeepAlive::Forever => None,
        }
    }
}

impl Residency {
    pub(crate) fn new(clock: Clock, default: Option<Duration>) -> Self {
        Self {
            clock,
            default,
            state: Mutex::new(State {
                keep_alive: default.map_or(KeepAlive::Forever, KeepAlive::For),
                is_loaded: true,
                idle_since: None,
            }),
            expiry_tx: watch::Sender::new(None),
        }
    }

    /// Returns true if requests determine how long the model stays loaded.
    pub(crate) fn is_limited(&self) -> bool {
        self.default.is_some()
    }

    pub(crate) fn is_loaded(&self) -> bool {
        lock(&self.state).is_loaded
    }

    /// Sets the keep-alive time, after the engine has received the request. Has no effect if
    /// [`is_limited`](Self::is_limited) is false.
    pub(crate) fn set_keep_alive(&self, keep_alive: KeepAlive) {
        if self.is_limited() {
            self.update(|state| state.keep_alive = keep_alive);
        }
    }

    /// Ends the residency of a loaded model after the current requests. If the model is not loaded, has no effect on
    /// the next requests.
    pub(crate) fn unload(&self) {
        if self.is_limited() {
            self.update(|state| {
                if state.is_loaded {
                    state.keep_alive = KeepAlive::NONE;
                }
            });
        }
    }

    /// Records that the engine has work, or none.
    pub(super) fn set_idle(&self, is_idle: bool) {
        let now = self.clock.instant();
        self.update(|state| {
            state.idle_since = is_idle.then(|| state.idle_since.unwrap_or(now));
        });
    }

    pub(super) fn set_loaded(&self, is_loaded: bool) {
        self.update(|state| {
            state.is_loaded = is_loaded;
            if !is_loaded {
                state.keep_alive = self.default.map_or(KeepAlive::Forever, KeepAlive::For);
            }
        });
    }

    /// Returns true if the residency of an idle engine's model has ended.
    pub(super) fn is_over(&self) -> bool {
        let expiry = lock(&self.state).expiry();
        expiry.is_some_and(|expiry| expiry <= self.clock.instant())
    }

    /// Returns the end of the residency if the engine gets no further work. `None`: the model stays loaded.
    pub(crate) fn expires_at(&self) -> Option<Timestamp> {
        let state = lock(&self.state);
        let KeepAlive::For(time) = state.keep_alive else {
            return None;
        };
        let idle = state.idle_since.map(|since| self.clock.instant() - since);
        self.clock
            .now()
            .checked_add(time.saturating_sub(idle.unwrap_or_default()))
            .ok()
    }

    /// Waits until the engine should free the model.
    pub(crate) async fn expired(&self) {
        let mut expiry_rx = self.expiry_tx.subscribe();
        loop {
            let left = match expiry_rx.see_latest() {
                Some(expiry) => expiry.saturating_duration_since(self.clock.instant()),
                None => Duration::MAX,
            };
            tokio::select! {
                () = tokio::time::sleep(left) => break,
                // The sender exists as long as `self`.
                _ = expiry_rx.changed() => {}
            }
        }
        // The engine sets the next expiry.
        self.expiry_tx.send_replace(None);
    }

    fn update(&self, change: impl FnOnce(&mut State)) {
        let expiry = {
            let mut state = lock(&self.state);
            change(&mut state);
            state.expiry()
        };
        if self.is_limited() {
            self.expiry_tx.send_if_modified(|known| {
                let is_new = *known != expiry;
                *known = expiry;
                is_new
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_base::clock::ManualClock;

    const MINUTE: Duration = Duration::from_secs(60);

    fn residency(default: Option<Duration>) -> (ManualClock, Residency) {
        let manual = ManualClock::new(Timestamp::UNIX_EPOCH);
        let residency = Residency::new(Clock::Manual(manual.clone()), default);
        (manual, residency)
    }

    #[test]
    fn residency_ends_after_the_last_request() {
        let (clock, residency) = residency(Some(5 * MINUTE));
        clock.advance(10 * MINUTE);
        assert!(!residency.is_over(), "the engine has work");
        residency.set_idle(true);
        clock.advance(4 * MINUTE);
        residency.set_idle(true);
        assert!(!residency.is_over());
        assert_eq!(residency.expires_at().unwrap().as_second(), 15 * 60);
        clock.advance(MINUTE);
        assert!(residency.is_over());
        residency.set_idle(false);
        assert!(!residency.is_over());
        assert_eq!(residency.expires_at().unwrap().as_second(), 20 * 60);
    }

    #[test]
    fn last_request_determines_the_time_until_the_model_is_freed() {
        let (clock, residency) = residency(Some(5 * MINUTE));
        residency.set_idle(true);
        residency.set_keep_alive(KeepAlive::Forever);
        clock.advance(1000 * MINUTE);
        assert!(!residency.is_over());
        assert_eq!(residency.expires_at(), None);
        residency.set_keep_alive(KeepAlive::For(Duration::MAX));
        assert!(!residency.is_over(), "beyond the range of times");
        residency.set_keep_alive(KeepAlive::NONE);
        assert!(residency.is_over());
        residency.set_loaded(false);
        assert!(!residency.is_over(), "already freed");
        residency.set_idle(false);
        residency.set_loaded(true);
        residency.set_idle(true);
        assert!(!residency.is_over(), "the default applies again");
    }

    #[test]
    fn unloading_twice_does_not_affect_the_next_load() {
        let (_, residency) = residency(Some(5 * MINUTE));
        residency.set_idle(true);
        residency.unload();
        assert!(residency.is_over());
        residency.set_loaded(false);
        residency.unload();
        residency.set_idle(false);
        residency.set_loaded(true);
        residency.set_idle(true);
        assert!(!residency.is_over(), "the default applies");
    }

    #[test]
    fn model_stays_loaded_without_keep_alive_time() {
        let (clock, residency) = residency(None);
        residency.set_idle(true);
        residency.set_keep_alive(KeepAlive::NONE);
        clock.advance(1000 * MINUTE);
        assert!(!residency.is_over() && !residency.is_limited());
        assert_eq!(residency.expires_at(), None);
    }

    #[tokio::test]
    async fn wakes_the_engine_once_per_expiry() {
        let (_, residency) = residency(Some(Duration::ZERO));
        let expired = residency.expired();
        residency.set_idle(true);
        expired.await;
        let again = tokio::select! {
            biased;
            () = residency.expired() => true,
            () = std::future::ready(()) => false,
        };
        assert!(!again);
    }
}
