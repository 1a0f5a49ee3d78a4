//! Tests of the plan of a sync pass.

mod notation;
mod properties;

use self::notation::now;
use super::super::step::longest_answer;
use super::*;
use rooflet_api::v1alpha1::{ContextWorking, DiskWorking};
use rooflet_base::clock::since;

pub(in crate::sync) use self::notation::{check, parse_case};

#[test]
fn starts_desired_replicas_and_stops_others() {
    check("", "", "");
    check("a", "", "a=start(1.0 GiB)");
    check("a", "a", "a=keep");
    check("", "a", "a=stop(Deleted)");
    check("a:deleting", "a", "a=stop(Deleted)");
    check("a:deleting", "a:worker=stopping", "a=await");
    check("a:deleting", "a:worker=none", "a=release");
    check("a:deleting", "", "a=release");
    check("", "a:worker=none", "a=release");
}

#[test]
fn changed_replica_stops_before_it_starts() {
    check("a:spec=b", "a:spec=a", "a=stop(Replaced)");
    check("a:uid=v", "a:uid=u", "a=stop(Replaced)");
    check("a:uid=v", "a:uid=u:worker=stopping", "a=await");
    check("a:uid=v", "a:uid=u:worker=none", "a=start(1.0 GiB)");
}

#[test]
fn longest_answer_fills_the_whole_context() {
    let seconds = |tokens, rate| longest_answer(tokens, rate).as_secs();
    assert_eq!(seconds(4096, Some(20.0)), 204);
    assert_eq!(seconds(1_000_000, Some(20.0)), 3600);
    assert_eq!(seconds(4096, None), 3600);
    assert_eq!(seconds(4096, Some(0.0)), 3600);
}

#[test]
fn older_generation_never_replaces_newer_one() {
    check("a:spec=b:gen=1", "a:spec=a:gen=2", "a=keep");
    check("a:spec=b:gen=1", "a:spec=a:gen=2:worker=none", "a=wait(Stale)");
    check("a:spec=b:gen=3", "a:spec=a:gen=2", "a=stop(Replaced)");
    check("a:spec=b:gen=1:uid=v", "a:spec=a:gen=2:uid=u", "a=stop(Replaced)");
}

#[test]
fn crashed_worker_waits_for_its_backoff() {
    check("a", "a:worker=none:backoff=4", "a=backoff(4s)");
    check("a", "a:worker=none:backoff=0", "a=start(1.0 GiB)");
    check("a", "a:worker=none:backoff=300", "a=backoff(300s)");
    // The clock was set back since the crash.
    check("a", "a:worker=none:backoff=301", "a=start(1.0 GiB)");
    check("a:spec=b", "a:worker=none:spec=a:backoff=4", "a=start(1.0 GiB)");
    check("a:uid=v", "a:worker=none:uid=u:backoff=4", "a=start(1.0 GiB)");
    check("a", "a:worker=hung", "a=stop(Unresponsive)");
}

#[test]
fn bad_model_is_retried_after_file_change_or_delay() {
    check(
        "a",
        "a:worker=none:bad=7,10:backoff=-1",
        "a=refuse(Model/CorruptWeights)",
    );
    check("a", "a:worker=none:bad=8,10", "a=start(1.0 GiB)");
    check("a", "a:worker=none:bad=7,300", "a=start(1.0 GiB)");
    // The clock was set back since the rejection.
    check("a", "a:worker=none:bad=7,-299", "a=refuse(Model/CorruptWeights)");
    check("a", "a:worker=none:bad=7,-300", "a=start(1.0 GiB)");
    check("a:model=missing", "", "a=refuse(Model/ModelNotFound)");
    check("a:model=missing", "a", "a=keep");
    check("a:ctx=1025", "", "a=refuse(Permanent/ContextTooLong)");
    check("a:kv=8:sinks", "", "a=refuse(Permanent/KvCacheBitsUnsupported)");
    check("a:kv=16:sinks", "", "a=start(1.0 GiB)");
}

#[test]
fn context_refusal_reports_request_and_suggestion() {
    let admission = |wanted: &str| {
        let (desired, observed) = parse_case(wanted, "");
        let plan = SyncPlan::new(&desired, &observed, now());
        match plan.steps.into_values().next() {
            Some(Step::Start(start)) => *start.admission,
            Some(Step::Refuse(refusal)) => *refusal.admission.expect("with its working"),
            other => panic!("{other:?}"),
        }
    };
    let context = |asked_tokens, fits_tokens| {
        Some(ContextWorking {
            asked_tokens,
            model_tokens: 1024,
            fits_tokens,
        })
    };
    assert_eq!(admission("a:ctx=512").context, context(512, Some(1024)));
    // 1024 tokens fill the whole GiB.
    assert_eq!(admission("a @allocatable=1").context, context(1024, Some(1024)));
    assert_eq!(admission("a:gib=2 @allocatable=1").context, context(1024, None));
    let too_long = admission("a:ctx=1025");
    assert_eq!(too_long.context, context(1025, Some(1024)));
    assert!(!too_long.admitted);
    assert_eq!(too_long.binding.as_deref(), Some("Context"));
    assert_eq!(too_long.suggestions, ["spec.serving.contextTokens: 1024"]);
    assert_eq!(
        too_long.refusals,
        [
            "spec.serving.contextTokens is 1025, but the model supports at most 1024: lower it. It would be admitted with \
          spec.serving.contextTokens: 1024"
        ]
    );
    // No context length helps if the weights do not fit.
    assert_eq!(admission("a:gib=2:ctx=1025 @allocatable=1").suggestions, [""; 0]);
}

#[test]
fn memory_warning_prevents_starts_and_stops_nothing() {
    check("a @warning", "", "a=refuse(Temporary/NodeMemoryPressure)");
    check("a:overridden @warning", "", "a=start(1.0 GiB)");
    check("a @warning", "a", "a=keep");
}

#[test]
fn quarantined_model_starts_only_with_override() {
    check("a @quarantined=7", "", "a=refuse(Permanent/Quarantined)");
    check("a:overridden @quarantined=7", "", "a=start(1.0 GiB)");
    check("a @quarantined=8", "", "a=start(1.0 GiB)");
    // A worker that was adopted did not crash the machine.
    check("a @quarantined=7", "a", "a=keep");
}

#[test]
fn model_that_may_have_crashed_the_machine_is_held_back() {
    check("a @held-back=7", "", "a=refuse(Temporary/CheckingForPanic)");
    check("a:overridden @held-back=7", "", "a=start(1.0 GiB)");
    check("a @held-back=8", "", "a=start(1.0 GiB)");
    check("a @held-back=7", "a", "a=keep");
}

#[test]
fn leaked_wired_memory_prevents_starts() {
    check("a @leaked=3", "", "a=refuse(Temporary/MemoryStaysWired)");
    check(
        "a @leaked=3",
        "a:worker=none",
        "a=refuse(Temporary/MemoryStaysWired)",
    );
    check("a @leaked=3", "a", "a=keep");
    check("a:overridden @leaked=3", "", "a=start(1.0 GiB)");
}

#[test]
fn memory_is_never_reserved_twice() {
    check("a:gib=11", "", "a=refuse(Permanent/ExceedsNodeMemory)");
    check(
        "a:gib=6 b:gib=6",
        "",
        "a=start(6.0 GiB) b=refuse(Temporary/InsufficientMemory)",
    );
    check(
        "a:gib=6 b:gib=6",
        "b:gib=6",
        "a=refuse(Temporary/InsufficientMemory) b=keep",
    );
    check(
        "a:gib=6",
        "b:gib=6",
        "a=refuse(Temporary/InsufficientMemory) b=stop(Deleted)",
    );
    check(
        "a:gib=6",
        "b:gib=6:worker=stopping",
        "a=refuse(Temporary/InsufficientMemory) b=await",
    );
    check("a:gib=6", "b:gib=6:worker=none", "a=start(6.0 GiB) b=release");
    check("@free=3 a:gib=4", "", "a=refuse(Temporary/MemoryInUse)");
    check(
        "@free=9 a:gib=4 b:gib=6",
        "",
        "a=start(4.0 GiB) b=refuse(Temporary/MemoryInUse)",
    );
}

#[test]
fn disk_is_never_reserved_twice() {
    check("a:disk=10", "", "a=start(1.0 GiB)");
    check("a:disk=11", "", "a=refuse(Temporary/InsufficientDisk)");
    check("a:disk=11:overridden", "", "a=start(1.0 GiB)");
    check(
        "a:disk=6 b:disk=6 c",
        "",
        "a=start(1.0 GiB) b=refuse(Temporary/InsufficientDisk) c=start(1.0 GiB)",
    );
    check(
        "a:disk=6",
        "b:disk=6:worker=stopping",
        "a=refuse(Temporary/InsufficientDisk) b=await",
    );
    check("a:disk=6", "b:disk=6:worker=none", "a=start(1.0 GiB) b=release");
    check(
        "@disk=0 a:disk=0 b:disk=1",
        "",
        "a=start(1.0 GiB) b=refuse(Temporary/InsufficientDisk)",
    );

    let (desired, observed) = parse_case("a:disk=6", "");
    let plan = SyncPlan::new(&desired, &observed, now());
    let Some(Step::Start(start)) = plan.steps.values().next() else {
        panic!("{plan:?}");
    };
    let disk = DiskWorking {
        required_bytes: 6 << 30,
        download_bytes: None,
        limit_bytes: Some(10 << 30),
        free_bytes: Some(10 << 30),
    };
    assert_eq!(start.admission.disk, Some(disk));
    // Memory that other programs use later appears as a node condition and stops no replica.
    let (desired, observed) = parse_case("@disk=1 a:disk=6", "a:disk=6");
    let plan = SyncPlan::new(&desired, &observed, now());
    let running_admission = plan.running_admission.values().next().expect("it runs");
    assert_eq!(running_admission.refusals, Vec::<String>::new());
}

#[test]
fn model_is_admitted_before_its_download() {
    check("a:away=3", "", "a=pull(1.0 GiB)");
    check(
        "a:model=asked",
        "",
        "a=wait(Artifacts(ModelProblem { reason: \"AskingHub\", message: \"m\", is_transient: true }))",
    );
    // A download reserves its memory and disk space.
    check(
        "a:away=1:gib=6 b:gib=6",
        "",
        "a=pull(6.0 GiB) b=refuse(Temporary/InsufficientMemory)",
    );
    check(
        "a:away=6 b:away=6",
        "",
        "a=pull(1.0 GiB) b=refuse(Temporary/InsufficientDisk)",
    );
    check(
        "a:away=6 b:disk=6",
        "",
        "a=pull(1.0 GiB) b=refuse(Temporary/InsufficientDisk)",
    );
    check(
        "a:away=6 b:disk=6",
        "b:disk=6",
        "a=refuse(Temporary/InsufficientDisk) b=keep",
    );
    check("a:away=3:gib=99", "", "a=refuse(Permanent/ExceedsNodeMemory)");
    check("a:away=11", "", "a=refuse(Temporary/InsufficientDisk)");
    // Neither a deleted replica nor a stopping agent starts a download.
    check("a:away=3:deleting", "", "a=release");
    check("@stopping a:away=3", "", "a=wait(AgentStopping)");
    let (desired, observed) = parse_case("a:away=11:disk=2", "");
    let plan = SyncPlan::new(&desired, &observed, now());
    let Some(Step::Refuse(refusal)) = plan.steps.values().next() else {
        panic!("{plan:?}");
    };
    assert!(
        refusal.message.starts_with(
            "11.0 GiB of the model are to be downloaded, spec.serving.kvCache.diskSize is 2.0 GiB, and 10.0 GiB of the 10.0 GiB"
        ),
        "{}",
        refusal.message
    );
    // A smaller cache does not free enough disk for the model.
    assert!(
        !refusal.message.contains("It would be admitted"),
        "{}",
        refusal.message
    );
}

#[test]
fn probe_and_stopping_agent_prevent_starts() {
    check("@probing a b", "b", "a=wait(Probing) b=keep");
    check(
        "@stopping a b",
        "b",
        "a=wait(AgentStopping) b=stop(AgentStopping)",
    );
}

#[test]
fn refusal_suggests_settings_that_fit() {
    let (desired, observed) = parse_case("@allocatable=1 a:gib=2", "");
    let plan = SyncPlan::new(&desired, &observed, now());
    let Some(Step::Refuse(refusal)) = plan.steps.values().next() else {
        panic!("{plan:?}")
    };
    assert!(
        refusal
            .message
            .starts_with("it needs 2.0 GiB, and models may use 1.0 GiB of this node"),
        "{refusal:?}"
    );
    let (desired, observed) = parse_case("@allocatable=1 a:gib=1", "");
    let mut tight = observed.clone();
    tight.memory.allocatable = Bytes::gib(1) - Bytes(24 << 10);
    let plan = SyncPlan::new(&desired, &tight, now());
    let Some(Step::Refuse(refusal)) = plan.steps.values().next() else {
        panic!("{plan:?}")
    };
    assert!(
        refusal
            .message
            .ends_with("It would be admitted with spec.serving.contextTokens: 768"),
        "{refusal:?}"
    );
}

#[test]
fn bandwidth_is_never_reserved_twice() {
    // Four GiB per token: about 55 tokens/s with the chip to itself.
    let model = "gib=4:decode=40";
    check(
        &format!("@m4pro a:{model} b:{model}"),
        "",
        "a=start(4.0 GiB) b=refuse(Temporary/InsufficientBandwidth)",
    );
    check(
        &format!("@m4pro a:{model} b:{model}"),
        "b:gib=4",
        "a=refuse(Temporary/InsufficientBandwidth) b=keep",
    );
    check(
        "@m4pro a:gib=4:decode=99",
        "",
        "a=refuse(Permanent/ObjectiveOutOfReach)",
    );
    check(&format!("a:{model}"), "", "a=refuse(Temporary/NotProbed)");
    check(
        &format!("@m4pro a:{model} b:{model}:overridden"),
        "a:gib=4",
        "a=keep b=start(4.0 GiB)",
    );
}

#[test]
fn worker_without_a_readable_model_or_an_object_keeps_its_share() {
    let refused = "a=keep b=refuse(Temporary/InsufficientBandwidth)";
    let b = "b:gib=4:decode=40";
    check(
        &format!("@m4pro a:model=missing {b}"),
        "a:gib=4:share=60",
        refused,
    );
    check(
        &format!("@m4pro {b}"),
        "a:gib=4:share=60:worker=stopping",
        &refused.replace("keep", "await"),
    );
    check(
        &format!("@m4pro a:model=missing {b}"),
        "a:gib=4",
        "a=keep b=start(4.0 GiB)",
    );
    let (desired, observed) = parse_case(
        "a:model=missing:decode=40 c",
        "a:share=60 b:share=20 c d:worker=none",
    );
    let plan = SyncPlan::new(&desired, &observed, now());
    let shares: Vec<_> = plan
        .running_shares
        .iter()
        .map(|(key, share)| (key.name.as_str(), *share))
        .collect();
    assert_eq!(shares, [("a", Some(0.6)), ("b", Some(0.2)), ("c", None)]);
    assert!(plan.reserved_share >= 0.8, "{}", plan.reserved_share);
}

#[test]
fn objective_raised_after_the_start_is_assessed_again() {
    let broken = |wanted: &str, seen: &str| {
        let (desired, observed) = parse_case(wanted, seen);
        let plan = SyncPlan::new(&desired, &observed, now());
        let judged = plan.running_admission.into_iter().map(|(key, status)| {
            assert!(status.admitted, "{key} runs");
            (key.name, status.refusals.len())
        });
        judged.collect::<Vec<_>>()
    };
    let both = |a, b| vec![("a".to_owned(), a), ("b".to_owned(), b)];
    let running = "a:gib=4 b:gib=4";
    assert_eq!(broken("@m4pro a:gib=4:decode=40 b:gib=4", running), both(0, 0));
    assert_eq!(
        broken("@m4pro a:gib=4:decode=40 b:gib=4:decode=40", running),
        both(1, 1)
    );
    // Memory that other programs use now does not affect running replicas.
    assert_eq!(broken("@free=0 a:gib=4 b:gib=4", running), both(0, 0));
    assert_eq!(broken("@allocatable=7 a:gib=4 b:gib=4", running), both(1, 1));
    assert_eq!(broken("@m4pro a:gib=4", "a:gib=4:worker=none"), vec![]);
}

#[test]
fn next_deadline_is_the_earliest_backoff() {
    let (desired, observed) = parse_case("a b c", "a:worker=none:backoff=9 b:worker=none:backoff=4 c");
    let plan = SyncPlan::new(&desired, &observed, now());
    assert_eq!(plan.next_deadline().map(|at| since(at, now()).as_secs()), Some(4));
}
