//! `rooflet rollout`: `kubectl rollout` for ModelDeployments, with kubectl's messages, because
//! kubectl rejects unknown kinds. Canaries also have `promote` and `abort`, as in Argo Rollouts.

mod change;
mod history;
mod status;

use std::time::Duration;

use anyhow::anyhow;
use camino::Utf8PathBuf;
use kube::{Api, Client, ResourceExt};

use self::change::{Change, Promotion, patch};
use super::objects::preview::{DryRun, lines};
use super::ui::duration::duration;
use super::{Failure, objects, ui};
use rooflet_api::meta::DEPLOYMENT_LABEL;
use rooflet_api::v1alpha1::{ModelDeployment, ModelRevision};
use rooflet_base::clock::Clock;
use rooflet_client::{ApiError, FIELD_MANAGER};
use rooflet_controller::ChangedObject;

/// Kind in front of object names, as kubectl prints it.
const KIND: &str = "modeldeployment.rooflet.dev";

/// Maximum number of attempts after write conflicts.
const MAX_TRIES: usize = 5;

/// Arguments of `rooflet rollout`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Watch a rollout until it completes; exit code 1 if it fails.
    Status {
        #[command(flatten)]
        target: Target,
        /// Wait for completion; --watch=false prints the current status only.
        #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
        watch: bool,
        /// Stop watching after this time, such as 90s; 0 waits without limit.
        #[arg(long, default_value = "0", value_name = "DURATION", value_parser = duration)]
        timeout: Duration,
        /// Fail if the newest revision is different.
        #[arg(long, default_value_t = 0, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(0..))]
        revision: i64,
    },
    /// Pause rollouts of template changes until `resume`. Scaling continues.
    Pause {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        dry: DryRun,
    },
    /// Resume a paused rollout.
    Resume {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        dry: DryRun,
    },
    /// Roll back to the template of an earlier revision.
    Undo {
        #[command(flatten)]
        target: Target,
        /// Revision to roll back to; 0 is the revision before the current template.
        #[arg(long, default_value_t = 0, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(0..))]
        to_revision: i64,
        #[command(flatten)]
        dry: DryRun,
    },
    /// End the current pause or step of a canary.
    Promote {
        #[command(flatten)]
        target: Target,
        /// Skip all remaining steps, and do not wait for a maintenance window or for idle replicas.
        #[arg(long)]
        full: bool,
        #[command(flatten)]
        dry: DryRun,
    },
    /// Abort the rollout of the newest revision and roll back to the last complete one.
    Abort {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        dry: DryRun,
    },
    /// List the revisions.
    History {
        #[command(flatten)]
        target: Target,
        /// Show the template of this revision.
        #[arg(long, default_value_t = 0, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(0..))]
        revision: i64,
    },
    /// Replace all replicas by new ones with the same template.
    Restart {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        dry: DryRun,
    },
}

#[derive(Debug, clap::Args)]
struct Target {
    /// Deployment: mdep/NAME, modeldeployment/NAME or NAME.
    #[arg(value_name = "mdep/NAME")]
    deployment: String,
    /// Namespace of the deployment. Default: the namespace of the kubeconfig's context.
    #[arg(long, short)]
    namespace: Option<String>,
    /// Kubeconfig of the API server. Default: the kubeconfig of kubectl, otherwise that of
    /// `rooflet up` or `rooflet server`.
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
            let options = status::WatchOptions::new(watch, timeout, revision);
            let deployment_ref = target.connect().await?;
            Ok(status::follow(
                &deployment_ref.deployments,
                &deployment_ref.revisions,
                &deployment_ref.name,
                options,
            )
            .await?)
        }
        Verb::History { target, revision } => {
            let deployment_ref = target.connect().await?;
            let deployment = deployment_ref.get().await?;
            let revisions = deployment_ref.history(&deployment).await?;
            ui::output(&history::history(&deployment_ref.name, &revisions, revision)?);
            Ok(())
        }
        Verb::Pause { target, dry } => target.change(dry, |_, _| Ok(Change::Pause)).await,
        Verb::Resume { target, dry } => target.change(dry, |_, _| Ok(Change::Resume)).await,
        Verb::Undo {
            target,
            to_revision,
            dry,
        } => {
            target
                .change(dry, |deployment, revisions| {
                    history::undo(deployment, revisions, to_revision)
                        .map(|revision| Change::Undo(Box::new(revision)))
                })
                .await
        }
        Verb::Promote { target, full, dry } => {
            let promotion = if full { Promotion::Full } else { Promotion::Step };
            target.change(dry, |_, _| Ok(Change::Promote(promotion))).await
        }
        Verb::Abort { target, dry } => target.change(dry, |_, _| Ok(Change::Abort)).await,
        Verb::Restart { target, dry } => {
            let now = Clock::System.now();
            let at = jiff::Timestamp::from_second(now.as_second()).unwrap_or(now);
            target
                .change(dry, |_, _| Ok(Change::Restart(at.to_string())))
                .await
        }
    }
}

/// Deployment on an API server.
struct DeploymentRef {
    client: Client,
    deployments: Api<ModelDeployment>,
    revisions: Api<ModelRevision>,
    namespace: String,
    name: String,
}

impl Target {
    async fn connect(self) -> Result<DeploymentRef, Failure> {
        let name = objects::name_of::<ModelDeployment>(&self.deployment)?;
        let client = objects::client(self.kubeconfig).await?;
        let namespace = objects::namespace(self.namespace, &client);
        Ok(DeploymentRef {
            deployments: Api::namespaced(client.clone(), &namespace),
            revisions: Api::namespaced(client.clone(), &namespace),
            client,
            name: name.to_owned(),
            namespace,
        })
    }

    /// Makes one change and prints the result, or prints the consequences in a dry run. Retries if the deployment
    /// has changed since the read.
    async fn change(
        self,
        dry: DryRun,
        choose: impl Fn(&ModelDeployment, &[ModelRevision]) -> anyhow::Result<Change>,
    ) -> Result<(), Failure> {
        let deployment_ref = self.connect().await?;
        for tries_left in (0..MAX_TRIES).rev() {
            let deployment = deployment_ref.get().await?;
            let change = choose(&deployment, &deployment_ref.history(&deployment).await?)?;
            let patch = match patch(&deployment, &change)? {
                Ok(patch) => patch,
                Err(skipped) => {
                    ui::output(&format!("{KIND}/{} {skipped}\n", deployment_ref.name));
                    break;
                }
            };
            if dry.dry_run {
                let DeploymentRef {
                    client,
                    namespace,
                    name,
                    ..
                } = &deployment_ref;
                let object = ChangedObject::Deployment(namespace.clone(), name.clone());
                let preview = dry.preview(client, object, patch, false).await?;
                ui::output(&format!(
                    "{KIND}/{name} {} (dry run)\n{}",
                    change.done(),
                    lines(&preview)
                ));
                break;
            }
            let params = kube::api::PatchParams::apply(FIELD_MANAGER);
            let patched = deployment_ref
                .deployments
                .patch(&deployment_ref.name, &params, &kube::api::Patch::Merge(&patch))
                .await;
            match patched.map_err(ApiError::from) {
                // After a conflict, the change is computed again.
                Err(ApiError::Conflict(_)) if tries_left > 0 => {}
                patched => {
                    patched?;
                    ui::output(&format!("{KIND}/{} {}\n", deployment_ref.name, change.done()));
                    break;
                }
            }
        }
        Ok(())
    }
}

impl DeploymentRef {
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

    /// Revisions of the deployment, oldest first.
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
