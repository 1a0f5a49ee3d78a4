//! The kubeconfig file: where the server is, whom to trust, what to say. Its own file, with one
//! context; somebody else's is never touched.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::private_file::{self, WriteFileError};
use super::{Authority, Token};
use crate::file;
use crate::yaml::{self, YamlError};

/// Of its cluster, its user and its context.
pub(crate) const NAME: &str = "rooflet";

#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteKubeconfigError {
    #[error("reading `{}`", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error(
        "`{}` is not a kubeconfig that rooflet wrote ({what}); it was left alone; name a file of its own, \
         and join them with KUBECONFIG=first:second",
        path.display()
    )]
    Foreign { path: PathBuf, what: String },
    #[error("encoding the kubeconfig")]
    Encode(#[source] YamlError),
    #[error("saving the kubeconfig")]
    Write(#[source] WriteFileError),
}

/// Writes the kubeconfig of the administrator of `server` (an `https://` URL).
pub(crate) fn write(
    path: &Path,
    server: &str,
    authority: &Authority,
    token: &Token,
) -> Result<(), WriteKubeconfigError> {
    // Not as a secret of ours: if it is somebody else's, its permissions are too.
    let kept = file::if_there(fs::read_to_string(path)).map_err(|source| WriteKubeconfigError::Read {
        path: path.to_owned(),
        source,
    })?;
    if let Some(what) = kept.as_deref().and_then(foreign) {
        return Err(WriteKubeconfigError::Foreign {
            path: path.to_owned(),
            what,
        });
    }
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": NAME, "cluster": {
            "server": server,
            "certificate-authority-data": STANDARD.encode(authority.certificate_pem()),
        }}],
        "users": [{"name": NAME, "user": {"token": token.reveal()}}],
        "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": NAME}}],
        "current-context": NAME,
    });
    let text = yaml::to_string(&config).map_err(WriteKubeconfigError::Encode)?;
    private_file::write(path, &text).map_err(WriteKubeconfigError::Write)
}

/// What in an existing file is not ours to replace.
fn foreign(text: &str) -> Option<String> {
    if text.trim().is_empty() {
        return None;
    }
    let Ok(config) = yaml::from_str::<Value>(text) else {
        return Some("it is not YAML".to_owned());
    };
    if config["kind"] != "Config" {
        return Some("its kind is not Config".to_owned());
    }
    ["clusters", "users", "contexts"].into_iter().find_map(|list| {
        let entries = config[list].as_array().map(Vec::as_slice).unwrap_or_default();
        let other = entries.iter().find(|entry| entry["name"] != NAME)?;
        Some(format!("it has {} in its {list}", other["name"]))
    })
}
