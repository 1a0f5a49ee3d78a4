//! How verbs reach objects of an API server.

use anyhow::anyhow;
use camino::Utf8PathBuf;
use kube::{Client, CustomResourceExt, Resource};

use super::{Failure, default_kubeconfig};
use rooflet_base::error::ExitStatus;
use rooflet_client::{KubeconfigSource, connect};

/// A client of the server that the file names, or of the default one.
pub(super) async fn client(kubeconfig: Option<Utf8PathBuf>) -> Result<Client, Failure> {
    let source = kubeconfig.map_or_else(default_kubeconfig, KubeconfigSource::File);
    connect(&source)
        .await
        .map_err(|err| Failure::new(ExitStatus::Config, err))
}

/// The one that is given, else that of the kubeconfig's context.
pub(super) fn namespace(given: Option<String>, client: &Client) -> String {
    given.unwrap_or_else(|| client.default_namespace().to_owned())
}

/// The name of an object that is written as kubectl takes it: NAME or KIND/NAME.
pub(super) fn name_of<K>(text: &str) -> Result<&str, Failure>
where
    K: Resource<DynamicType = ()> + CustomResourceExt,
{
    let Some((kind, name)) = text.split_once('/') else {
        return Ok(text);
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
        anyhow!("`{text}` is not a {singular}: write {short}/NAME; `kubectl get {short}` lists them"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_api::v1alpha1::{ModelDeployment, ModelReplica};

    #[test]
    fn an_object_is_named_with_or_without_its_kind() {
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
        for text in ["mdep/guide", "mrep/", "pod/x", "modelreplica.example.com/x"] {
            let failure = name_of::<ModelReplica>(text).unwrap_err();
            assert_eq!(failure.status, ExitStatus::Usage);
            let told = failure.error.to_string();
            assert!(told.contains("write mrep/NAME"), "{told}");
        }
        assert_eq!(name_of::<ModelDeployment>("mdep/guide").unwrap(), "guide");
        name_of::<ModelDeployment>("deployment/x").unwrap_err();
    }
}
