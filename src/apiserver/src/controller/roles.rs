//! Default roles and bindings, and the rules of aggregated ClusterRoles.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::future::try_join_all;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::builtin::{BuiltIn, CLUSTER_ROLE_STORAGE};
use crate::controller::watch_loop::{self, WatchLoop};
use crate::endpoints::options::WriteOptions;
use crate::engine::{Edit, Engine, ResultObject, Target, Warnings};
use crate::object;
use crate::status::{ApiError, Reason};
use rooflet_rbac::aggregation::changed_rules;
use rooflet_rbac::defaults;
use rooflet_rbac::reconcile::reconciled;
use rooflet_store::{Event, ListOptions, Record, Revision};

/// Creates the default roles and bindings and those in `more`, adds missing rules and subjects, and
/// computes the rules of aggregated ClusterRoles. An error contains the name of the object.
pub(crate) async fn ensure(engine: &Engine, more: &[Value]) -> Result<(), (String, ApiError)> {
    let of = |kind: BuiltIn, objects: Vec<Value>| objects.into_iter().map(move |object| (kind, object));
    let more = more
        .iter()
        .filter_map(|object| Some((kind_of(object)?, object.clone())));
    let objects = of(BuiltIn::ClusterRole, defaults::cluster_roles())
        .chain(of(BuiltIn::ClusterRoleBinding, defaults::cluster_role_bindings()))
        .chain(more);
    // Concurrent writes share a sync to disk.
    try_join_all(objects.map(async |(kind, object)| {
        let ensured = ensure_one(engine, kind, &object).await;
        ensured.map_err(|err| (object::name(&object).to_owned(), err))
    }))
    .await?;
    aggregate(engine).await.map(drop)
}

/// Returns the kind of a role or binding; `None` for other objects.
fn kind_of(object: &Value) -> Option<BuiltIn> {
    match object["kind"].as_str()? {
        "Role" => Some(BuiltIn::Role),
        "ClusterRole" => Some(BuiltIn::ClusterRole),
        "RoleBinding" => Some(BuiltIn::RoleBinding),
        "ClusterRoleBinding" => Some(BuiltIn::ClusterRoleBinding),
        _ => None,
    }
}

async fn ensure_one(engine: &Engine, kind: BuiltIn, default: &Value) -> Result<(), ApiError> {
    let resource = Arc::clone(engine.registry.snapshot().built_in(kind));
    let mut default = default.clone();
    if let Some(map) = default.as_object_mut() {
        map.remove("apiVersion");
        map.remove("kind");
    }
    let namespace = default["metadata"]["namespace"].as_str().map(str::to_owned);
    let target = Target::new(&resource, namespace.as_deref(), object::name(&default));
    let mut warnings = Warnings::default();
    let options = WriteOptions::INTERNAL;
    if engine.store.get(&target.key()).is_none() {
        match engine
            .create(&target, default.clone(), options, &mut warnings)
            .await
        {
            Err(err) if err.reason() == Reason::AlreadyExists => {}
            created => return created.map(drop),
        }
    }
    let change = |old: &Value, _: &mut Warnings| Ok(reconciled(old, &default).unwrap_or_else(|| old.clone()));
    let updated = engine
        .update(&target, Edit::Change(&change), options, &mut warnings)
        .await;
    updated.map(drop)
}

/// Updates the rules of aggregated ClusterRoles until they are stable. Returns the revisions of the
/// writes.
async fn aggregate(engine: &Engine) -> Result<Vec<Revision>, (String, ApiError)> {
    let resource = Arc::clone(engine.registry.snapshot().built_in(BuiltIn::ClusterRole));
    let mut written = Vec::new();
    loop {
        let listed = engine.store.list(CLUSTER_ROLE_STORAGE, &ListOptions::default());
        let records = listed.map(|listing| listing.records).unwrap_or_default();
        let parsed: Vec<Arc<Value>> = records.iter().map(|record| record.json()).collect();
        let all: Vec<&Value> = parsed.iter().map(|role| &**role).collect();
        let Some((name, rules)) = all
            .iter()
            .find_map(|role| Some((object::name(role).to_owned(), changed_rules(role, &all)?)))
        else {
            return Ok(written);
        };
        // Each role changes at most once per selected role, unless roles select one another.
        if written.len() > all.len() * all.len() {
            warn!(
                clusterrole = name,
                "aggregated ClusterRoles select one another; remove the cycle of their selectors"
            );
            return Ok(written);
        }
        let change = |old: &Value, _: &mut Warnings| {
            let mut new = old.clone();
            new["rules"] = Value::from(rules.clone());
            Ok(new)
        };
        let target = Target::new(&resource, None, &name);
        let edit = Edit::Change(&change);
        let mut warnings = Warnings::default();
        match engine
            .update(&target, edit, WriteOptions::INTERNAL, &mut warnings)
            .await
        {
            Ok(updated) => {
                if let ResultObject::Record(record) = updated.object {
                    written.push(record.modified);
                }
                info!(clusterrole = name, "rules of an aggregated ClusterRole updated");
            }
            Err(err) if err.reason() == Reason::NotFound => {}
            Err(err) => return Err((name, err)),
        }
    }
}

/// Controller of aggregated ClusterRoles.
pub(crate) struct RoleAggregation {
    engine: Engine,
    is_dirty: bool,
    has_failed: bool,
    /// Revisions of this controller's writes whose events were not observed yet.
    written: BTreeSet<Revision>,
}

impl WatchLoop for RoleAggregation {
    const LISTED: &'static str = CLUSTER_ROLE_STORAGE;

    fn reset(&mut self, _: Vec<Arc<Record>>) {
        self.written.clear();
        self.is_dirty = true;
    }

    fn observe_event(&mut self, event: &Event) {
        if event.key().as_str().starts_with(CLUSTER_ROLE_STORAGE)
            && !self.written.remove(&event.record.modified)
        {
            self.is_dirty = true;
        }
    }

    fn has_work(&self) -> bool {
        self.is_dirty
    }

    async fn work(&mut self) {
        self.is_dirty = false;
        match aggregate(&self.engine).await {
            Ok(written) => self.written.extend(written),
            Err((name, err)) => {
                warn!(clusterrole = name, error = %err, "failed to update the rules of an aggregated ClusterRole");
                self.has_failed = true;
            }
        }
    }

    fn has_failed(&self) -> bool {
        self.has_failed
    }

    fn requeue_failed(&mut self) {
        self.has_failed = false;
        self.is_dirty = true;
    }
}

impl RoleAggregation {
    pub(crate) fn new(engine: Engine) -> Self {
        Self {
            engine,
            is_dirty: false,
            has_failed: false,
            written: BTreeSet::new(),
        }
    }

    pub(crate) async fn run(self, stop: CancellationToken) {
        let store = self.engine.store.clone();
        watch_loop::run(&store, self, stop).await;
    }
}
