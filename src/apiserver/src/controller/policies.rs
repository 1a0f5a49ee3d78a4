//! Status of ValidatingAdmissionPolicies: the observed generation, and type checks with the schemas of
//! the selected objects.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::builtin::{ADMISSION_STORAGE, BuiltIn};
use crate::controller::watch_loop::{self, WatchLoop};
use crate::discovery::openapi::declaration;
use crate::endpoints::options::{FieldValidation, WriteOptions};
use crate::engine::{AppliedConfiguration, Engine, Target, Warnings};
use crate::object;
use crate::registry::Snapshot;
use crate::registry::resource::Subresource;
use crate::status::{ApiError, Reason};
use rooflet_admission_policies::{GroupVersionKind, Kind, Schemas, expression_warnings};
use rooflet_schema::cel::checker::Decl;
use rooflet_store::{Event, Record};

const STORAGE: &str = ADMISSION_STORAGE[2].1;
/// Field manager of kube-controller-manager for the status.
const MANAGER: &str = "validatingadmissionpolicy-status";

/// Controller of the status.
pub(crate) struct PolicyStatus {
    engine: Engine,
    /// Names of policies that may have a new generation.
    pending: BTreeSet<String>,
    failed: BTreeSet<String>,
}

impl PolicyStatus {
    pub(crate) fn new(engine: Engine) -> Self {
        Self {
            engine,
            pending: BTreeSet::new(),
            failed: BTreeSet::new(),
        }
    }

    pub(crate) async fn run(self, stop: CancellationToken) {
        let store = self.engine.store.clone();
        watch_loop::run(&store, self, stop).await;
    }

    /// Checks a policy, if its generation is new.
    async fn check(&self, name: &str) -> Result<(), ApiError> {
        let snapshot = self.engine.registry.snapshot();
        let kind = BuiltIn::Admission(Kind::ValidatingPolicy);
        let resource = snapshot.built_in(kind);
        let mut target = Target::new(resource, None, name);
        let Some(record) = self.engine.store.get(&target.key()) else {
            return Ok(());
        };
        let policy = record.json();
        let Some(status) = new_status(&policy, &*snapshot) else {
            return Ok(());
        };
        target.subresource = Some(Subresource::Status);
        MANAGER.clone_into(&mut target.manager);
        let configuration = AppliedConfiguration {
            value: json!({"apiVersion": resource.api_version(), "kind": resource.kind,
                "metadata": {"name": name, "uid": object::uid(&policy)}, "status": status}),
            forces: true,
            duplicates: Vec::new(),
            validation: FieldValidation::Strict,
        };
        let mut warnings = Warnings::default();
        let applied = self
            .engine
            .apply(&target, &configuration, WriteOptions::INTERNAL, &mut warnings)
            .await;
        match applied {
            // The policy was deleted or replaced meanwhile.
            Err(err) if matches!(err.reason(), Reason::NotFound | Reason::Conflict) => Ok(()),
            applied => applied.map(drop),
        }
    }
}

/// Returns the status of a policy whose generation was not checked yet.
fn new_status(policy: &Value, schemas: &dyn Schemas) -> Option<Value> {
    let generation = policy["metadata"]["generation"].as_i64().unwrap_or_default();
    let observed = policy["status"]["observedGeneration"]
        .as_i64()
        .unwrap_or_default();
    if generation <= observed {
        return None;
    }
    let warnings = expression_warnings(policy, schemas);
    let mut checking = json!({});
    if !warnings.is_empty() {
        checking["expressionWarnings"] = Value::from(warnings);
    }
    Some(json!({"observedGeneration": generation, "typeChecking": checking}))
}

impl Schemas for Snapshot {
    fn kinds(&self, group: &str, version: &str, resource: &str) -> Vec<GroupVersionKind> {
        let groups = self
            .groups
            .iter()
            .filter(|known| group.is_empty() || known.name == group);
        let versions = groups.flat_map(|group| &group.versions);
        let resources = versions
            .filter(|known| known.version == version)
            .flat_map(|version| &version.resources);
        let named = resources.filter(|known| known.plural == resource || known.singular == resource);
        named
            .map(|resource| GroupVersionKind {
                group: resource.group.clone(),
                version: resource.version.clone(),
                kind: resource.kind.clone(),
            })
            .collect()
    }

    fn declaration(&self, kind: &GroupVersionKind) -> Option<Arc<Decl>> {
        let api_version = crate::registry::resource::api_version(&kind.group, &kind.version);
        let resource = self.of_kind(&api_version, &kind.kind)?;
        declaration(resource).map(Arc::new)
    }
}

impl WatchLoop for PolicyStatus {
    const LISTED: &'static str = STORAGE;

    fn reset(&mut self, listed: Vec<Arc<Record>>) {
        let names = listed.iter().filter_map(|record| name(record));
        self.pending = names.collect();
        self.failed.clear();
    }

    fn observe_event(&mut self, event: &Event) {
        self.pending.extend(name(&event.record));
    }

    fn has_work(&self) -> bool {
        !self.pending.is_empty()
    }

    async fn work(&mut self) {
        let Some(name) = self.pending.pop_first() else {
            return;
        };
        if let Err(err) = self.check(&name).await {
            warn!(policy = name, error = %err, "failed to update the status of a ValidatingAdmissionPolicy");
            self.failed.insert(name);
        }
    }

    fn has_failed(&self) -> bool {
        !self.failed.is_empty()
    }

    fn requeue_failed(&mut self) {
        self.pending.append(&mut self.failed);
    }
}

fn name(record: &Record) -> Option<String> {
    record.key.as_str().strip_prefix(STORAGE).map(str::to_owned)
}
