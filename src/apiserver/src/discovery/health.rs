//! `/healthz`, `/livez`, `/readyz`, `/version`.

use http::StatusCode;
use serde_json::{Value, json};

use crate::endpoints::reply::{self, PLAIN_TEXT, Reply};
use crate::endpoints::request::Query;

/// Kubernetes minor version of the API that this server implements.
const MINOR: &str = "36";

/// Health check: name, and true if it passes.
pub(crate) type Check = (&'static str, bool);

/// Handles a health endpoint. `only` selects a single check.
pub(crate) fn reply(endpoint: &str, only: Option<&str>, query: &Query, checks: &[Check]) -> Reply {
    if let Some(only) = only {
        return match checks.iter().find(|(name, _)| *name == only) {
            None => reply::bytes(StatusCode::NOT_FOUND, PLAIN_TEXT, "404 page not found\n"),
            Some((_, true)) => reply::bytes(StatusCode::OK, PLAIN_TEXT, "ok"),
            Some((_, false)) => {
                let text = "internal server error: not ready\n";
                reply::bytes(StatusCode::INTERNAL_SERVER_ERROR, PLAIN_TEXT, text)
            }
        };
    }
    let excluded: Vec<&str> = query.all("exclude").collect();
    let mut lines = String::new();
    let mut is_healthy = true;
    for (name, holds) in checks {
        if excluded.contains(name) {
            lines.push_str(&format!("[+]{name} excluded: ok\n"));
        } else if *holds {
            lines.push_str(&format!("[+]{name} ok\n"));
        } else {
            is_healthy = false;
            lines.push_str(&format!("[-]{name} failed: reason withheld\n"));
        }
    }
    match (is_healthy, query.get("verbose").is_some()) {
        (true, false) => reply::bytes(StatusCode::OK, PLAIN_TEXT, "ok"),
        (true, true) => reply::bytes(
            StatusCode::OK,
            PLAIN_TEXT,
            format!("{lines}{endpoint} check passed\n"),
        ),
        (false, _) => {
            let text = format!("{lines}{endpoint} check failed\n");
            reply::bytes(StatusCode::INTERNAL_SERVER_ERROR, PLAIN_TEXT, text)
        }
    }
}

/// Returns the document of `/version`: API version and build information.
pub(crate) fn version() -> Value {
    json!({
        "major": "1", "minor": MINOR, "emulationMajor": "1", "emulationMinor": MINOR,
        "minCompatibilityMajor": "1", "minCompatibilityMinor": "35",
        "gitVersion": format!("v1.{MINOR}.0+rooflet-{}", env!("CARGO_PKG_VERSION")),
        "gitCommit": "", "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "", "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_check_is_reported_and_can_be_excluded() {
        let checks = [("ping", true), ("bootstrap", false)];
        let code = |only: Option<&str>, query: &str| {
            reply("readyz", only, &Query::parse(query), &checks)
                .status()
                .as_u16()
        };
        assert_eq!(code(None, ""), 500);
        assert_eq!(code(None, "exclude=bootstrap"), 200);
        assert_eq!(code(Some("ping"), ""), 200);
        assert_eq!(code(Some("bootstrap"), ""), 500);
        assert_eq!(code(Some("nothing"), ""), 404);
    }
}
