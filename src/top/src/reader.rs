//! Reads of the API server, without watches.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Event;
use kube::api::ListParams;
use kube::core::DeserializeGuard;
use kube::{Api, Client};

use crate::connection::Checked;
use crate::objects::{Objects, is_about_cluster};
use crate::scope::Scope;
use crate::table_kind::TableKind;
use crate::view::{Problem, View};
use rooflet_api::v1alpha1::{FleetNode, ModelDeployment, ModelReplica};
use rooflet_base::clock::Clock;
use rooflet_client::{ApiError, CachedKind};

/// Selector of events about objects of rooflet. In a cluster, most events are about other objects.
pub(crate) const EVENT_SELECTOR: &str = "involvedObject.apiVersion=rooflet.dev/v1alpha1";
/// Time after which a check counts as failed.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);

/// Reads the fleet once. `namespace` restricts deployments, replicas and events. An error is part of
/// the view: the objects of the remaining kinds are shown.
pub async fn read(client: &Client, namespace: Option<String>, clock: &Clock) -> View {
    let scope = Scope { namespace };
    let mut problems = Vec::new();
    let all = ListParams::default();
    let nodes = list::<FleetNode>(Api::all(client.clone()), &all);
    let deployments = list::<ModelDeployment>(scope.api(client), &all);
    let replicas = list::<ModelReplica>(scope.api(client), &all);
    let events = events(client, &scope);
    let (nodes, deployments, replicas, events) = tokio::join!(nodes, deployments, replicas, events);
    let objects = Objects {
        nodes: found(nodes, TableKind::Macs, &mut problems),
        deployments: found(deployments, TableKind::Deployments, &mut problems),
        replicas: found(replicas, TableKind::Replicas, &mut problems),
        events: found(events, TableKind::Events, &mut problems),
    };
    View::new(&objects, problems, clock.now())
}

/// Objects that were read, and the number of objects that this version cannot parse.
type Found<K> = (Vec<Arc<K>>, usize);

async fn list<K: CachedKind>(
    api: Api<DeserializeGuard<K>>,
    params: &ListParams,
) -> Result<Found<K>, ApiError> {
    let items = api.list(params).await?.items;
    let count = items.len();
    let parsed: Vec<_> = items
        .into_iter()
        .filter_map(|guard| guard.0.ok().map(Arc::new))
        .collect();
    let unreadable = count - parsed.len();
    Ok((parsed, unreadable))
}

async fn events(client: &Client, scope: &Scope) -> Result<Found<Event>, ApiError> {
    let params = ListParams::default().fields(EVENT_SELECTOR);
    let (mut events, mut unreadable) = list(scope.api(client), &params).await?;
    for namespace in scope.event_namespaces().into_iter().skip(1).flatten() {
        let (found, more) = list::<Event>(Api::namespaced(client.clone(), namespace), &params).await?;
        events.extend(found.into_iter().filter(|event| is_about_cluster(event)));
        unreadable += more;
    }
    Ok((events, unreadable))
}

fn found<K>(
    result: Result<Found<K>, ApiError>,
    table: TableKind,
    problems: &mut Vec<Problem>,
) -> Vec<Arc<K>> {
    match result {
        Ok((objects, unreadable)) => {
            problems.extend(unreadable_problem(table, unreadable));
            objects
        }
        Err(err) => {
            problems.push(problem(table, &err));
            Vec::new()
        }
    }
}

/// Returns the problem of objects that this version cannot parse.
pub(crate) fn unreadable_problem(table: TableKind, count: usize) -> Option<Problem> {
    let message =
        format!("{count} objects cannot be parsed: a newer version wrote them; upgrade this `rooflet`");
    (count > 0).then(|| Problem::new(table, &message))
}

fn problem(table: TableKind, err: &ApiError) -> Problem {
    let remedy = match err {
        ApiError::NotFound(_) => {
            "; install rooflet in this cluster: `rooflet crd | kubectl apply --server-side -f -`"
        }
        ApiError::Forbidden(_) if table == TableKind::Macs => {
            "; request `list` and `watch` on fleetnodes.rooflet.dev"
        }
        ApiError::Forbidden(_) => "; pass --namespace with a namespace that you may read",
        ApiError::Conflict(_)
        | ApiError::AlreadyExists(_)
        | ApiError::Invalid(_)
        | ApiError::Unauthorized(_)
        | ApiError::Refused { .. }
        | ApiError::Untrusted { .. }
        | ApiError::Unreachable(_)
        | ApiError::Server { .. } => "",
    };
    Problem::new(table, &format!("{err}{remedy}"))
}

/// Checks whether the API server answers, and which kinds the user may list.
pub(crate) async fn check(client: &Client, scope: &Scope) -> Checked {
    let (nodes, deployments, replicas, events) = tokio::join!(
        list_one::<FleetNode>(Api::all(client.clone())),
        list_one::<ModelDeployment>(scope.api(client)),
        list_one::<ModelReplica>(scope.api(client)),
        list_one::<Event>(scope.api(client)),
    );
    let results = [
        (TableKind::Macs, nodes),
        (TableKind::Deployments, deployments),
        (TableKind::Replicas, replicas),
        (TableKind::Events, events),
    ];
    let mut problems = Vec::new();
    for (table, result) in results {
        match result {
            Ok(()) => {}
            Err(err) if err.is_transient() || matches!(err, ApiError::Untrusted { .. }) => {
                return Checked::Fails {
                    message: err.to_string(),
                };
            }
            Err(err) => problems.push(problem(table, &err)),
        }
    }
    Checked::Answers { problems }
}

async fn list_one<K: CachedKind>(api: Api<DeserializeGuard<K>>) -> Result<(), ApiError> {
    let params = ListParams::default().limit(1);
    let listed = tokio::time::timeout(CHECK_TIMEOUT, api.list_metadata(&params)).await;
    match listed {
        Ok(listed) => listed.map(drop).map_err(ApiError::from),
        Err(_) => Err(ApiError::Unreachable(format!(
            "no answer within {} s",
            CHECK_TIMEOUT.as_secs()
        ))),
    }
}
