use super::*;
use crate::models::DownloadProblem;
use crate::models::ModelProblem;
use crate::sync::Start;
use rooflet_api::v1alpha1::Termination;
use rooflet_api::wire::{EngineInfo, EngineMemory, ModelInfo, RequestCounts};
use rooflet_roofline::memory::{Demand, MemoryRefusal, Reservation, ServedModel};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn progress() -> Progress {
    Progress {
        restarts: 0,
        failures: 0,
        last_termination: None,
        reservation: Some((Bytes(1_500_000), "1.4 MiB (weights …)".to_owned())),
        model_path: Some("/models/guide".into()),
        status: None,
        is_stalled: false,
        stopping: None,
        golden_failure: None,
    }
}

fn worker(phase: WorkerPhase) -> Progress {
    let status = WorkerStatus {
        phase,
        engine: EngineInfo {
            name: "mlx".to_owned(),
            version: "0".to_owned(),
            device: "cpu".to_owned(),
        },
        model: Some(ModelInfo {
            architecture: "llama".to_owned(),
            parameters: 10,
            weights_bytes: 2048,
            kv_bytes_per_token: 8,
            context_tokens: 64,
        }),
        memory: EngineMemory::default(),
        requests: RequestCounts::default(),
        measured: rooflet_api::wire::MeasuredSpeed {
            decode_tokens_per_second: Some(20.04),
            time_to_first_token_seconds: None,
            samples: 3,
            streams: Some(1.0),
            prompt_tokens: Some(20.0),
            context_tokens: Some(40.0),
            ..rooflet_api::wire::MeasuredSpeed::default()
        },
        stalled: false,
    };
    Progress {
        status: Some(status),
        ..progress()
    }
}

fn ended() -> Progress {
    let end = Termination {
        exit_code: Some(1),
        signal: None,
        reason: "Error".to_owned(),
        message: "the worker ended with exit code 1".to_owned(),
        finished_at: "1970-01-01T00:00:09Z".to_owned(),
    };
    Progress {
        failures: 2,
        last_termination: Some(end),
        reservation: None,
        model_path: None,
        ..progress()
    }
}

fn start() -> Step {
    let reservation = Reservation::new(
        &ServedModel::of_size(Bytes(1), 4),
        Demand {
            context_tokens: 1,
            max_concurrency: 1,
        },
    );
    Step::Start(Start {
        path: "/models/guide".into(),
        fingerprint: 1,
        context_tokens: 1,
        reservation,
        admission: Box::default(),
    })
}

fn refusal(kind: RefusalKind, reason: &str) -> Step {
    Step::Refuse(Refusal {
        kind,
        reason: reason.to_owned(),
        message: format!("because of {reason}"),
        admission: None,
    })
}

/// Simulated history of one replica: applies steps and checks each status and its events.
struct ReplicaHistory {
    status: ModelReplicaStatus,
    running_admission: Option<AdmissionStatus>,
    overridden: bool,
    pull: Option<PendingPull>,
    second: i64,
}

impl ReplicaHistory {
    fn new() -> Self {
        Self {
            status: ModelReplicaStatus::default(),
            running_admission: None,
            overridden: false,
            pull: None,
            second: 0,
        }
    }

    /// Applies a step and checks the status. `expect`: the phase; `+` for each true condition, `-`
    /// for false, `?` for unknown, in list order; then the events.
    #[track_caller]
    fn check(&mut self, step: &Step, progress: Option<Progress>, expect: &str) {
        self.second += 1;
        let facts = Facts {
            node: "mini-1",
            serving_name: "guide",
            generation: Some(1),
            step,
            pull: self.pull.as_ref(),
            reservation: None,
            progress,
            running_admission: self.running_admission.as_ref(),
            overridden: self.overridden,
            prediction: None,
            calibrations: &[],
        };
        let next = replica_status(&facts, &self.status, at(self.second));
        let conditions: String = next
            .conditions
            .iter()
            .map(|condition| match condition.status.as_str() {
                "True" => '+',
                "False" => '-',
                _ => '?',
            })
            .collect();
        let events: Vec<_> = status_events(&self.status, &next)
            .into_iter()
            .map(|event| event.reason)
            .collect();
        assert_eq!(
            format!("{} {conditions} [{}]", next.phase.as_str(), events.join(" ")),
            expect
        );
        let later = if self.pull.is_some() { 0 } else { 100 };
        let again = replica_status(&facts, &next, at(self.second + later));
        assert_eq!(again, next, "the same facts give the same status later");
        assert_eq!(status_events(&next, &again), []);
        self.status = next;
    }
}

fn pulling() -> Step {
    let Step::Start(start) = start() else {
        unreachable!("expected a start")
    };
    Step::Pull(start)
}

#[test]
fn download_precedes_loading() {
    let pull = |mib| {
        Some(PendingPull {
            model: "hf://o/n@c0".parse().unwrap(),
            bytes: Bytes::mib(200),
            done: Bytes::mib(mib),
            is_under_way: true,
            problem: None,
        })
    };
    let came = |history: &ReplicaHistory| {
        history
            .status
            .download
            .as_ref()
            .map(|download| download.bytes >> 20)
    };
    let message = |history: &ReplicaHistory| {
        let conditions = &history.status.conditions;
        let found = conditions
            .iter()
            .find(|one| one.type_ == condition_type::ARTIFACTS_READY);
        found.unwrap().message.clone()
    };
    let mut history = ReplicaHistory::new();
    let asked = ModelProblem {
        reason: ASKING_HUB,
        message: "the hub is asked".to_owned(),
        is_transient: true,
    };
    history.check(&Step::Wait(Wait::Artifacts(asked)), None, "Pulling +?--- []");
    history.pull = pull(0);
    history.check(&pulling(), None, "Pulling ++--- [Admitted Pulling]");
    // Small progress does not change the status.
    history.pull = pull(9);
    history.check(&pulling(), None, "Pulling ++--- []");
    assert_eq!(came(&history), Some(0));
    history.pull = pull(10);
    history.check(&pulling(), None, "Pulling ++--- []");
    assert_eq!(came(&history), Some(10));
    assert_eq!(message(&history), "downloaded 5 % of 200.0 MiB of hf://o/n@c0");
    history.second += 10;
    history.pull = pull(11);
    history.check(&pulling(), None, "Pulling ++--- []");
    assert_eq!(came(&history), Some(11));

    let updated_at = |history: &ReplicaHistory| history.status.download.clone().unwrap().updated_at;
    let before = updated_at(&history);
    let mut troubled = pull(4).unwrap();
    troubled.problem = Some(DownloadProblem {
        reason: "DigestMismatch",
        message: "digest mismatch".to_owned(),
        is_transient: true,
    });
    history.pull = Some(troubled);
    history.check(&pulling(), None, "Pulling ++--- [DigestMismatch]");
    assert_eq!((came(&history), updated_at(&history)), (Some(4), before));
    history.pull = pull(100);
    history.check(&pulling(), None, "Pulling ++--- [Pulling]");
    // A replica that does not fit pauses its download.
    history.check(
        &refusal(RefusalKind::Temporary, "InsufficientMemory"),
        None,
        "Pending +---- [InsufficientMemory InsufficientMemory]",
    );
    history.pull = None;
    history.check(
        &start(),
        Some(progress()),
        "Loading +++-- [Admitted Pulled Started]",
    );
    assert_eq!(history.status.download, None);
}

#[test]
fn replica_passes_through_all_phases_to_ready() {
    let mut history = ReplicaHistory::new();
    history.check(&start(), Some(progress()), "Loading +++-- [Admitted Started]");
    history.check(
        &Step::Keep,
        Some(worker(WorkerPhase::Loading)),
        "Loading +++-- []",
    );
    history.check(
        &Step::Keep,
        Some(worker(WorkerPhase::Warming)),
        "Warming ++++- [Loaded]",
    );
    history.check(
        &Step::Keep,
        Some(worker(WorkerPhase::Ready)),
        "Ready +++++ [Ready]",
    );
    assert_eq!(history.status.reserved_memory.as_deref(), Some("2Mi"));
    let measured = history.status.measured.clone().unwrap();
    assert_eq!(
        (
            measured.tokens_per_second.as_str(),
            measured.time_to_first_token_seconds.as_str()
        ),
        ("20.0", "-")
    );
    let stopping = Progress {
        stopping: Some(StopCause::Deleted),
        ..worker(WorkerPhase::Ready)
    };
    history.check(&Step::AwaitStop, Some(stopping), "Draining ++++- [Draining]");
}

#[test]
fn overcommitted_and_overridden_admission_is_reported() {
    let mut history = ReplicaHistory::new();
    let ready = || Some(worker(WorkerPhase::Ready));
    let refused = |why: &str| {
        Some(AdmissionStatus {
            admitted: true,
            refusals: vec![why.to_owned()],
            ..AdmissionStatus::default()
        })
    };
    history.check(&Step::Keep, ready(), "Ready +++++ [Admitted Loaded Ready]");
    history.running_admission = refused("it needs 70 %");
    history.check(&Step::Keep, ready(), "Ready +++++ [Overcommitted]");
    assert_eq!(history.status.admission, history.running_admission);
    history.running_admission = refused("it needs 80 %");
    history.check(&Step::Keep, ready(), "Ready +++++ []");
    history.overridden = true;
    history.check(&Step::Keep, ready(), "Ready +++++ [AdmissionOverridden]");
    let admitted = &history.status.conditions[1];
    assert_eq!(
        admitted.message,
        "rooflet.dev/admission: warn overrides: it needs 80 %"
    );
    history.running_admission = Some(AdmissionStatus::default());
    history.check(&Step::Keep, ready(), "Ready +++++ []");
    assert_eq!(history.status.conditions[1].reason, "Fits");
}

/// Otherwise, each start on a node would write the statuses of all its replicas.
#[test]
fn free_resources_change_only_together_with_another_figure() {
    let admission = |free_bytes: u64, chip_time_percent: f64| {
        let mut admission = AdmissionStatus {
            admitted: true,
            chip_time_percent,
            free_chip_time_percent: free_bytes as f64,
            ..AdmissionStatus::default()
        };
        admission.memory.free_bytes = free_bytes;
        admission.context.get_or_insert_default().fits_tokens = u32::try_from(free_bytes).ok();
        Some(admission)
    };
    let mut history = ReplicaHistory::new();
    let ready = || Some(worker(WorkerPhase::Ready));
    history.running_admission = admission(8, 20.0);
    history.check(&Step::Keep, ready(), "Ready +++++ [Admitted Loaded Ready]");
    let before = history.status.clone();
    history.running_admission = admission(7, 20.0);
    history.check(&Step::Keep, ready(), "Ready +++++ []");
    assert_eq!(history.status, before, "a neighbour has started");
    history.running_admission = admission(6, 30.0);
    history.check(&Step::Keep, ready(), "Ready +++++ []");
    assert_eq!(history.status.admission, admission(6, 30.0));
}

#[test]
fn stalled_worker_is_not_ready_until_it_makes_progress() {
    let mut history = ReplicaHistory::new();
    let ready = || Some(worker(WorkerPhase::Ready));
    history.check(&start(), Some(progress()), "Loading +++-- [Admitted Started]");
    history.check(&Step::Keep, ready(), "Ready +++++ [Loaded Ready]");
    let stalled = Progress {
        is_stalled: true,
        ..worker(WorkerPhase::Ready)
    };
    history.check(&Step::Keep, Some(stalled), "Ready ++++- [WorkerStalled]");
    history.check(&Step::Keep, ready(), "Ready +++++ [Ready]");
}

#[test]
fn crash_loop_is_reported_with_cause() {
    let mut history = ReplicaHistory::new();
    history.check(&start(), Some(progress()), "Loading +++-- [Admitted Started]");
    let wait = Step::Wait(Wait::BackOff { until: at(99) });
    history.check(&wait, Some(ended()), "Pending +++-- [WorkerExited BackOff]");
    let ready = history
        .status
        .conditions
        .iter()
        .find(|condition| condition.type_ == "Ready")
        .unwrap();
    assert_eq!(
        ready.message,
        "back-off 2 s restarting failed worker after 2 consecutive failure(s); last failure: the worker ended with exit code 1"
    );
    assert_eq!(
        history.status.reserved_memory, None,
        "nothing is reserved during the backoff"
    );
    let again = Progress {
        restarts: 1,
        last_termination: ended().last_termination,
        ..progress()
    };
    history.check(&start(), Some(again), "Loading +++-- [Restarted]");
}

#[test]
fn refusals_set_conditions_and_events() {
    let mut history = ReplicaHistory::new();
    history.check(&Step::Wait(Wait::Probing), None, "Pending +??-- []");
    history.check(
        &refusal(RefusalKind::Temporary, "InsufficientMemory"),
        None,
        "Pending +-+-- [InsufficientMemory]",
    );
    history.check(
        &refusal(RefusalKind::Permanent, "ContextTooLong"),
        None,
        "Failed +-+-- [ContextTooLong]",
    );
    history.check(
        &refusal(RefusalKind::Model, "ModelNotFound"),
        None,
        "Failed +?--- [ModelNotFound]",
    );
    history.check(
        &refusal(RefusalKind::Model, "not a word"),
        None,
        "Failed +?--- [WorkerFailed]",
    );
    history.check(&start(), Some(progress()), "Loading +++-- [Admitted Started]");
}

#[test]
fn free_memory_in_message_does_not_change_the_status() {
    let reason = MemoryRefusal::NotFreeNow {
        requested: Bytes(2),
        free: Bytes(1),
    }
    .reason();
    let mut history = ReplicaHistory::new();
    history.check(
        &refusal(RefusalKind::Temporary, reason),
        None,
        "Pending +-+-- [MemoryInUse]",
    );
    let other = Step::Refuse(Refusal {
        kind: RefusalKind::Temporary,
        reason: reason.to_owned(),
        message: "another figure".to_owned(),
        admission: None,
    });
    let before = history.status.clone();
    history.check(&other, None, "Pending +-+-- []");
    assert_eq!(history.status, before);
}

#[test]
fn schedulers_condition_message_is_kept() {
    let mut history = ReplicaHistory::new();
    set_condition(
        &mut history.status.conditions,
        "Scheduled",
        Truth::True,
        "Bound",
        "best of 3 nodes",
        Some(1),
        at(0),
    );
    history.check(&start(), Some(progress()), "Loading +++-- [Admitted Started]");
    assert_eq!(history.status.conditions[0].message, "best of 3 nodes");
}

#[test]
fn worker_that_fails_golden_prompts_is_not_ready() {
    let mut history = ReplicaHistory::new();
    history.check(&start(), Some(progress()), "Loading +++-- [Admitted Started]");
    history.check(
        &Step::Keep,
        Some(Progress {
            golden_failure: Some("golden prompt 1 of 2: the answer is empty".to_owned()),
            ..worker(WorkerPhase::Warming)
        }),
        "Warming ++++- [Loaded GoldenPromptFailed]",
    );
}

#[test]
fn idle_since_is_the_end_of_the_last_request() {
    let look = |previous: Option<&RequestsStatus>, running: u64, completed: u64, second: i64| {
        let mut status = worker(WorkerPhase::Ready).status.unwrap();
        status.requests = RequestCounts {
            running,
            completed,
            ..RequestCounts::default()
        };
        requests(&status, previous, at(second))
    };
    let since = |status: &RequestsStatus| status.idle_since.as_ref().map(|since| since.0.as_second());
    let fresh = look(None, 0, 0, 5);
    assert_eq!(since(&fresh), Some(5));
    assert_eq!(since(&look(Some(&fresh), 0, 0, 9)), Some(5));
    let busy = look(Some(&fresh), 1, 0, 10);
    assert_eq!(since(&busy), None);
    assert_eq!(since(&look(Some(&busy), 0, 1, 12)), Some(12));
    assert_eq!(
        since(&look(Some(&fresh), 0, 1, 13)),
        Some(13),
        "a request started and finished between two passes"
    );
}
