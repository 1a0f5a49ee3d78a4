//! Watches that tell something twice, or late: a server behind a proxy, or one of several that lags.

use std::time::Duration;

use super::event::{Event, Reader};
use super::random::Random;
use super::run::Run;
use super::store::Object;

/// What is told again or late comes within this time.
const LATEST: Duration = Duration::from_secs(3);

/// See the module.
#[derive(Debug)]
pub(super) struct Disorder {
    random: Random,
    /// The shares that are told again, and late.
    pub(super) repeated: f64,
    pub(super) reordered: f64,
    /// Something was told late last at this time.
    last: Option<Duration>,
}

impl Disorder {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            random: Random::stream(seed, "watches"),
            repeated: 0.0,
            reordered: 0.0,
            last: None,
        }
    }

    /// What was known at a moment is all that is older than this.
    pub(super) fn lag(&self, at: Duration) -> Duration {
        match self.last {
            Some(last) if at <= last + LATEST => LATEST,
            Some(_) | None => Duration::ZERO,
        }
    }

    /// By how much the next thing is told late, and by how much later again.
    fn draw(&mut self, now: Duration) -> (Option<Duration>, Option<Duration>) {
        let random = &mut self.random;
        let mut one = |share: f64| {
            let drawn = share > 0.0 && random.chance(share);
            drawn.then(|| random.between(Duration::ZERO, LATEST))
        };
        let (late, again) = (one(self.reordered), one(self.repeated));
        if late.is_some() {
            self.last = Some(now);
        }
        (late, again)
    }
}

impl Run<'_> {
    /// Puts what a watch tells on its way.
    pub(super) fn send_to(&mut self, to: Reader, object: Object, gone: bool) {
        let now = self.now;
        let arrives = now + self.latency();
        let kind = object.kind();
        let view = match to {
            Reader::Controller => &mut self.control.view,
            Reader::Gateway => &mut self.front.view,
            Reader::Agent(node) => &mut self.nodes[node].view,
        };
        if view.ended.is_some() {
            return;
        }
        let (late, again) = self.disorder.draw(now);
        if let Some(again) = again {
            view.send_apart(object.clone(), gone, arrives + again);
            self.queue.push(arrives + again, Event::Deliver { to, kind });
        }
        let arrives = match late {
            Some(late) => {
                view.send_apart(object, gone, arrives + late);
                arrives + late
            }
            None => view.send(object, gone, arrives),
        };
        self.queue.push(arrives, Event::Deliver { to, kind });
    }
}
