//! `backup`, `verify`, `restore` and `salvage` of `rooflet server`.
//!
//! A backup is a directory with the store, the keys and a manifest with checksums. Kubeconfigs, certificates and
//! logs are not part of it: the server writes them again.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;

use anyhow::{Context, anyhow, bail};
use camino::{Utf8Path, Utf8PathBuf};
use futures::io::AllowStdIo;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::cli::{Failure, default_data_dir, directory, ui};
use rooflet_base::clock::Clock;
use rooflet_base::error::ExitStatus;
use rooflet_client::{KubeconfigSource, connect};
use rooflet_composition::data_dir;
use rooflet_composition::server::{SECRETS_KEY, STORE, store_config};
use rooflet_store::{Contents, OpenStoreError, Store, StoreConfig, StoreLock};

/// Files with keys, besides the store. The server creates missing ones.
const KEYS: [&str; 9] = [
    SECRETS_KEY,
    "ca.pem",
    "client-ca.pem",
    "node-ca.pem",
    "ca-previous.pem",
    "client-ca-previous.pem",
    "node-ca-previous.pem",
    "service-account-key.pem",
    "token",
];
const MANIFEST: &str = "backup.json";

/// Verbs about the data of a server.
#[derive(Debug, clap::Subcommand)]
pub(in crate::cli) enum Verb {
    /// Copy store and keys to a new directory. The server may run meanwhile.
    Backup(BackupArgs),
    /// Verify the checksums and all objects of a backup, or of the data directory of a stopped server.
    Verify(VerifyArgs),
    /// Create a data directory from a backup. Nothing is overwritten.
    Restore(RestoreArgs),
    /// Keep the readable objects of a damaged store. The damaged file stays beside the new one.
    Salvage(SalvageArgs),
}

#[derive(Debug, clap::Args)]
struct Location {
    /// Directory of the store and the keys.
    #[arg(long, env = "ROOFLET_SERVER_DATA_DIR", value_parser = directory("ROOFLET_SERVER_DATA_DIR"), default_value_t = default_data_dir().join("server"))]
    data_dir: Utf8PathBuf,
    /// File of the key that encrypts Secrets. Default: `secrets-key` in the directory.
    #[arg(long, value_name = "FILE")]
    secrets_key: Option<Utf8PathBuf>,
}

/// Arguments of `rooflet server backup`.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct BackupArgs {
    /// Directory to create. It contains keys, so keep it as safe as the data directory.
    backup: Utf8PathBuf,
    #[command(flatten)]
    location: Location,
    /// Kubeconfig of the running server. Default: DATA_DIR/kubeconfig, for `rooflet up`
    /// DATA_DIR/../kubeconfig.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<Utf8PathBuf>,
}

/// Arguments of `rooflet server verify`.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct VerifyArgs {
    /// Directory of the backup. Default: the data directory.
    backup: Option<Utf8PathBuf>,
    #[command(flatten)]
    location: Location,
}

/// Arguments of `rooflet server restore`.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct RestoreArgs {
    /// Directory of the backup.
    backup: Utf8PathBuf,
    #[command(flatten)]
    location: Location,
}

/// Arguments of `rooflet server salvage`.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct SalvageArgs {
    #[command(flatten)]
    location: Location,
}

/// Content of `backup.json`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Manifest {
    /// Version of rooflet that created the backup.
    rooflet: String,
    created: Timestamp,
    /// resourceVersion of the newest write.
    resource_version: u64,
    objects: usize,
    /// SHA-256 of each file, in hexadecimal digits.
    files: BTreeMap<String, String>,
}

pub(in crate::cli) async fn run(verb: Verb) -> Result<(), Failure> {
    let outcome = match verb {
        Verb::Backup(args) => backup(&args).await,
        Verb::Verify(args) => verify(&args),
        Verb::Restore(args) => restore(&args),
        Verb::Salvage(args) => salvage(&args),
    };
    outcome.map_err(|err| Failure::new(ExitStatus::Config, err))
}

async fn backup(args: &BackupArgs) -> anyhow::Result<()> {
    let Location { data_dir, .. } = &args.location;
    if args.backup.exists() {
        bail!("{} exists; choose another directory", args.backup);
    }
    if !data_dir.join(STORE).exists() {
        let nested = data_dir.join("server");
        let remedy = match nested.join(STORE).exists() {
            true => format!("pass --data-dir {nested}"),
            false => "set --data-dir to the data directory of the server".to_owned(),
        };
        bail!("{data_dir} has no {STORE}; {remedy}");
    }
    let partial = Utf8PathBuf::from(format!("{}.partial", args.backup));
    if partial.exists() {
        fs::remove_dir_all(&partial).with_context(|| format!("removing {partial} of an earlier attempt"))?;
    }
    data_dir::create(&partial).with_context(|| format!("creating {partial}"))?;
    let copied = copy(args, &partial).await;
    let manifest = match copied {
        Ok(manifest) => manifest,
        Err(err) => {
            // The directory contains keys.
            drop(fs::remove_dir_all(&partial));
            return Err(err);
        }
    };
    fs::rename(&partial, &args.backup).with_context(|| format!("renaming {partial}"))?;
    print(format_args!(
        "{}: {} objects at resourceVersion {}; it contains the keys of the fleet",
        args.backup, manifest.objects, manifest.resource_version
    ));
    Ok(())
}

/// Copies the files of a backup to an empty directory.
async fn copy(args: &BackupArgs, to: &Utf8Path) -> anyhow::Result<Manifest> {
    let Location { data_dir, .. } = &args.location;
    let store = to.join(STORE);
    let config = config(&args.location, data_dir)?;
    match Store::open(config.clone(), Clock::System) {
        Ok(stopped) => {
            stopped.copy_to(store.as_std_path())?;
            stopped.close().await;
        }
        Err(OpenStoreError::InUse { holder, .. }) => {
            let kubeconfig = args
                .kubeconfig
                .clone()
                .unwrap_or_else(|| written_kubeconfig(data_dir));
            ui::progress(&format!("copying the store of the running server ({holder})"));
            download(kubeconfig, &store)
                .await
                .context("copying the store of the running server")?;
        }
        Err(err) => return Err(err.into()),
    }
    let copy = StoreConfig {
        path: store.as_std_path().to_owned(),
        ..config
    };
    let Contents { revision, records } = rooflet_store::contents(&copy, &Clock::System)?;
    for name in KEYS {
        let from = data_dir.join(name);
        if from.exists() {
            fs::copy(&from, to.join(name)).with_context(|| format!("copying {from}"))?;
        }
    }
    let names = KEYS
        .into_iter()
        .chain([STORE])
        .filter(|name| to.join(name).exists());
    let files = names.map(|name| Ok((name.to_owned(), checksum(&to.join(name))?)));
    let manifest = Manifest {
        rooflet: env!("CARGO_PKG_VERSION").to_owned(),
        created: Clock::System.now(),
        resource_version: revision.0,
        objects: records,
        files: files.collect::<anyhow::Result<_>>()?,
    };
    let text = serde_json::to_vec_pretty(&manifest)?;
    rooflet_base::file::replace(to.join(MANIFEST).as_std_path(), &text)
        .with_context(|| format!("writing {MANIFEST}"))?;
    Ok(manifest)
}

/// Returns the kubeconfig that the running server wrote: beside its store, or for `rooflet up` in the
/// parent directory.
fn written_kubeconfig(data_dir: &Utf8Path) -> Utf8PathBuf {
    let of_server = data_dir.join("kubeconfig");
    let of_up = data_dir.parent().map(|parent| parent.join("kubeconfig"));
    match of_up.filter(|path| !of_server.exists() && path.exists()) {
        Some(path) => path,
        None => of_server,
    }
}

async fn download(kubeconfig: Utf8PathBuf, to: &Utf8Path) -> anyhow::Result<()> {
    let client = connect(&KubeconfigSource::File(kubeconfig), &Clock::System).await?;
    let request = http::Request::get("/snapshot").body(Vec::new())?;
    let mut body = client.request_stream(request).await?;
    let file = File::options().write(true).create_new(true).mode(0o600).open(to);
    let file = file.with_context(|| format!("creating {to}"))?;
    futures::io::copy(&mut body, &mut AllowStdIo::new(file)).await?;
    Ok(())
}

fn verify(args: &VerifyArgs) -> anyhow::Result<()> {
    let Location { data_dir, .. } = &args.location;
    let (what, found) = match &args.backup {
        Some(backup) => {
            let (manifest, found) = verified(backup, &args.location)?;
            (format!("{backup} of {}", manifest.created), found)
        }
        None => {
            let config = config(&args.location, data_dir)?;
            let lock = StoreLock::acquire(&config.path).map_err(stop_first)?;
            (data_dir.to_string(), lock.contents(&config, &Clock::System)?)
        }
    };
    print(format_args!(
        "{what}: valid; {} objects at resourceVersion {}",
        found.records, found.revision
    ));
    Ok(())
}

/// Verifies a backup, and returns its manifest and the content of its store.
fn verified(backup: &Utf8Path, location: &Location) -> anyhow::Result<(Manifest, Contents)> {
    let path = backup.join(MANIFEST);
    let text = fs::read(&path).with_context(|| format!("reading {path}; is {backup} a backup?"))?;
    let manifest: Manifest = serde_json::from_slice(&text).with_context(|| path.to_string())?;
    for (name, expected) in &manifest.files {
        if Utf8Path::new(name).file_name() != Some(name.as_str()) {
            bail!("{path}: `{name}` is not a file name");
        }
        let file = backup.join(name);
        if checksum(&file)? != *expected {
            bail!("{file} is damaged: its SHA-256 differs from that in {MANIFEST}; use another backup");
        }
    }
    let contents = rooflet_store::contents(&config(location, backup)?, &Clock::System)?;
    Ok((manifest, contents))
}

fn restore(args: &RestoreArgs) -> anyhow::Result<()> {
    let Location { data_dir, .. } = &args.location;
    let (manifest, _) = verified(&args.backup, &args.location)?;
    let is_free = match fs::read_dir(data_dir) {
        Ok(mut entries) => entries.next().is_none(),
        Err(err) => err.kind() == io::ErrorKind::NotFound,
    };
    if !is_free {
        bail!("{data_dir} is not empty; stop the server and move the directory away, or set --data-dir");
    }
    let partial = Utf8PathBuf::from(format!("{data_dir}.partial"));
    if partial.exists() {
        fs::remove_dir_all(&partial).with_context(|| format!("removing {partial} of an earlier attempt"))?;
    }
    data_dir::create(&partial).with_context(|| format!("creating {partial}"))?;
    for name in manifest.files.keys().filter(|name| *name != STORE) {
        fs::copy(args.backup.join(name), partial.join(name)).with_context(|| format!("copying {name}"))?;
    }
    let store = partial.join(STORE);
    let backup = config(&args.location, &args.backup)?;
    let restored = rooflet_store::restore(&backup, store.as_std_path(), &Clock::System)?;
    fs::rename(&partial, data_dir).with_context(|| format!("renaming {partial}"))?;
    print(format_args!(
        "{data_dir}: {} objects as of {}; start the server with the flags that it had",
        restored.records, manifest.created
    ));
    Ok(())
}

fn salvage(args: &SalvageArgs) -> anyhow::Result<()> {
    let Location { data_dir, .. } = &args.location;
    let config = config(&args.location, data_dir)?;
    let lock = StoreLock::acquire(&config.path).map_err(stop_first)?;
    let path = data_dir.join(STORE);
    if let Ok(found) = lock.contents(&config, &Clock::System) {
        print(format_args!(
            "{path} is not damaged ({} objects); nothing was changed",
            found.records
        ));
        return Ok(());
    }
    let created = Clock::System.now().strftime("%Y%m%dT%H%M%SZ").to_string();
    let (new, damaged) = (
        data_dir.join(format!("{STORE}.salvaged")),
        data_dir.join(format!("{STORE}.damaged-{created}")),
    );
    if new.exists() {
        fs::remove_file(&new).with_context(|| format!("removing {new} of an earlier attempt"))?;
    }
    let salvaged = rooflet_store::salvage(&lock, &config, new.as_std_path())?;
    fs::rename(&path, &damaged).with_context(|| format!("renaming {path}"))?;
    fs::rename(&new, &path).with_context(|| format!("renaming {new}"))?;
    print(format_args!(
        "{path}: {} objects; the damaged file is {damaged}",
        salvaged.contents.records
    ));
    for key in &salvaged.lost {
        print(format_args!("lost: {key}"));
    }
    if salvaged.is_incomplete {
        print(format_args!(
            "A part of the file was not readable: objects may be missing or old, and deleted objects may exist \
             again. Compare with your manifests before you start the server."
        ));
    }
    Ok(())
}

/// Returns the configuration of the store in `directory`. The key must exist if the store does.
fn config(location: &Location, directory: &Utf8Path) -> anyhow::Result<StoreConfig> {
    let key = location.secrets_key.clone();
    let key = key.unwrap_or_else(|| directory.join(SECRETS_KEY));
    if !key.exists() {
        return Err(anyhow!(
            "{key} does not exist; set --secrets-key to the key that encrypts the Secrets of this store"
        ));
    }
    Ok(store_config(directory, &key, false)?)
}

fn stop_first(err: OpenStoreError) -> anyhow::Error {
    if let OpenStoreError::InUse { holder, .. } = err {
        return anyhow!(
            "a server uses the store ({holder}); stop it first, or verify a backup: `rooflet server backup DIR`"
        );
    }
    err.into()
}

fn checksum(path: &Utf8Path) -> anyhow::Result<String> {
    let mut hasher = Sha256::new();
    let mut file = File::open(path).with_context(|| format!("reading {path}"))?;
    io::copy(&mut file, &mut hasher).with_context(|| format!("reading {path}"))?;
    Ok(hex::encode(hasher.finalize()))
}

fn print(line: std::fmt::Arguments<'_>) {
    ui::output(&format!("{line}\n"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_testing::TempDir;

    #[test]
    fn kubeconfig_is_beside_the_store_or_in_the_directory_of_up() {
        let directory = TempDir::new();
        let up = directory.path();
        let store = up.join("server");
        fs::create_dir(&store).expect("a new directory");
        assert_eq!(written_kubeconfig(&store), store.join("kubeconfig"));
        fs::write(up.join("kubeconfig"), "").expect("writable");
        assert_eq!(written_kubeconfig(&store), up.join("kubeconfig"));
        fs::write(store.join("kubeconfig"), "").expect("writable");
        assert_eq!(written_kubeconfig(&store), store.join("kubeconfig"));
    }
}
