//! How a rollout stands before anything is done in a pass: to which revision, how far, and what it waits for.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use super::analysis::{Analysis, Side, Yardstick, analyse, lags};
use super::conditions::DEADLINE_EXCEEDED;
use super::idle::{Idleness, InUse};
use super::maintenance::{Closed, Maintenance};
use super::replica::{condition, is_of, is_ready};
use super::rollout::{AtFloor, Bounds, Extent};
use super::throughput::Floor;
use rooflet_api::conditions::{GOLDEN_PROMPT_FAILED, Truth, condition_type, whole_seconds};
use rooflet_api::meta::{ABORT_ANNOTATION, PROMOTE_ANNOTATION};
use rooflet_api::v1alpha1::{
    AnalysisStep, CanaryStep, Inconclusive, ModelDeployment, ModelDeploymentSpec, ModelReplica, RolloutAbort,
    RolloutStatus, StrategyType,
};
use rooflet_base::clock::since;
use rooflet_base::quantity;

/// What ends a promotion's text where all steps are meant.
const FULL: &str = "full";

/// How long nothing may come forward.
pub(super) fn progress_deadline(spec: &ModelDeploymentSpec) -> Duration {
    Duration::from_secs(u64::try_from(spec.progress_deadline_seconds).unwrap_or(0))
}

/// What is known of a rollout.
#[derive(Clone, Copy)]
pub(super) struct Situation<'a> {
    pub(super) deployment: &'a ModelDeployment,
    /// The revision of the template, if there is one already or will be.
    pub(super) wanted: Option<&'a str>,
    /// The revision that was last rolled out, if it still exists.
    pub(super) stable: Option<&'a str>,
    /// Replicas that are neither ending nor refused.
    pub(super) active: &'a [&'a ModelReplica],
    /// When a revision or a replica last came forward.
    pub(super) progressed_at: Option<Timestamp>,
    /// Why the wanted revision may not be begun with.
    pub(super) refusal: Option<&'a Hold>,
    /// Why it is to be given up, where that is known before anything is made of it.
    pub(super) given_up: Option<&'a str>,
    /// Whether a replica is of another revision than the wanted one, or where it may not be.
    pub(super) is_replacing: bool,
    /// What a replica of the wanted revision on a node is held against.
    pub(super) yardstick: &'a dyn Fn(&str) -> Option<Yardstick>,
    pub(super) now: Timestamp,
}

/// How it goes on.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Standing {
    pub(super) status: RolloutStatus,
    pub(super) extent: Extent,
    pub(super) hold: Option<Hold>,
    /// What the new revision gets of the requests while a canary is under way, in percent.
    pub(super) weight: Option<u8>,
    /// What is ready is replaced only when it is idle.
    pub(super) idleness: Option<Idleness>,
    /// What follows is downloaded before.
    pub(super) prepares: bool,
    /// When it may go on although nothing else happens.
    pub(super) look_again_after: Option<Duration>,
}

impl Standing {
    fn new(status: RolloutStatus, extent: Extent) -> Self {
        Self {
            status,
            extent,
            hold: None,
            weight: None,
            idleness: None,
            prepares: false,
            look_again_after: None,
        }
    }

    fn held(status: RolloutStatus, hold: Hold, weight: Option<u8>) -> Self {
        Self {
            hold: Some(hold),
            weight,
            ..Self::new(status, Extent::Held)
        }
    }

    /// When anything last came forward, the rollout's own steps included.
    pub(super) fn progressed_at(&self, replicas: Option<Timestamp>) -> Option<Timestamp> {
        let RolloutStatus {
            started_at,
            step_started_at,
            aborted,
            ..
        } = &self.status;
        let aborted_at = aborted.as_ref().map(|aborted| &aborted.at);
        [started_at.as_ref(), step_started_at.as_ref(), aborted_at]
            .into_iter()
            .flatten()
            .map(|time| time.0)
            .chain(replicas)
            .max()
    }
}

/// Why nothing is replaced for now. None of these is a lack of progress.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Hold {
    Paused,
    CanaryPaused {
        step: usize,
        steps: usize,
        seconds: Option<u64>,
    },
    /// Not enough requests to tell; until when that is waited for.
    Analysing {
        step: usize,
        steps: usize,
        missing: String,
        until: Timestamp,
    },
    /// There were not enough in time.
    Inconclusive {
        step: usize,
        steps: usize,
        missing: String,
    },
    /// No maintenance window is open.
    OutsideMaintenanceWindow(Closed),
    /// The next replicas are in use; since when that keeps them.
    WaitingForIdle(InUse, Timestamp),
    /// The nodes of the next replicas download what follows.
    Preparing(String),
    /// The plan is worse than what must be held, or no replica can be spared.
    ThroughputFloor(String),
    /// What was replaced so far is far slower than it should be.
    SlowerThanPredicted(String),
}

/// What becomes of a canary's step.
enum Next {
    /// The next one follows; with what an analysis has shown.
    Done(Option<String>),
    /// Why it goes no further, where there is something to say, and when to look again.
    Hold(Option<Hold>, Option<Duration>),
    /// Its analysis failed: why.
    Abort(String),
}

impl Hold {
    pub(super) fn at_floor(at: AtFloor, floor: Floor) -> Self {
        Self::ThroughputFloor(format!(
            "no replica can be replaced: {:.1} tokens/s are predicted now, without the next one {:.1}, and spec.strategy.rollingUpdate.minThroughput holds {:.1}; a maxSurge with a node that has room for one replica more, or a lower floor, would let it go on",
            at.now,
            at.would_leave,
            floor.tokens_per_second()
        ))
    }

    /// Whether the condition Progressing told so of a hold: the time until now was no lack of progress.
    pub(super) fn is_told_by(reason: &str) -> bool {
        [
            "Paused",
            "CanaryPaused",
            "Analysing",
            "AnalysisInconclusive",
            "OutsideMaintenanceWindow",
            "WaitingForIdle",
            "Preparing",
            "ThroughputFloor",
            "SlowerThanPredicted",
        ]
        .contains(&reason)
    }

    pub(super) fn truth(&self) -> Truth {
        match self {
            Self::Paused
            | Self::CanaryPaused { .. }
            | Self::Inconclusive { .. }
            | Self::OutsideMaintenanceWindow(_)
            | Self::WaitingForIdle(..) => Truth::Unknown,
            Self::Analysing { .. } | Self::Preparing(_) => Truth::True,
            Self::ThroughputFloor(_) | Self::SlowerThanPredicted(_) => Truth::False,
        }
    }

    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Paused => "Paused",
            Self::CanaryPaused { .. } => "CanaryPaused",
            Self::Analysing { .. } => "Analysing",
            Self::Inconclusive { .. } => "AnalysisInconclusive",
            Self::OutsideMaintenanceWindow(_) => "OutsideMaintenanceWindow",
            Self::WaitingForIdle(..) => "WaitingForIdle",
            Self::Preparing(_) => "Preparing",
            Self::ThroughputFloor(_) => "ThroughputFloor",
            Self::SlowerThanPredicted(_) => "SlowerThanPredicted",
        }
    }

    pub(super) fn message(&self, deployment: &str) -> String {
        match self {
            Self::Paused => "spec.paused: changes of the template are not rolled out".to_owned(),
            Self::CanaryPaused {
                step,
                steps,
                seconds: Some(seconds),
            } => format!("step {} of {steps} of the canary: waits {seconds} s", step + 1),
            Self::CanaryPaused {
                step,
                steps,
                seconds: None,
            } => format!(
                "step {} of {steps} of the canary: waits for `rooflet rollout promote mdep/{deployment}`",
                step + 1
            ),
            Self::Analysing {
                step,
                steps,
                missing,
                until,
            } => format!(
                "step {} of {steps} of the canary: {missing}; waits until {until}",
                step + 1
            ),
            Self::Inconclusive { step, steps, missing } => format!(
                "step {} of {steps} of the canary: too few requests to tell, {missing}; waits for more or for `rooflet rollout promote mdep/{deployment}`",
                step + 1
            ),
            Self::OutsideMaintenanceWindow(Closed { opens, problem }) => {
                let when = match opens {
                    Some(opens) => {
                        format!("no replica is replaced before {opens}, when a maintenance window opens")
                    }
                    None => {
                        "no replica is replaced, because no maintenance window can be understood".to_owned()
                    }
                };
                let told = problem
                    .iter()
                    .map(|problem| format!("; {problem}"))
                    .collect::<String>();
                format!("{when}{told}; `rooflet rollout promote --full mdep/{deployment}` goes on now")
            }
            Self::WaitingForIdle(in_use, began) => in_use.message(*began),
            Self::ThroughputFloor(message) | Self::Preparing(message) => message.clone(),
            Self::SlowerThanPredicted(why) => format!(
                "no more replicas are replaced: {why}; `rooflet rollout undo mdep/{deployment}` goes back, `rooflet rollout promote --full mdep/{deployment}` goes on"
            ),
        }
    }
}

impl Situation<'_> {
    pub(super) fn assess(self) -> Standing {
        let spec = &self.deployment.spec;
        let mut status = self.deployment.status.clone().unwrap_or_default().rollout;
        status.stable_revision = self.stable.map(str::to_owned);
        let Some(wanted) = self.wanted else {
            return Standing::new(status, Extent::All);
        };
        if status.revision.as_deref() != Some(wanted) {
            status = RolloutStatus {
                revision: Some(wanted.to_owned()),
                started_at: Some(Time(whole_seconds(self.now))),
                step: None,
                step_started_at: None,
                analysis: None,
                aborted: None,
                idle_wait_started_at: None,
                ..status
            };
        }
        let is_change = self.stable.is_some_and(|stable| stable != wanted);
        if is_change && status.aborted.is_none() {
            status.aborted = self.abort(wanted, &status);
        }
        if !is_change || status.aborted.is_some() {
            status.step = None;
            status.step_started_at = None;
        }
        if !is_change {
            status.aborted = None;
        }
        let steps = match (&spec.strategy.canary, spec.strategy.kind) {
            // Of nothing there is nothing to try.
            (Some(canary), StrategyType::Canary) if spec.replicas > 0 => canary.steps.as_slice(),
            (_, StrategyType::RollingUpdate | StrategyType::Recreate | StrategyType::Canary) => &[],
        };
        let weight = status
            .step
            .and_then(|step| usize::try_from(step).ok())
            .filter(|step| *step < steps.len())
            .map(|step| weight_at(steps, step));
        if status.aborted.is_some() {
            return Standing {
                weight: Some(0),
                ..Standing::new(status, Extent::All)
            };
        }
        if spec.paused {
            return Standing::held(status, Hold::Paused, weight);
        }
        let standing = match self.refusal {
            Some(refusal) if is_change => Standing::held(status, refusal.clone(), weight),
            _ if is_change && !steps.is_empty() => self.canary(steps, wanted, status),
            Some(_) | None => match self.lag(wanted).filter(|_| is_change && self.is_replacing) {
                Some(why) => Standing::held(status, Hold::SlowerThanPredicted(why), weight),
                None => Standing::new(status, Extent::All),
            },
        };
        // Going back waits for nothing, nor does who was told to go on.
        if standing.status.aborted.is_some() || self.promoted(wanted) == Some(usize::MAX) {
            return standing;
        }
        self.when_convenient(standing)
    }

    /// Holds back what would replace replicas at the wrong time, or one that is in use.
    fn when_convenient(&self, mut standing: Standing) -> Standing {
        let strategy = &self.deployment.spec.strategy;
        if !self.is_replacing {
            return standing;
        }
        standing.prepares = true;
        let maintenance = Maintenance::at(&strategy.maintenance_windows, self.now);
        let changes = maintenance.changes_after(self.now);
        standing.look_again_after = standing.look_again_after.into_iter().chain(changes).min();
        if let Maintenance::Closed(closed) = maintenance {
            standing.extent = Extent::Held;
            standing
                .hold
                .get_or_insert(Hold::OutsideMaintenanceWindow(closed));
        }
        let waited_since = standing.status.idle_wait_started_at.as_ref();
        standing.idleness = Idleness::of(strategy, self.now)
            .filter(|idleness| waited_since.is_none_or(|began| idleness.left(began.0).is_some()));
        standing
    }

    /// Whether the wanted revision is to be given up, and why.
    fn abort(&self, wanted: &str, status: &RolloutStatus) -> Option<RolloutAbort> {
        let spec = &self.deployment.spec;
        let abort = |reason: &str, message: String| {
            Some(RolloutAbort {
                reason: reason.to_owned(),
                message,
                at: Time(whole_seconds(self.now)),
            })
        };
        if self
            .deployment
            .annotations()
            .get(ABORT_ANNOTATION)
            .map(String::as_str)
            == Some(wanted)
        {
            return abort("Aborted", format!("the annotation {ABORT_ANNOTATION} names it"));
        }
        if let Some(why) = self.given_up {
            return abort(DEADLINE_EXCEEDED, why.to_owned());
        }
        let deadline = progress_deadline(spec);
        let progressed_at = Standing::new(status.clone(), Extent::All).progressed_at(self.progressed_at);
        let is_closed = || {
            let windows = &spec.strategy.maintenance_windows;
            self.is_replacing && matches!(Maintenance::at(windows, self.now), Maintenance::Closed(_))
        };
        let waits = spec.paused || self.refusal.is_some() || self.is_pausing(wanted) || is_closed();
        let idle = progressed_at.map_or(Duration::ZERO, |at| since(self.now, at));
        let golden = self
            .active
            .iter()
            .filter(|replica| spec.strategy.rolls_back() && is_of(replica, wanted))
            .filter_map(|replica| condition(replica, condition_type::READY))
            .find(|ready| ready.reason == GOLDEN_PROMPT_FAILED);
        if let Some(ready) = golden {
            // The answer is greedy: it would be no other the next time.
            return abort(GOLDEN_PROMPT_FAILED, ready.message.clone());
        }
        if spec.strategy.rolls_back() && !waits && idle >= deadline {
            return abort(
                DEADLINE_EXCEEDED,
                format!("no progress for {} s", deadline.as_secs()),
            );
        }
        None
    }

    fn step(&self, wanted: &str) -> Option<(usize, Timestamp)> {
        let before = &self.deployment.status.as_ref()?.rollout;
        let step = usize::try_from(before.step?).ok()?;
        let since = before.step_started_at.as_ref()?.0;
        (before.revision.as_deref() == Some(wanted)).then_some((step, since))
    }

    fn is_pausing(&self, wanted: &str) -> bool {
        let canary = self.deployment.spec.strategy.canary.as_ref();
        let step = self.step(wanted).and_then(|(step, _)| canary?.steps.get(step));
        step.is_some_and(|step| step.set_weight.is_none())
    }

    /// Takes as many steps as are done.
    fn canary(&self, steps: &[CanaryStep], wanted: &str, mut status: RolloutStatus) -> Standing {
        let (mut index, mut began) = self.step(wanted).unwrap_or((0, self.now));
        let promoted = self.promoted(wanted);
        let (mut hold, mut look_again_after) = (None, None);
        while let Some(step) = steps.get(index) {
            let is_promoted = promoted.is_some_and(|until| index <= until);
            let next = match is_promoted {
                true => Next::Done(None),
                false => self.next(step, wanted, began, (index, steps.len())),
            };
            match next {
                Next::Done(analysis) => status.analysis = analysis.or(status.analysis.take()),
                Next::Hold(why, after) => {
                    (hold, look_again_after) = (why, after);
                    break;
                }
                Next::Abort(why) => return self.failed(why, status),
            }
            index += 1;
            began = self.now;
        }
        let weight = weight_at(steps, index);
        status.step = i32::try_from(index).ok();
        status.step_started_at = Some(Time(whole_seconds(began)));
        let is_under_way = index < steps.len();
        Standing {
            status,
            extent: if is_under_way {
                Extent::Canary(weight)
            } else {
                Extent::All
            },
            hold,
            weight: is_under_way.then_some(weight),
            idleness: None,
            prepares: false,
            look_again_after,
        }
    }

    /// What becomes of a step that began then, the one at `index` of so many.
    fn next(
        &self,
        step: &CanaryStep,
        wanted: &str,
        began: Timestamp,
        (index, steps): (usize, usize),
    ) -> Next {
        if let Some(weight) = step.set_weight
            && !self.carries(wanted, weight)
        {
            return Next::Hold(None, None);
        }
        if let Some(pause) = &step.pause {
            let lasts = pause.duration.as_deref().and_then(quantity::parse_duration);
            let left = lasts.map(|lasts| lasts.saturating_sub(since(self.now, began)));
            if left != Some(Duration::ZERO) {
                let paused = Hold::CanaryPaused {
                    step: index,
                    steps,
                    seconds: lasts.map(|lasts| lasts.as_secs()),
                };
                return Next::Hold(Some(paused), left);
            }
        }
        let Some(analysis) = &step.analysis else {
            return Next::Done(None);
        };
        let missing = match self.analyse(analysis, wanted) {
            Analysis::Passed(figures) => return Next::Done(Some(figures)),
            Analysis::Failed(why) => return Next::Abort(why),
            Analysis::Waiting(missing) => missing,
        };
        let step = index;
        let lasts = quantity::parse_duration(&analysis.inconclusive_after);
        let until = began
            .checked_add(lasts.unwrap_or_default())
            .unwrap_or(Timestamp::MAX);
        if self.now < until {
            let analysing = Hold::Analysing {
                step,
                steps,
                missing,
                until,
            };
            return Next::Hold(Some(analysing), Some(since(until, self.now)));
        }
        match analysis.if_inconclusive {
            Inconclusive::Promote if self.answers_golden_prompts(wanted) => Next::Done(Some(format!(
                "inconclusive: {missing}; the golden prompts were answered"
            ))),
            Inconclusive::Promote | Inconclusive::Pause => {
                Next::Hold(Some(Hold::Inconclusive { step, steps, missing }), None)
            }
        }
    }

    /// The canary is given up by its analysis.
    fn failed(&self, why: String, mut status: RolloutStatus) -> Standing {
        status.analysis = Some(why.clone());
        status.step = None;
        status.step_started_at = None;
        status.aborted = Some(RolloutAbort {
            reason: "AnalysisFailed".to_owned(),
            message: why,
            at: Time(whole_seconds(self.now)),
        });
        Standing {
            weight: Some(0),
            ..Standing::new(status, Extent::All)
        }
    }

    /// The replicas of a revision.
    fn of(&self, revision: &str) -> Vec<&ModelReplica> {
        let replicas = self.active.iter().copied();
        replicas.filter(|replica| is_of(replica, revision)).collect()
    }

    /// Why the wanted revision is not to be followed by more of it, although nobody asked for a canary.
    fn lag(&self, wanted: &str) -> Option<String> {
        if self.promoted(wanted) == Some(usize::MAX) {
            return None;
        }
        let side = |revision: &str| Side::of(&self.of(revision), |_| None);
        lags(side(wanted), side(self.stable?))
    }

    fn analyse(&self, step: &AnalysisStep, wanted: &str) -> Analysis {
        let of = |revision| self.of(revision);
        let canary = Side::of(&of(wanted), |replica| {
            let node = replica.spec.node_name.as_deref()?;
            (self.yardstick)(node)
        });
        let stable = Side::of(&of(self.stable.unwrap_or_default()), |_| Some(Yardstick::OWN));
        analyse(step, canary, stable)
    }

    /// Whether every replica of the revision was asked something before it became ready.
    fn answers_golden_prompts(&self, wanted: &str) -> bool {
        let of_it = || self.active.iter().filter(|replica| is_of(replica, wanted));
        of_it().next().is_some()
            && of_it().all(|replica| is_ready(replica) && !replica.spec.golden_prompts.is_empty())
    }

    /// Whether as many replicas of the revision are ready as the weight asks for.
    fn carries(&self, wanted: &str, weight: u8) -> bool {
        let ready = self
            .active
            .iter()
            .filter(|replica| is_of(replica, wanted) && is_ready(replica));
        ready.count() >= Bounds::of(&self.deployment.spec).canaries(weight)
    }

    /// The last step that a promotion ends.
    fn promoted(&self, wanted: &str) -> Option<usize> {
        let promotion = self.deployment.annotations().get(PROMOTE_ANNOTATION)?;
        let (revision, step) = promotion.rsplit_once('/')?;
        if revision != wanted {
            return None;
        }
        match step {
            FULL => Some(usize::MAX),
            step => step.parse().ok(),
        }
    }
}

/// What the new revision gets at a step: what the last one that says so has set.
fn weight_at(steps: &[CanaryStep], index: usize) -> u8 {
    let until = steps.iter().take(index.saturating_add(1));
    until.rev().find_map(|step| step.set_weight).unwrap_or(0)
}
