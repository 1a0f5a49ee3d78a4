//! Access to objects of an API server.

pub(super) mod preview;

use anyhow::anyhow;
use camino::Utf8PathBuf;
use kube::{Client, CustomResourceExt, Resource};

use super::{Failure, default_kubeconfig};
use rooflet_base::clock::Clock;
use rooflet_base::error::ExitStatus;
use rooflet_client::{KubeconfigSource, connect};

/// Connects to the server of a kubeconfig, or of the default one.
pub(super) async fn client(kubeconfig: Option<Utf8PathBuf>) -> Result<Client, Failure> {
    let source = kubeconfig.map_or_else(default_kubeconfig, KubeconfigSource::File);
    connect(&source, &Clock::System)
        .await
        .map_err(|err| Failure::new(ExitStatus::Config, err))
}

/// Returns the explicit namespace, otherwise the namespace of the kubeconfig's context.
pub(super) fn namespace(given: Option<String>, client: &Client) -> String {
    given.unwrap_or_else(|| client.default_namespace().to_owned())
}

/// Parses NAME or KIND/NAME, as kubectl accepts them.
pub(super) fn name_of<K>(text: &str) -> Result<&str, Failure>
where
    K: Resource<DynamicType = ()> + CustomResourceExt,
{
    let (kind, name) = match text.split_once('/') {
        Some(parts) => parts,
        None if text.is_empty() => ("", ""),
        None => return Ok(text),
    };
    let (singular, plural) = (K::kind(&()).to_lowercase(), K::plural(&()));
    let suffix = format!(".{}", K::group(&()));
    let long = kind.strip_suffix(&suffix).unwrap_or(kind);
    let is_kind = long == singular || long == plural || K::shortnames().contains(&kind);
    if is_kind && !name.is_empty() {
        return Ok(name);
    }
    let short = K::shortnames().first().copied().unwrap_or(&singular);
    Err(Failure::new(
        ExitStatus::Usage,
        anyhow!("`{text}` is not a {singular}: use {short}/NAME; `kubectl get {short}` lists them"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_api::v1alpha1::{ModelDeployment, ModelReplica};

    #[test]
    fn object_name_with_or_without_kind() {
        for text in [
            "mrep/guide-x",
            "modelreplica/guide-x",
            "modelreplicas/guide-x",
            "modelreplica.rooflet.dev/guide-x",
            "modelreplicas.rooflet.dev/guide-x",
            "guide-x",
        ] {
            assert_eq!(name_of::<ModelReplica>(text).unwrap(), "guide-x");
        }
        for text in ["", "mdep/guide", "mrep/", "pod/x", "modelreplica.example.com/x"] {
            let failure = name_of::<ModelReplica>(text).unwrap_err();
            assert_eq!(failure.status, ExitStatus::Usage);
            let message = failure.error.to_string();
            assert!(message.contains("use mrep/NAME"), "{message}");
        }
        assert_eq!(name_of::<ModelDeployment>("mdep/guide").unwrap(), "guide");
        name_of::<ModelDeployment>("deployment/x").unwrap_err();
    }
}
