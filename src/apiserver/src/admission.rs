//! Admission policies of the store.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use serde_json::Value;

use crate::builtin::ADMISSION_STORAGE;
use rooflet_admission_policies::Policies;
use rooflet_store::{Key, ListOptions, Store};

/// Policies and bindings of the store. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct StoredPolicies(Arc<RwLock<Policies>>);

impl StoredPolicies {
    /// Reads all policies and bindings of the store.
    pub(crate) fn load(store: &Store) -> Self {
        let policies = Self::default();
        for (_, prefix) in ADMISSION_STORAGE {
            let listed = store.list(prefix, &ListOptions::default());
            for record in listed.map(|listing| listing.records).unwrap_or_default() {
                policies.refresh(store, &record.key);
            }
        }
        policies
    }

    /// Reads one object again, if the key is that of a policy or binding.
    pub(crate) fn refresh(&self, store: &Store, key: &Key) {
        let named = |(kind, prefix)| Some((kind, key.as_str().strip_prefix(prefix)?));
        let Some((kind, name)) = ADMISSION_STORAGE.into_iter().find_map(named) else {
            return;
        };
        // The object is read while the policies are locked, so that an older object never replaces a
        // newer one.
        let mut policies = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let object = store.get(key).map(|record| record.json());
        policies.set(kind, name, object.as_deref());
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Policies> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Objects of a write in working form.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Admitted<'a> {
    pub new: Option<&'a Value>,
    pub old: Option<&'a Value>,
    pub is_dry_run: bool,
}
