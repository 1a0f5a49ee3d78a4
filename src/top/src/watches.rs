//! Watches of the shown kinds.

use k8s_openapi::api::core::v1::Event;
use kube::runtime::watcher;
use kube::{Api, Client};

use crate::objects::{Objects, is_about_cluster};
use crate::reader::{EVENT_SELECTOR, unreadable_problem};
use crate::scope::Scope;
use crate::table_kind::TableKind;
use crate::view::Problem;
use rooflet_api::v1alpha1::{FleetNode, ModelDeployment, ModelReplica};
use rooflet_base::clock::Clock;
use rooflet_base::task::Tasks;
use rooflet_client::{Cache, CachedKind, Changes, watch};

/// Local copies of the shown kinds. The watches stop when the value is dropped.
pub(crate) struct Watches {
    tasks: Tasks,
    nodes: Cache<FleetNode>,
    deployments: Cache<ModelDeployment>,
    replicas: Cache<ModelReplica>,
    /// Events of the namespace, then those about nodes.
    events: Vec<Cache<Event>>,
}

impl Watches {
    /// Starts the watches. `changes` is marked after every change.
    pub(crate) fn start(client: &Client, scope: &Scope, clock: &Clock, changes: &Changes) -> Self {
        let tasks = Tasks::new();
        let config = watcher::Config::default;
        let of_events = |namespace: Option<&str>| {
            let api = match namespace {
                Some(namespace) => Api::namespaced(client.clone(), namespace),
                None => Api::all(client.clone()),
            };
            watch(&tasks, api, config().fields(EVENT_SELECTOR), clock, changes)
        };
        Self {
            nodes: watch(&tasks, Api::all(client.clone()), config(), clock, changes),
            deployments: watch(&tasks, scope.api(client), config(), clock, changes),
            replicas: watch(&tasks, scope.api(client), config(), clock, changes),
            events: scope.event_namespaces().into_iter().map(of_events).collect(),
            tasks,
        }
    }

    /// Returns whether the first list of every kind has arrived, except those with a problem.
    pub(crate) fn is_loaded(&self, problems: &[Problem]) -> bool {
        let has_problem = |table| problems.iter().any(|problem| problem.table == table);
        let is_synced = |table| match table {
            TableKind::Macs => self.nodes.is_synced(),
            TableKind::Replicas => self.replicas.is_synced(),
            TableKind::Deployments => self.deployments.is_synced(),
            // Events of nodes are in a namespace that the user may not be able to read.
            TableKind::Events => self.events.first().is_none_or(Cache::is_synced),
        };
        TableKind::ALL
            .into_iter()
            .all(|table| is_synced(table) || has_problem(table))
    }

    pub(crate) fn objects(&self) -> Objects {
        let own = self.events.first().map(Cache::list).unwrap_or_default();
        let of_nodes = self.events.iter().skip(1).flat_map(Cache::list);
        let of_nodes = of_nodes.filter(|event| is_about_cluster(event));
        Objects {
            nodes: self.nodes.list(),
            deployments: self.deployments.list(),
            replicas: self.replicas.list(),
            events: own.into_iter().chain(of_nodes).collect(),
        }
    }

    /// Returns the problems of objects that this version cannot parse.
    pub(crate) fn problems(&self) -> Vec<Problem> {
        fn of<K: CachedKind>(table: TableKind, cache: &Cache<K>) -> Option<Problem> {
            unreadable_problem(table, cache.unreadable().len())
        }
        let found = [
            of(TableKind::Macs, &self.nodes),
            of(TableKind::Deployments, &self.deployments),
            of(TableKind::Replicas, &self.replicas),
        ];
        found.into_iter().flatten().collect()
    }
}

impl Drop for Watches {
    fn drop(&mut self) {
        self.tasks.cancel();
    }
}
