//! Downloads of models from their hub: one after the other, each until it is whole, with what went wrong told and tried
//! again. What is decided about them is the sync plan's; this carries it out and says how far it is.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::Trouble;
use crate::state::StateDir;
use rooflet_api::v1alpha1::{DownloadSpeed, HubModel};
use rooflet_artifact::Downloads;
use rooflet_artifact::hub::{Survey, survey};
use rooflet_artifact::pull::{Progress, PullError, pull};
use rooflet_artifact::remote::HubAccess;
use rooflet_base::clock::Clock;
use rooflet_base::error::Chain;
use rooflet_base::mutex::lock;
use rooflet_base::quantile::median;
use rooflet_base::task::Tasks;
use rooflet_base::units::Bytes;
use rooflet_client::Changes;

/// Bytes per second of the last downloads, in the state directory.
const FILE: &str = "downloads.json";

/// Waits after a failure, each twice the one before.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// What waiting does not mend is asked again all the same: somebody may have mended it.
const PERMANENT_WAIT: Duration = Duration::from_secs(300);

/// How far a download is, is looked at so often.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// A smaller download says more of the way there than of its width.
const MIN_MEASURED: Bytes = Bytes::mib(1);
/// Downloads that speed is the median of.
const MEASURED: usize = 8;

/// What is known of a model that is not here.
#[derive(Debug, Clone)]
pub(crate) enum Looked {
    /// The hub has not answered yet.
    Asked,
    Known {
        survey: Arc<Survey>,
        /// On the disk of what is needed.
        done: Bytes,
        /// Why its download does not go on for now.
        trouble: Option<Trouble>,
    },
    /// Nothing is known of it.
    Unknown(Trouble),
}

/// The agent's downloads.
pub(crate) struct Pulls {
    hub: HubAccess,
    downloads: Downloads,
    state: Arc<StateDir>,
    tasks: Tasks,
    clock: Clock,
    changes: Changes,
    known: BTreeMap<HubModel, Known>,
    /// Held by the download that is under way.
    turn: Arc<Semaphore>,
    speeds: Arc<Mutex<VecDeque<f64>>>,
}

/// A model that somebody wants, and whatever works for it; dropped, that stops.
struct Known {
    shared: Arc<Shared>,
    stop: CancellationToken,
    is_pulling: bool,
}

impl Known {
    /// A download has begun and has not said yet all that it has to say.
    fn is_under_way(&self) -> bool {
        self.is_pulling && !self.shared.told().is_whole
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

#[derive(Default)]
struct Shared {
    progress: Progress,
    told: Mutex<Told>,
}

#[derive(Default)]
struct Told {
    survey: Option<Arc<Survey>>,
    trouble: Option<Trouble>,
    /// It is here, and what follows from that is written down.
    is_whole: bool,
}

impl Shared {
    fn told(&self) -> MutexGuard<'_, Told> {
        lock(&self.told)
    }
}

impl Pulls {
    pub(crate) fn new(
        hub: HubAccess,
        state: &Arc<StateDir>,
        tasks: &Tasks,
        clock: Clock,
        changes: Changes,
    ) -> Self {
        let speeds = state.read(FILE).ok().flatten().unwrap_or_default();
        Self {
            hub,
            downloads: Downloads::new(state.downloads()),
            state: state.clone(),
            tasks: tasks.clone(),
            clock,
            changes,
            known: BTreeMap::new(),
            turn: Arc::new(Semaphore::new(1)),
            speeds: Arc::new(Mutex::new(speeds)),
        }
    }

    pub(crate) fn downloads(&self) -> &Downloads {
        &self.downloads
    }

    /// What is known of a model that is not here. The first look asks the hub.
    pub(crate) fn look(&mut self, model: &HubModel) -> Looked {
        let known = match self.known.get(model) {
            Some(known) => known,
            None => {
                let known = Known {
                    shared: Arc::default(),
                    stop: CancellationToken::new(),
                    is_pulling: false,
                };
                self.tasks.spawn_detached(ask(
                    self.downloads.pinned(model),
                    self.hub.clone(),
                    known.shared.clone(),
                    known.stop.clone(),
                    self.changes.clone(),
                ));
                self.known.entry(model.clone()).or_insert(known)
            }
        };
        let told = known.shared.told();
        match (&told.survey, &told.trouble) {
            (Some(survey), trouble) => Looked::Known {
                survey: survey.clone(),
                done: match known.is_pulling {
                    true => known.shared.progress.bytes(),
                    // What an earlier life has left.
                    false => self.downloads.came(&survey.model),
                },
                trouble: trouble.clone(),
            },
            (None, Some(trouble)) => Looked::Unknown(trouble.clone()),
            (None, None) => Looked::Asked,
        }
    }

    /// Begins to download a model that is known, unless that is under way. `missing` bytes are made free before, of models
    /// whose directories are none of `used`.
    pub(crate) fn start(&mut self, model: &HubModel, used: &BTreeSet<Utf8PathBuf>, missing: Bytes) {
        let Some(known) = self.known.get_mut(model).filter(|known| !known.is_under_way()) else {
            return;
        };
        let survey = {
            let mut told = known.shared.told();
            told.is_whole = false;
            told.survey.clone()
        };
        let Some(survey) = survey else {
            return;
        };
        known.is_pulling = true;
        // Now, while it is known what is used: its turn may come when that has changed.
        self.downloads.remove_unused(used, missing);
        let download = Download {
            asked: model.clone(),
            survey,
            hub: self.hub.clone(),
            downloads: self.downloads.clone(),
            shared: known.shared.clone(),
            clock: self.clock.clone(),
            changes: self.changes.clone(),
            speeds: self.speeds.clone(),
            state: self.state.clone(),
        };
        let (turn, stop) = (self.turn.clone(), known.stop.clone());
        self.tasks.spawn_detached(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = async {
                    // Closed never.
                    let Ok(_turn) = turn.acquire().await else { return };
                    download.run().await;
                } => {}
            }
        });
    }

    /// Forgets a model that is here, unless its download is about to say so itself.
    pub(crate) fn forget(&mut self, model: &HubModel) {
        if self.known.get(model).is_some_and(|known| !known.is_under_way()) {
            self.known.remove(model);
        }
    }

    /// Stops what nobody wants any more, and forgets it: who wants it again asks anew.
    pub(crate) fn retain(&mut self, wanted: &BTreeSet<HubModel>) {
        self.known.retain(|model, _| wanted.contains(model));
    }

    /// When progress is to be looked at although nothing has changed.
    pub(crate) fn look_again(&self) -> Option<Duration> {
        let mut known = self.known.values();
        known.any(Known::is_under_way).then_some(LOOK_AGAIN)
    }

    /// How fast models came lately; `None` where none did.
    pub(crate) fn speed(&self) -> Option<DownloadSpeed> {
        let speeds = lock(&self.speeds);
        Some(DownloadSpeed {
            median_bytes_per_second: median(speeds.iter().copied())?.round(),
            downloads: speeds.len() as u32,
        })
    }
}

/// Asks the hub for a model until it answers.
async fn ask(
    model: HubModel,
    hub: HubAccess,
    shared: Arc<Shared>,
    stop: CancellationToken,
    changes: Changes,
) {
    let mut waits = Waits::default();
    loop {
        let answer = tokio::select! {
            () = stop.cancelled() => return,
            answer = survey(&model, &hub) => answer,
        };
        let wait = match answer {
            Ok(survey) => {
                *shared.told() = Told {
                    survey: Some(Arc::new(survey)),
                    ..Told::default()
                };
                changes.mark();
                return;
            }
            Err(err) => {
                let is_passing = err.is_passing();
                let trouble = Trouble {
                    reason: err.reason(),
                    message: Chain(&err).to_string(),
                    is_passing,
                };
                warn!(%model, reason = trouble.reason, "{}", trouble.message);
                shared.told().trouble = Some(trouble);
                changes.mark();
                if is_passing { waits.next() } else { PERMANENT_WAIT }
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
        }
    }
}

#[derive(Default)]
struct Waits(u32);

impl Waits {
    fn next(&mut self) -> Duration {
        let wait = FIRST_WAIT.saturating_mul(1 << self.0.min(16)).min(LONGEST_WAIT);
        self.0 += 1;
        wait
    }
}

/// One model on its way.
struct Download {
    asked: HubModel,
    survey: Arc<Survey>,
    hub: HubAccess,
    downloads: Downloads,
    shared: Arc<Shared>,
    clock: Clock,
    changes: Changes,
    speeds: Arc<Mutex<VecDeque<f64>>>,
    state: Arc<StateDir>,
}

impl Download {
    /// Until the model is whole.
    async fn run(self) {
        let mut waits = Waits::default();
        // Before it is whole: an agent that dies on the way goes on with the same.
        if let Err(err) = self.downloads.remember(&self.asked, &self.survey.model) {
            warn!(model = %self.asked, error = %err, "its commit could not be written down");
        }
        loop {
            let began = self.clock.instant();
            let came = AtomicU64::new(0);
            let outcome = pull(
                &self.survey,
                &self.hub,
                &self.downloads,
                &self.shared.progress,
                |bytes| {
                    let before = came.fetch_add(bytes as u64, Ordering::Relaxed);
                    if before == 0 {
                        self.goes_on();
                    }
                },
            )
            .await;
            let came = Bytes(came.into_inner());
            self.measured(came, began);
            match outcome {
                Ok(path) => {
                    info!(model = %self.survey.model, %path, "downloaded a model");
                    let mut told = self.shared.told();
                    (told.trouble, told.is_whole) = (None, true);
                    self.changes.mark();
                    return;
                }
                Err(err) => {
                    let trouble = Trouble {
                        reason: err.reason(),
                        message: format!("{}; it is tried again", Chain(&err)),
                        is_passing: true,
                    };
                    warn!(model = %self.survey.model, reason = trouble.reason, "{}", trouble.message);
                    self.shared.told().trouble = Some(trouble);
                    self.changes.mark();
                    // What broke goes on where it ended; what was wrong costs all of it again.
                    if came > Bytes::ZERO && !matches!(err, PullError::Digest { .. }) {
                        waits = Waits::default();
                    }
                }
            }
            tokio::time::sleep(waits.next()).await;
        }
    }

    fn goes_on(&self) {
        if self.shared.told().trouble.take().is_some() {
            self.changes.mark();
        }
    }

    fn measured(&self, came: Bytes, began: Instant) {
        let seconds = (self.clock.instant() - began).as_secs_f64();
        if came < MIN_MEASURED || seconds <= 0.0 {
            return;
        }
        let mut speeds = lock(&self.speeds);
        speeds.push_back(came.0 as f64 / seconds);
        while speeds.len() > MEASURED {
            speeds.pop_front();
        }
        if let Err(err) = self.state.write(FILE, &*speeds) {
            warn!(error = %err, "how fast models came could not be written down");
        }
    }
}
