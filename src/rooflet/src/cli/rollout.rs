//! `rooflet rollout`: what `kubectl rollout` does for Deployments, for ModelDeployments, in its words; kubectl itself
//! refuses kinds that it does not know. Canaries have `promote` and `abort` besides, as with Argo Rollouts.

mod change;
mod history;
mod status;

use anyhow::anyhow;
use camino::Utf8PathBuf;
use kube::{Api, ResourceExt};

use self::change::{Change, Promotion, patch};
use super::{Failure, objects, ui};
use rooflet_api::meta::DEPLOYMENT_LABEL;
use rooflet_api::v1alpha1::{ModelDeployment, ModelRevision};
use rooflet_base::clock::Clock;
use rooflet_base::error::ExitStatus;
use rooflet_client::{ApiError, FIELD_MANAGER};

/// How an object of the kind is written before its name, as kubectl does.
const KIND: &str = "modeldeployment.rooflet.dev";

/// How often a change is tried that others' writes come between.
const MAX_TRIES: usize = 5;

/// Arguments of `rooflet rollout`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Watch a rollout until it is done; exit code 1 when it fails.
    Status {
        #[command(flatten)]
        target: Target,
        /// Tell how it stands and do not wait.
        #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
        watch: bool,
        /// Give up after this time, such as 90s. 0: never.
        #[arg(long, default_value = "0", value_name = "DURATION")]
        timeout: String,
        /// Fail when the newest revision is another one.
        #[arg(long, default_value_t = 0, value_name = "N")]
        revision: i64,
    },
    /// Roll no change of the template out until `resume`. Scaling still works.
    Pause(Target),
    /// Go on after `pause`.
    Resume(Target),
    /// Go back to the template of an earlier revision.
    Undo {
        #[command(flatten)]
        target: Target,
        /// The revision to go back to. 0: the one before the present template.
        #[arg(long, default_value_t = 0, value_name = "N")]
        to_revision: i64,
    },
    /// End the pause or step that a canary is at.
    Promote {
        #[command(flatten)]
        target: Target,
        /// Skip all steps that are left, and do not wait for a maintenance window or for idle replicas.
        #[arg(long)]
        full: bool,
    },
    /// Give the newest revision up and go back to the one that was last rolled out.
    Abort(Target),
    /// List the revisions.
    History {
        #[command(flatten)]
        target: Target,
        /// Show the template of this one.
        #[arg(long, default_value_t = 0, value_name = "N")]
        revision: i64,
    },
    /// Replace every replica by a new one of the same template.
    Restart(Target),
}

#[derive(Debug, clap::Args)]
struct Target {
    /// The deployment: mdep/NAME, modeldeployment/NAME or NAME.
    #[arg(value_name = "mdep/NAME")]
    deployment: String,
    /// Its namespace. Default: that of the kubeconfig's context.
    #[arg(long, short)]
    namespace: Option<String>,
    /// Which API server to ask. Default: what kubectl would use, else the one that `rooflet up` wrote.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<Utf8PathBuf>,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    match args.verb {
        Verb::Status {
            target,
            watch,
            timeout,
            revision,
        } => {
            let watching = status::Watching::new(watch, &timeout, revision)
                .map_err(|err| Failure::new(ExitStatus::Usage, err))?;
            let place = target.connect().await?;
            Ok(status::follow(&place.deployments, &place.revisions, &place.name, watching).await?)
        }
        Verb::History { target, revision } => {
            let place = target.connect().await?;
            let deployment = place.get().await?;
            let revisions = place.history(&deployment).await?;
            ui::output(&history::history(&place.name, &revisions, revision)?);
            Ok(())
        }
        Verb::Pause(target) => target.change(|_, _| Ok(Change::Pause)).await,
        Verb::Resume(target) => target.change(|_, _| Ok(Change::Resume)).await,
        Verb::Undo { target, to_revision } => {
            target
                .change(|deployment, revisions| {
                    history::undo(deployment, revisions, to_revision)
                        .map(|revision| Change::Undo(Box::new(revision)))
                })
                .await
        }
        Verb::Promote { target, full } => {
            let promotion = if full { Promotion::Full } else { Promotion::Step };
            target.change(|_, _| Ok(Change::Promote(promotion))).await
        }
        Verb::Abort(target) => target.change(|_, _| Ok(Change::Abort)).await,
        Verb::Restart(target) => {
            let now = Clock::System.now();
            let at = jiff::Timestamp::from_second(now.as_second()).unwrap_or(now);
            target.change(|_, _| Ok(Change::Restart(at.to_string()))).await
        }
    }
}

/// A deployment on a server.
struct Place {
    deployments: Api<ModelDeployment>,
    revisions: Api<ModelRevision>,
    namespace: String,
    name: String,
}

impl Target {
    async fn connect(self) -> Result<Place, Failure> {
        let name = objects::name_of::<ModelDeployment>(&self.deployment)?;
        let client = objects::client(self.kubeconfig).await?;
        let namespace = objects::namespace(self.namespace, &client);
        Ok(Place {
            deployments: Api::namespaced(client.clone(), &namespace),
            revisions: Api::namespaced(client, &namespace),
            name: name.to_owned(),
            namespace,
        })
    }

    /// Makes one change, refused if the deployment has changed since it was read, and says that it is made.
    async fn change(
        self,
        choose: impl Fn(&ModelDeployment, &[ModelRevision]) -> anyhow::Result<Change>,
    ) -> Result<(), Failure> {
        let place = self.connect().await?;
        for tries_left in (0..MAX_TRIES).rev() {
            let deployment = place.get().await?;
            let change = choose(&deployment, &place.history(&deployment).await?)?;
            let patch = match patch(&deployment, &change)? {
                Ok(patch) => patch,
                Err(skipped) => {
                    ui::output(&format!("{KIND}/{} {skipped}\n", place.name));
                    break;
                }
            };
            let params = kube::api::PatchParams::apply(FIELD_MANAGER);
            let patched = place
                .deployments
                .patch(&place.name, &params, &kube::api::Patch::Merge(&patch))
                .await;
            match patched.map_err(ApiError::from) {
                // Somebody wrote it meanwhile: what was chosen is chosen anew.
                Err(ApiError::Conflict(_)) if tries_left > 0 => {}
                patched => {
                    patched?;
                    ui::output(&format!("{KIND}/{} {}\n", place.name, change.done()));
                    break;
                }
            }
        }
        Ok(())
    }
}

impl Place {
    async fn get(&self) -> anyhow::Result<ModelDeployment> {
        let found = self
            .deployments
            .get_opt(&self.name)
            .await
            .map_err(ApiError::from)?;
        found.ok_or_else(|| {
            anyhow!(
                "modeldeployments.rooflet.dev \"{}\" not found in namespace {}; `kubectl get mdep -A` lists them",
                self.name,
                self.namespace
            )
        })
    }

    /// The deployment's revisions, the oldest first.
    async fn history(&self, deployment: &ModelDeployment) -> anyhow::Result<Vec<ModelRevision>> {
        let params = kube::api::ListParams::default().labels(&format!("{DEPLOYMENT_LABEL}={}", self.name));
        let listed = self.revisions.list(&params).await.map_err(ApiError::from)?;
        let uid = deployment.uid();
        let mut revisions: Vec<_> = listed
            .items
            .into_iter()
            .filter(|revision| {
                let owners = revision.owner_references();
                owners.iter().any(|owner| Some(&owner.uid) == uid.as_ref())
            })
            .collect();
        revisions.sort_by_key(|revision| revision.spec.revision);
        Ok(revisions)
    }
}
