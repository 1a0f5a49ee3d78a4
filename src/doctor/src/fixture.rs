//! Recordings of Macs, for tests.

use std::fs;
use std::sync::Arc;

use rooflet_host::Host;
use rooflet_host::facts::RecordedFacts;

/// Returns a recording of `src/host/fixtures/facts`.
pub(super) fn recorded(name: &str) -> RecordedFacts {
    let path = format!(
        "{}/../host/fixtures/facts/{name}.json",
        env!("CARGO_MANIFEST_DIR")
    );
    RecordedFacts::parse(&fs::read_to_string(path).unwrap()).unwrap()
}

pub(super) fn host(facts: RecordedFacts) -> Host {
    Host::Recorded(Arc::new(facts))
}
