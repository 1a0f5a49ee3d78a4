use super::*;
use rooflet_api::v1alpha1::CapacityPlanSpec;
use rooflet_scheduler::capacity;

fn verdict(spec: &str) -> PlanVerdict {
    let spec: CapacityPlanSpec = rooflet_base::yaml::from_str(spec).unwrap();
    capacity::answer(&capacity::question(&spec, Vec::new(), &[], &|_| None).unwrap())
}

fn page(spec: &str) -> String {
    report(&verdict(spec), Timestamp::UNIX_EPOCH)
}

const HOSTILE: &str = "demand: [{name: '<img src=x onerror=1>', model: qwen3-8b, quantization: mlx4, requestsPerSecond: 0.05, promptTokens: 500, answerTokens: 100, objectives: {decodeTokensPerSecond: 2}}]\n\
                       fleet: {macs: [{name: '\"><script>1</script>', chip: M4, memory: 16Gi, count: 2}]}\n\
                       catalogue: [{name: '</style><b>', chip: M4 Pro, memory: 24Gi, price: 1399}]";

#[test]
fn report_has_no_scripts_and_loads_nothing() {
    let page = page(HOSTILE);
    for forbidden in [
        "<script",
        "<img",
        "</style><b>",
        "http://",
        "https://",
        "url(",
        "@import",
        " src=x onerror=1>",
    ] {
        let found = page
            .find(forbidden)
            .map(|at| &page[at..(at + 80).min(page.len())]);
        assert_eq!(found, None, "{forbidden}");
    }
    assert!(page.contains("&lt;img src=x onerror=1&gt;"));
}

/// Checks that every element is closed in the right order.
fn assert_nested(page: &str) {
    const VOID: [&str; 1] = ["meta"];
    let mut open: Vec<&str> = Vec::new();
    for tag in page.split('<').skip(1) {
        let tag = tag.split('>').next().unwrap();
        let name = tag.split([' ', '/']).next().unwrap();
        if let Some(closed) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(closed));
        } else if !tag.starts_with('!') && !tag.ends_with('/') && !VOID.contains(&name) {
            open.push(name);
        }
    }
    assert_eq!(open, Vec::<&str>::new());
}

#[test]
fn report_is_well_formed_for_any_verdict() {
    for spec in [
        HOSTILE.to_owned(),
        HOSTILE.replace("qwen3-8b", "llama3-70b"),
        HOSTILE.replace("requestsPerSecond: 0.05", "requestsPerSecond: 50"),
        HOSTILE.replace("count: 2", "count: 0"),
    ] {
        assert_nested(&page(&spec));
    }
}

#[test]
fn headline_matches_the_verdict() {
    let fits = verdict(HOSTILE);
    assert!(fits.feasible);
    assert!(
        headline(&fits).starts_with("These 2 Macs carry the demand"),
        "{}",
        headline(&fits)
    );
    let busy = verdict(&HOSTILE.replace("requestsPerSecond: 0.05", "requestsPerSecond: 50"));
    assert!(
        headline(&busy).starts_with("These 2 Macs do not carry the demand, only 0 %"),
        "{}",
        headline(&busy)
    );
    let large = verdict(&HOSTILE.replace("model: qwen3-8b", "model: llama3-70b"));
    assert!(
        headline(&large).contains("no Mac can serve <img"),
        "{}",
        headline(&large)
    );
}

/// A large fleet is drawn by class, and models without an own color are grey.
#[test]
fn large_fleet_stays_readable() {
    let demand: Vec<String> = (0..60)
        .map(|index| {
            format!(
                "{{name: model-{index}, model: qwen3-{}, quantization: mlx4, requestsPerSecond: 0.{}5, promptTokens: 300, answerTokens: 60}}",
                ["0.6b", "4b", "8b", "14b"][index % 4],
                index % 9 + 1
            )
        })
        .collect();
    let spec = format!(
        "demand: [{}]\nfleet: {{macs: [{{chip: M4, memory: 16Gi, count: 60}}, {{chip: M4 Pro, memory: 48Gi, count: 40}}]}}",
        demand.join(", ")
    );
    let verdict = verdict(&spec);
    let page = report(&verdict, Timestamp::UNIX_EPOCH);
    assert_nested(&page);
    assert!(page.contains("60 × M4 16 GB (mean)") && page.contains("52 other models"));
    assert!(page.contains("35 more models"));
}
