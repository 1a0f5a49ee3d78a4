//! Managers of the `scale` subresource, which has one field: the replicas.

use super::field_set::FieldSet;
use super::manager::{Manager, Operation};
use super::managers::{Entry, Managers};
use super::path_element::PathElement;

const SCALE_VERSION: &str = "autoscaling/v1";
const REPLICAS: &[&[&str]] = &[&["spec", "replicas"]];

impl Managers {
    /// Returns the managers of an object's Scale. `replicas` is the path of the replicas in the
    /// object.
    pub fn of_scale(&self, replicas: &[String]) -> Self {
        let path = path_of(replicas);
        let owners = self.entries.iter().filter(|entry| entry.fields.contains(&path));
        let entries = owners.map(|entry| Entry {
            manager: Manager {
                api_version: SCALE_VERSION.to_owned(),
                ..entry.manager.clone()
            },
            time: entry.time.clone(),
            fields: FieldSet::of_fields(REPLICAS),
        });
        Self {
            entries: entries.collect(),
        }
    }

    /// Transfers the ownership of the replicas from the managers of the Scale after a write.
    /// `api_version` is that of the object.
    pub fn set_owners_of_scale(&mut self, scale: &Self, replicas: &[String], api_version: &str) {
        let path = path_of(replicas);
        let mut fields = FieldSet::default();
        fields.insert(path.iter().cloned());
        let replicas = path_of(&["spec".to_owned(), "replicas".to_owned()]);
        let is_owner = |entry: &&Entry| entry.fields.contains(&replicas);
        let mut owners: Vec<&Entry> = scale.entries.iter().filter(is_owner).collect();
        for entry in &mut self.entries {
            if !entry.fields.contains(&path) {
                continue;
            }
            let before = owners.len();
            owners.retain(|owner| !owner.manager.is_named_like(&entry.manager));
            if owners.len() == before {
                entry.fields = entry.fields.difference(&fields);
            }
        }
        self.entries.retain(|entry| !entry.fields.is_empty());
        for owner in owners {
            let manager = Manager {
                api_version: api_version.to_owned(),
                ..owner.manager.clone()
            };
            // kube-apiserver sets no time for a new owner of the replicas.
            let time = match manager.operation {
                Operation::Apply => self.entry(&manager).and_then(|entry| entry.time.clone()),
                Operation::Update => None,
            };
            self.give(&manager, &fields, time.as_deref());
        }
    }
}

fn path_of(replicas: &[String]) -> Vec<PathElement> {
    replicas.iter().map(|name| PathElement::field(name)).collect()
}
