//! Applies every manifest in examples/ and waits until it is Ready.

use crate::harness::{Fleet, eventually, repository};

#[test]
fn every_example_becomes_ready() {
    let fleet = Fleet::start();
    let Some(kubectl) = fleet.kubectl() else { return };
    let mut examples: Vec<_> = std::fs::read_dir(repository("examples"))
        .expect("the directory exists")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .collect();
    examples.sort();
    assert!(!examples.is_empty());
    for example in examples {
        let file = example.display();
        kubectl.run(&format!("apply -f {file}")).ok();
        let waited = kubectl.run(&format!("wait --for=condition=Ready -f {file} --timeout=120s"));
        assert!(
            waited.success,
            "{file}: {}\n{}",
            waited.stderr,
            kubectl.run("describe mdep,mrep").stdout
        );
        kubectl.run(&format!("delete -f {file} --timeout=60s")).ok();
    }
    eventually("nothing left", || {
        let left = kubectl.run("get mdep,mrep,mrev -o name").stdout;
        if left.is_empty() { Ok(()) } else { Err(left) }
    });
}
