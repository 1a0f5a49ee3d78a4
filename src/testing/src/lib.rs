//! Helpers for the tests of all crates. No crate of the shipped binary depends on this crate.

mod api_client;
mod certificate_request;

pub use api_client::{ApiClient, ApiResponse, Frames};
pub use certificate_request::{
    CERTIFICATE_REQUESTS, CertificateRequest, create_bootstrap_token, issued_certificate, settled_request,
};

use std::path::Path;
use std::time::Duration;

use camino::Utf8Path;

/// Longest time that a test waits for an event that must occur.
const DEADLINE: Duration = Duration::from_secs(10);

/// Returns the root directory of the repository, for fixtures and examples.
pub fn repository() -> &'static Utf8Path {
    let package = Utf8Path::new(env!("CARGO_MANIFEST_DIR"));
    package.ancestors().nth(2).expect("the package is in src/testing")
}

/// Temporary directory that is deleted when the value is dropped.
pub struct TempDir(tempfile::TempDir);

impl TempDir {
    /// Creates an empty directory. Panics if the system cannot create temporary files.
    #[expect(clippy::new_without_default, reason = "it creates a directory")]
    pub fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory for temporary files"))
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Utf8Path {
        Utf8Path::from_path(self.0.path()).expect("a UTF-8 path")
    }
}

impl AsRef<Path> for TempDir {
    fn as_ref(&self) -> &Path {
        self.0.path()
    }
}

/// Waits for `future`. Panics after [`DEADLINE`], so that a hanging test fails at the line of the
/// wait.
pub async fn within<T>(future: impl Future<Output = T>) -> T {
    let outcome = tokio::time::timeout(DEADLINE, future);
    outcome.await.expect("within the deadline")
}
