//! `--bundle`: one archive for an issue: report, versions, logs, objects of the API server. Secrets
//! are removed.

mod archive;
mod redaction;

use std::fs;
use std::io::{self, Read as _, Seek as _, SeekFrom};

use anyhow::Context;
use camino::{Utf8Path, Utf8PathBuf};
use k8s_openapi::api::core::v1::Event;
use kube::api::ListParams;
use kube::{Api, Client};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use self::archive::Archive;
use self::redaction::{redacted, without_noise};
use crate::cli::ui;
use rooflet_api::v1alpha1::{FleetNode, ModelDeployment, ModelReplica, ModelRevision};
use rooflet_base::clock::Clock;
use rooflet_base::error::Chain;
use rooflet_client::{KubeconfigSource, connect};

/// Maximum bytes of a log: its end.
const MAX_LOG_BYTES: u64 = 1 << 20;
/// Maximum number of logs.
const MAX_LOGS: usize = 50;
/// Maximum number of objects of a kind.
const MAX_OBJECTS: u32 = 500;

const README: &str = "\
Created by `rooflet doctor --bundle`.

report.json    result of the checks of this machine
versions.json  version of rooflet, system, names of set ROOFLET variables
logs/          end of each log below the data directory
objects/       FleetNodes, ModelDeployments, ModelRevisions, ModelReplicas and events

Tokens, keys and passwords were replaced by [removed]. The archive still contains names of machines,
users, models and files. Read it before you publish it.
";

/// Writes the archive `path`. A part that cannot be read is named in the archive.
pub(super) async fn write(
    path: &Utf8Path,
    report: &impl Serialize,
    data_dir: &Utf8Path,
    kubeconfig: &KubeconfigSource,
) -> anyhow::Result<()> {
    let now = Clock::System.now();
    let mut archive = Archive::new(now.as_second());
    archive.add("README.txt", README.as_bytes());
    archive.add("report.json", redacted(&pretty(report)?).as_bytes());
    archive.add("versions.json", pretty(&versions(now.to_string()))?.as_bytes());
    let mut missing = Vec::new();
    for log in logs(data_dir) {
        let name = log.strip_prefix(data_dir).unwrap_or(&log);
        match end_of(&log) {
            Ok(text) => archive.add(&format!("logs/{name}"), redacted(&text).as_bytes()),
            Err(err) => missing.push(format!("{log}: {err}")),
        }
    }
    match connect(kubeconfig, &Clock::System).await {
        Ok(client) => objects(&client, &mut archive, &mut missing).await,
        Err(err) => missing.push(format!("objects of the API server: {}", Chain(&err))),
    }
    for line in &missing {
        ui::progress(&format!("not in the archive: {line}"));
    }
    let text = missing.join("\n") + "\n";
    archive.add("missing.txt", redacted(&text).as_bytes());
    let bytes = archive.finish().context("compressing the archive")?;
    fs::write(path, bytes).with_context(|| format!("--bundle: writing `{path}`"))?;
    ui::progress(&format!("saved to {path}; read it before you publish it"));
    Ok(())
}

fn versions(time: String) -> Value {
    let mut variables: Vec<String> = std::env::vars_os()
        .map(|(name, _)| name.to_string_lossy().into_owned())
        .filter(|name| name.starts_with("ROOFLET_"))
        .collect();
    variables.sort();
    json!({
        "rooflet": env!("CARGO_PKG_VERSION"),
        "architecture": std::env::consts::ARCH,
        "operatingSystem": std::env::consts::OS,
        "time": time,
        // Values may be secrets.
        "variables": variables,
    })
}

fn pretty(value: &impl Serialize) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(value).context("encoding the archive")? + "\n")
}

/// Returns the logs below a data directory, without those of links.
fn logs(data_dir: &Utf8Path) -> Vec<Utf8PathBuf> {
    let mut found = Vec::new();
    let mut directories = vec![data_dir.to_owned()];
    while let Some(directory) = directories.pop() {
        let entries = directory.read_dir_utf8().into_iter().flatten().flatten();
        for entry in entries {
            let Ok(kind) = entry.file_type() else { continue };
            let path = entry.into_path();
            // Downloaded models are large and contain no logs.
            if kind.is_dir() && path.file_name() != Some("models") {
                directories.push(path);
            } else if kind.is_file() && path.extension() == Some("log") {
                found.push(path);
            }
        }
    }
    found.sort();
    found.truncate(MAX_LOGS);
    found
}

fn end_of(path: &Utf8Path) -> io::Result<String> {
    let mut file = fs::File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(MAX_LOG_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(MAX_LOG_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Adds the objects of rooflet. Secrets and API keys are not among them.
async fn objects(client: &Client, archive: &mut Archive, missing: &mut Vec<String>) {
    add_kind::<FleetNode>(client, "fleetnodes", archive, missing).await;
    add_kind::<ModelDeployment>(client, "modeldeployments", archive, missing).await;
    add_kind::<ModelRevision>(client, "modelrevisions", archive, missing).await;
    add_kind::<ModelReplica>(client, "modelreplicas", archive, missing).await;
    add_kind::<Event>(client, "events", archive, missing).await;
}

async fn add_kind<K>(client: &Client, name: &str, archive: &mut Archive, missing: &mut Vec<String>)
where
    K: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + Serialize + std::fmt::Debug,
{
    let api: Api<K> = Api::all(client.clone());
    let listed = api.list(&ListParams::default().limit(MAX_OBJECTS)).await;
    let text = listed.map_err(anyhow::Error::from).and_then(|listed| {
        let mut items = serde_json::to_value(listed.items).context("encoding objects")?;
        without_noise(&mut items);
        pretty(&items)
    });
    match text {
        Ok(text) => archive.add(&format!("objects/{name}.json"), redacted(&text).as_bytes()),
        Err(err) => missing.push(format!("objects/{name}: {err:#}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn archive_has_logs_without_secrets_and_names_missing_parts() {
        let directory = rooflet_testing::TempDir::new();
        let data = directory.path().join("data");
        fs::create_dir_all(data.join("logs")).unwrap();
        fs::create_dir_all(data.join("agent/models/o/n")).unwrap();
        let secret = "sk-rf-0123456789";
        fs::write(data.join("logs/gateway.log"), format!("key {secret} used\n")).unwrap();
        fs::write(data.join("agent/models/o/n/x.log"), "a model\n").unwrap();
        fs::write(data.join("token"), secret).unwrap();
        let absent = KubeconfigSource::File(directory.path().join("absent"));
        let path = directory.path().join("bundle.tar.gz");
        write(&path, &json!({"checks": []}), &data, &absent)
            .await
            .unwrap();
        let tar = archive::unpacked(&fs::read(&path).unwrap());
        let text = String::from_utf8_lossy(&tar);
        assert!(text.contains("logs/logs/gateway.log") && text.contains("key [removed] used"));
        assert!(!text.contains(secret) && !text.contains("a model"));
        assert!(text.contains("objects of the API server: kubeconfig"), "{text}");
    }
}
