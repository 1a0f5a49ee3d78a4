use super::super::plan::tests::parse_case;
use super::*;
use crate::models::DownloadProblem;

/// Case of a download plan. Models are `name=GIB`, with `!` if the download has started and `?` if it is also
/// suspended, and then `-` if the replica is being deleted.
struct Case<'a> {
    /// Replicas, each with its model.
    replicas: &'a str,
    prefetches: &'a str,
    disk_gib: u64,
}

fn found(text: &str) -> (HubModel, ServableModel) {
    let (name, size) = text.split_once('=').unwrap();
    let size = size.trim_end_matches('-');
    let gib = size.trim_end_matches(['!', '?']);
    let (desired, _) = parse_case(&format!("a:away={gib}"), "");
    let mut model = desired.replicas.into_values().next().unwrap().model.unwrap();
    model.path = format!("/models/{name}").into();
    let pull = model.pull.as_mut().unwrap();
    pull.is_under_way = size.ends_with(['!', '?']);
    pull.problem = size.ends_with('?').then(|| DownloadProblem {
        reason: "DiskFull",
        message: String::new(),
        is_transient: true,
    });
    (format!("hf://o/{name}@c0").parse().unwrap(), model)
}

impl Case<'_> {
    fn plan(&self) -> DownloadPlan {
        let names = self.replicas.split_whitespace().enumerate();
        let wanted: Vec<_> = names.clone().map(|(at, _)| format!("r{at}")).collect();
        let (mut desired, observed) =
            parse_case(&format!("@disk={} {}", self.disk_gib, wanted.join(" ")), "");
        for ((_, text), wanted) in names.zip(desired.replicas.values_mut()) {
            let (source, model) = found(text);
            wanted.replica.spec.source = source.to_string();
            wanted.model = Ok(model);
            wanted.replica.deleting = text.ends_with('-');
        }
        let plan = SyncPlan::new(&desired, &observed, rooflet_base::clock::at(0));
        let prefetches = self.prefetches.split_whitespace().map(|text| {
            let (source, model) = found(text);
            let prefetch = Prefetch {
                successor: None,
                found: Ok(model),
            };
            (source, prefetch)
        });
        DownloadPlan::new(&desired, &plan, &prefetches.collect(), observed.disk_limit)
    }

    #[track_caller]
    fn check(&self, starts: &str, missing_gib: u64, needs_space: bool) {
        let plan = self.plan();
        let started: Vec<_> = plan.starts.iter().map(|model| model.name.as_str()).collect();
        assert_eq!(started.join(" "), starts);
        let missing: Bytes = plan.missing.into_values().sum();
        assert_eq!(
            (missing, plan.needs_space),
            (Bytes::gib(missing_gib), needs_space)
        );
    }
}

fn case<'a>(replicas: &'a str, prefetches: &'a str, disk_gib: u64) -> Case<'a> {
    Case {
        replicas,
        prefetches,
        disk_gib,
    }
}

#[test]
fn downloads_of_one_pass_need_their_space_together() {
    case("a=60 b=60", "", 130).check("a b", 120, true);
    case("a=60! b=60", "", 130).check("b", 120, true);
    case("a=60! b=60!", "", 130).check("", 120, false);
    // Replicas with the same model share its download.
    case("a=60 a=60", "", 130).check("a a", 60, true);
}

#[test]
fn full_disk_frees_space_again() {
    case("a=60? b=60!", "", 130).check("", 120, true);
}

#[test]
fn prefetches_and_replicas_share_the_free_space() {
    case("", "a=6 b=4 c=1", 10).check("a b", 10, true);
    case("", "a=6 b=6 c=4", 10).check("a c", 10, true);
    case("a=6", "b=6 c=4", 10).check("a c", 10, true);
    // A download that has started keeps its space.
    case("", "a=6 b=6!", 10).check("", 6, false);
    // The replica is rejected, but its download continues.
    let full = "a=1 ".repeat(10);
    let rejected = format!("{full} b=2!");
    let started = ["a"; 10].join(" ");
    case(&rejected, "c=89", 100).check(&started, 3, true);
    case(&rejected, "c=88", 100).check(&format!("{started} c"), 91, true);
    // The replica's download is also the one of the prefetch.
    case("a=6!", "a=6 b=4", 10).check("b", 10, true);
}

/// The deletion of all unused models would not complete such a download.
#[test]
fn downloads_that_do_not_fit_free_no_space() {
    case("a=12?", "", 10).check("", 0, false);
    case("", "a=12?", 10).check("", 0, false);
    // They still use the space of others.
    case("a=12?", "b=6", 10).check("", 0, false);
    case("a=6 b=6!", "c=2", 10).check("a", 6, true);
    case("", "a=12? b=6", 10).check("", 0, false);
    case("", "a=8? b=6?", 10).check("", 8, true);
    // The replica and the prefetch have the same download.
    case("a=12?", "a=12? b=1", 10).check("", 0, false);
}

#[test]
fn stopped_downloads_of_deleted_replicas_do_not_count() {
    case("a=6!-", "b=6", 10).check("b", 6, true);
    case("a=6?-", "", 10).check("", 0, false);
}
