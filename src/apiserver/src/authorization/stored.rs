//! Policy of the stored roles and bindings. Each write updates it before the writer receives the
//! response.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use crate::builtin::{
    CLUSTER_ROLE_BINDING_STORAGE, CLUSTER_ROLE_STORAGE, ROLE_BINDING_STORAGE, ROLE_STORAGE,
};
use rooflet_rbac::{Kind, Policy};
use rooflet_store::{Key, ListOptions, Store};

const STORAGE: [(&str, Kind); 4] = [
    (ROLE_STORAGE, Kind::Role),
    (CLUSTER_ROLE_STORAGE, Kind::ClusterRole),
    (ROLE_BINDING_STORAGE, Kind::RoleBinding),
    (CLUSTER_ROLE_BINDING_STORAGE, Kind::ClusterRoleBinding),
];

/// Policy of the stored objects. Clones share one policy.
#[derive(Debug, Clone, Default)]
pub(crate) struct StoredPolicy(Arc<RwLock<Policy>>);

impl StoredPolicy {
    /// Reads all roles and bindings of the store.
    pub(crate) fn load(store: &Store) -> Self {
        let policy = Self::default();
        for (prefix, _) in STORAGE {
            let listed = store.list(prefix, &ListOptions::default());
            let records = listed.map(|listing| listing.records).unwrap_or_default();
            for record in records {
                policy.refresh(store, &record.key);
            }
        }
        policy
    }

    /// Reads one object again, if the key is that of a role or binding.
    pub(crate) fn refresh(&self, store: &Store, key: &Key) {
        let found = STORAGE.iter().find_map(|(prefix, kind)| {
            let rest = key.as_str().strip_prefix(prefix)?;
            Some((*kind, rest.split_once('/').unwrap_or(("", rest))))
        });
        let Some((kind, (namespace, name))) = found else {
            return;
        };
        // The object is read while the policy is locked, so that an older object never replaces a
        // newer one.
        let mut policy = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let record = store.get(key);
        let object = record.map(|record| record.json());
        policy.set(kind, namespace, name, object.as_deref());
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Policy> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
impl StoredPolicy {
    /// Returns the policy of the default roles and bindings.
    pub(crate) fn with_defaults() -> Self {
        use crate::object::name;
        use rooflet_rbac::defaults;
        let mut policy = Policy::default();
        for role in defaults::cluster_roles() {
            policy.set(Kind::ClusterRole, "", name(&role), Some(&role));
        }
        for binding in defaults::cluster_role_bindings() {
            policy.set(Kind::ClusterRoleBinding, "", name(&binding), Some(&binding));
        }
        Self(Arc::new(RwLock::new(policy)))
    }
}
