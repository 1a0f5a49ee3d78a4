//! docs/metrics.md lists every metric that the sources register, and no other.

use std::collections::BTreeSet;

use super::krate::Crate;

const PAGE: &str = "docs/metrics.md";
/// Metrics that only a test registers.
const OF_TESTS: &[&str] = &["rooflet_test_total"];

pub(super) fn faults(page: &str, crates: &[Crate]) -> Vec<String> {
    let (mut own, mut vllm) = (String::new(), String::new());
    for file in crates.iter().flat_map(|krate| &krate.files) {
        let is = |name: &str| file.path.ends_with(name);
        if is("metrics.rs") || is("runtime.rs") {
            own.push_str(&file.text);
        }
        if is("metrics/vllm.rs") {
            vllm.push_str(&file.text);
        }
    }
    let mut registered = names(&own, "\"", "rooflet_");
    registered.retain(|name| !OF_TESTS.contains(&name.as_str()));
    let listed = names(page, "`", "rooflet_");
    let lacking = registered
        .difference(&listed)
        .map(|name| format!("{PAGE}: lacks {name}"));
    let unknown = listed
        .difference(&registered)
        .map(|name| format!("{PAGE}: lists {name}, which no source registers"));
    let foreign = names(page, "`vllm:", "").into_iter().filter_map(|name| {
        let known = vllm.contains(&format!("\"{name}\""));
        (!known).then(|| format!("{PAGE}: lists vllm:{name}, which no source registers"))
    });
    lacking.chain(unknown).chain(foreign).collect()
}

/// Names between `mark` and the next character that no metric's name has.
fn names(text: &str, mark: &str, prefix: &str) -> BTreeSet<String> {
    let parts = text.split(mark).skip(1);
    let names = parts.map(|part| {
        let is_in_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        part.split(|c| !is_in_name(c)).next().unwrap_or_default()
    });
    let whole = |name: &&str| name.starts_with(prefix) && !name.ends_with('_');
    names.filter(whole).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_metrics_without_a_line_and_lines_without_a_metric() {
        let text = "Opts::new(\"rooflet_a_total\", \"A.\"); Opts::new(\"rooflet_b\", \"B.\")";
        let krate = Crate::of_texts("it", "", &[("metrics.rs", text)]);
        assert_eq!(faults("| `rooflet_a_total` | `rooflet_b` |", &[krate]), [""; 0]);
        let krate = Crate::of_texts("it", "", &[("metrics.rs", text)]);
        assert_eq!(faults("| `rooflet_a_total` | `rooflet_c` |", &[krate]).len(), 2);
    }
}
