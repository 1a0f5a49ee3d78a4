//! Kubeconfig file with one context: the server, its authority and the user's credentials.
//! Kubeconfig files of other tools are never modified.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::private_file::{self, WriteFileError};
use rooflet_base::file;
use rooflet_base::yaml;
use rooflet_base::yaml::YamlError;

/// Name of cluster, user and context.
pub const NAME: &str = "rooflet";

#[derive(Debug, thiserror::Error)]
pub enum WriteKubeconfigError {
    #[error("reading `{}`", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error(
        "`{}` was not written by rooflet ({what}) and is unchanged; choose another file, \
         and merge both with KUBECONFIG=first:second",
        path.display()
    )]
    Foreign { path: PathBuf, what: String },
    #[error("encoding the kubeconfig")]
    Encode(#[source] YamlError),
    #[error("saving the kubeconfig")]
    Write(#[source] WriteFileError),
}

impl WriteKubeconfigError {
    /// Returns true if the disk has no space left.
    pub fn is_disk_full(&self) -> bool {
        matches!(self, Self::Write(err) if err.is_disk_full())
    }
}

/// Credentials of the user.
#[derive(Clone, Copy)]
pub enum Credentials<'a> {
    /// Bearer token.
    Token(&'a str),
    /// Certificate and key in PEM.
    Certificate { certificate: &'a str, key: &'a str },
}

/// Writes the kubeconfig of a user of `server` (an `https://` URL). `authority` is one or more
/// certificates in PEM.
pub fn write(
    path: &Path,
    server: &str,
    authority: &str,
    credentials: Credentials<'_>,
) -> Result<(), WriteKubeconfigError> {
    write_extended(path, server, authority, credentials, None)
}

/// Like [`write()`], with an extension of the cluster: its name and its value. Other programs ignore
/// extensions.
pub fn write_extended(
    path: &Path,
    server: &str,
    authority: &str,
    credentials: Credentials<'_>,
    extension: Option<(&str, Value)>,
) -> Result<(), WriteKubeconfigError> {
    // Do not restrict the permissions of a file that another tool wrote.
    let existing = file::if_there(fs::read_to_string(path)).map_err(|source| WriteKubeconfigError::Read {
        path: path.to_owned(),
        source,
    })?;
    if let Some(what) = existing.as_deref().and_then(foreign) {
        return Err(WriteKubeconfigError::Foreign {
            path: path.to_owned(),
            what,
        });
    }
    let text = text(server, authority, credentials, extension).map_err(WriteKubeconfigError::Encode)?;
    // An unchanged file is not written: a server must start on a full disk.
    if existing.as_deref() == Some(&*text) && private_file::is_private(path) {
        return Ok(());
    }
    private_file::write(path, &text).map_err(WriteKubeconfigError::Write)
}

/// Returns the text that [`write_extended()`] writes. Without an authority, clients trust the authorities
/// of their system.
pub fn text(
    server: &str,
    authority: &str,
    credentials: Credentials<'_>,
    extension: Option<(&str, Value)>,
) -> Result<String, YamlError> {
    let user = match credentials {
        Credentials::Token(token) => json!({ "token": token }),
        Credentials::Certificate { certificate, key } => json!({
            "client-certificate-data": STANDARD.encode(certificate),
            "client-key-data": STANDARD.encode(key),
        }),
    };
    let mut cluster = json!({ "server": server });
    if !authority.is_empty() {
        cluster["certificate-authority-data"] = json!(STANDARD.encode(authority));
    }
    if let Some((name, value)) = extension {
        cluster["extensions"] = json!([{ "name": name, "extension": value }]);
    }
    yaml::to_string(&json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": NAME, "cluster": cluster}],
        "users": [{"name": NAME, "user": user}],
        "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": NAME}}],
        "current-context": NAME,
    }))
}

/// Returns true if the file at `path` is a kubeconfig for this server.
pub fn is_for(path: &Path, server: &str, authority: &str) -> bool {
    let config = fs::read_to_string(path)
        .ok()
        .and_then(|text| yaml::from_str::<Value>(&text).ok());
    config.is_some_and(|config| {
        let cluster = &config["clusters"][0]["cluster"];
        cluster["server"] == server && cluster["certificate-authority-data"] == STANDARD.encode(authority)
    })
}

/// Changes the server's URL in a file that [`write()`] created.
pub fn set_server(path: &Path, server: &str) -> Result<(), WriteKubeconfigError> {
    change(path, |config| {
        config["clusters"][0]["cluster"]["server"] = json!(server)
    })
}

/// Changes the server's authorities (certificates in PEM) in a file that [`write()`] created.
pub fn set_authorities(path: &Path, authorities: &str) -> Result<(), WriteKubeconfigError> {
    change(path, |config| {
        config["clusters"][0]["cluster"]["certificate-authority-data"] = json!(STANDARD.encode(authorities));
    })
}

/// Changes the user's token in a file that [`write()`] created.
pub fn set_token(path: &Path, token: &str) -> Result<(), WriteKubeconfigError> {
    change(path, |config| config["users"][0]["user"]["token"] = json!(token))
}

fn change(path: &Path, edit: impl FnOnce(&mut Value)) -> Result<(), WriteKubeconfigError> {
    let text = fs::read_to_string(path).map_err(|source| WriteKubeconfigError::Read {
        path: path.to_owned(),
        source,
    })?;
    if let Some(what) = foreign(&text) {
        return Err(WriteKubeconfigError::Foreign {
            path: path.to_owned(),
            what,
        });
    }
    let mut config: Value = yaml::from_str(&text).map_err(WriteKubeconfigError::Encode)?;
    edit(&mut config);
    let text = yaml::to_string(&config).map_err(WriteKubeconfigError::Encode)?;
    private_file::write(path, &text).map_err(WriteKubeconfigError::Write)
}

/// Returns the reason why an existing file must not be replaced.
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
