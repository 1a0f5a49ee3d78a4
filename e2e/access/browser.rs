//! The web page in a real browser, with simulated Macs. `cargo xtask browser` provides what this test
//! needs, and `src/web/page/browser/walk.mjs` has its steps.

use std::process::Command;

use crate::harness::{not_run, repository, rooflet};

#[test]
fn every_view_and_action_works_in_a_browser() {
    let Some(chromium) = std::env::var_os("ROOFLET_CHROMIUM").filter(|path| !path.is_empty()) else {
        return not_run("Chromium and the packages of the page: cargo xtask browser");
    };
    let status = Command::new("node")
        .arg("browser/walk.mjs")
        .current_dir(repository("src/web/page"))
        .env("ROOFLET", rooflet())
        .env("CHROMIUM", chromium)
        .status();
    let status = status.expect("node starts");
    assert!(status.success(), "steps failed, see above");
}
