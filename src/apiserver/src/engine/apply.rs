//! Server-side apply.

use serde_json::Value;

use super::ownership::empty_object;
use super::{Edit, Engine, Target, Warnings, WriteResult, decode_object};
use crate::endpoints::options::{FieldValidation, WriteOptions};
use crate::object::{self, managed_fields};
use crate::registry::resource::ScalePaths;
use crate::status::ApiError;
use rooflet_apimachinery::fields::{ApplyError, Configuration, FieldSet, Managers, Operation, TypeSchema};
use rooflet_apimachinery::time::format_time;

/// Configuration of an apply request.
#[derive(Debug)]
pub(crate) struct AppliedConfiguration {
    /// Object as the client sent it.
    pub value: Value,
    /// Takes fields of other managers instead of failing with conflicts.
    pub forces: bool,
    /// Paths of duplicate fields in the body.
    pub duplicates: Vec<String>,
    pub validation: FieldValidation,
}

impl Engine {
    /// Applies a configuration to an object or its status. Creates a missing object.
    pub(crate) async fn apply(
        &self,
        target: &Target,
        configuration: &AppliedConfiguration,
        options: WriteOptions,
        warnings: &mut Warnings,
    ) -> Result<WriteResult, ApiError> {
        check_kind(
            configuration,
            &target.resource.api_version(),
            &target.resource.kind,
        )?;
        let change =
            |old: Option<&Value>, warnings: &mut Warnings| self.applied(target, configuration, old, warnings);
        self.update(target, Edit::Own(&change), options, warnings).await
    }

    /// Returns the object after an apply, in working form with its managed fields.
    fn applied(
        &self,
        target: &Target,
        configuration: &AppliedConfiguration,
        old: Option<&Value>,
        warnings: &mut Warnings,
    ) -> Result<Value, ApiError> {
        let resource = &target.resource;
        let mut live = match old {
            Some(old) => old.clone(),
            None => {
                check_identity(target, &configuration.value)?;
                empty_object(resource, &configuration.value)
            }
        };
        let mut managers = decode_managers(managed_fields::take(&mut live))?;
        managers.retain_versions(|version| resource.has_version(version));
        let live = resource.external(live);
        let outcome = managers.apply(Configuration {
            schema: resource.type_schema(),
            live: &live,
            applied: &configuration.value,
            manager: &target.field_manager(Operation::Apply),
            forces: configuration.forces,
            ignored: &resource.ignored_fields(target.subresource),
            now: &format_time(self.clock.now()),
        });
        let merged = outcome.map_err(|err| apply_error(target, configuration, err))?;
        check_duplicates(configuration, warnings)?;
        let mut new = match (merged, old) {
            (None, Some(old)) => old.clone(),
            (merged, _) => {
                let merged = merged.unwrap_or(live);
                let ignore = FieldValidation::Ignore;
                decode_object(resource, merged, Vec::new(), ignore, warnings).map_err(|fault| {
                    ApiError::untyped(format!(
                        "failed to convert new object ({}) to proper version: {}",
                        shown(&configuration.value),
                        fault.text()
                    ))
                })?
            }
        };
        if old.is_none() {
            // kube-apiserver ignores the version in this case.
            object::metadata_mut(&mut new).remove("resourceVersion");
        }
        managed_fields::set(&mut new, managers.encode());
        Ok(new)
    }

    /// Returns the Scale after an apply, and its managers.
    pub(super) fn applied_scale(
        &self,
        target: &Target,
        configuration: &AppliedConfiguration,
        paths: &ScalePaths,
        old: &Value,
        scale: &Value,
        warnings: &mut Warnings,
    ) -> Result<(Value, Managers), ApiError> {
        check_kind(configuration, "autoscaling/v1", "Scale")?;
        let managers = decode_managers(managed_fields::text(old))?;
        let mut managers = managers.of_scale(&paths.spec_replicas);
        let mut manager = target.field_manager(Operation::Apply);
        manager.api_version = "autoscaling/v1".to_owned();
        // Without a uid, replicas that no manager owns stay without a manager.
        let mut live = scale.clone();
        object::metadata_mut(&mut live).remove("uid");
        let outcome = managers.apply(Configuration {
            schema: scale_schema(),
            live: &live,
            applied: &configuration.value,
            manager: &manager,
            forces: configuration.forces,
            ignored: &FieldSet::default(),
            now: &format_time(self.clock.now()),
        });
        let merged = outcome.map_err(|err| apply_error(target, configuration, err))?;
        check_duplicates(configuration, warnings)?;
        Ok((merged.unwrap_or_else(|| scale.clone()), managers))
    }
}

/// Returns the schema of `autoscaling/v1` Scales.
pub(super) fn scale_schema() -> &'static TypeSchema {
    static SCHEMA: std::sync::LazyLock<TypeSchema> =
        std::sync::LazyLock::new(|| TypeSchema::of_definition("io.k8s.api.autoscaling.v1.Scale"));
    &SCHEMA
}

pub(super) fn decode_managers(text: Option<String>) -> Result<Managers, ApiError> {
    let Some(text) = text else {
        return Ok(Managers::default());
    };
    Managers::decode(&text)
        .map_err(|err| ApiError::untyped(format!("failed to decode managed fields: {err}")))
}

fn check_kind(configuration: &AppliedConfiguration, api_version: &str, kind: &str) -> Result<(), ApiError> {
    let value = &configuration.value;
    if value["apiVersion"] != api_version || value["kind"] != kind {
        return Err(ApiError::bad_request(format!(
            "invalid object type: {}",
            group_version_kind(value)
        )));
    }
    if value["metadata"]
        .get("managedFields")
        .is_some_and(|list| !list.is_null())
    {
        return Err(ApiError::bad_request("metadata.managedFields must be nil"));
    }
    Ok(())
}

/// Checks that the configuration does not name an object that does not exist.
fn check_identity(target: &Target, value: &Value) -> Result<(), ApiError> {
    let resource = target.resource.group_resource();
    let uid = object::uid(value);
    if uid.is_empty() {
        return Ok(());
    }
    let reason =
        format!("uid mismatch: the provided object specified uid {uid}, and no existing object was found");
    Err(ApiError::conflict(&resource, &target.name, &reason))
}

fn check_duplicates(configuration: &AppliedConfiguration, warnings: &mut Warnings) -> Result<(), ApiError> {
    let texts: Vec<String> = configuration
        .duplicates
        .iter()
        .map(|path| format!("duplicate field {path:?}"))
        .collect();
    match configuration.validation {
        FieldValidation::Strict if !texts.is_empty() => Err(ApiError::bad_request(format!(
            "error strict decoding YAML: {}",
            texts.join(", ")
        ))),
        FieldValidation::Warn => {
            warnings.extend(texts);
            Ok(())
        }
        FieldValidation::Strict | FieldValidation::Ignore => Ok(()),
    }
}

fn apply_error(target: &Target, configuration: &AppliedConfiguration, err: ApplyError) -> ApiError {
    match err {
        ApplyError::Conflicts(conflicts) => ApiError::apply_conflicts(&conflicts),
        ApplyError::InvalidConfiguration(faults) => ApiError::untyped(format!(
            "failed to create typed patch object ({}): {faults}",
            shown(&configuration.value)
        )),
        err @ ApplyError::Failed { .. } => {
            ApiError::untyped(format!("failed to apply {:?}: {err}", target.name))
        }
    }
}

/// Returns the namespace, name and kind of an object.
fn shown(value: &Value) -> String {
    format!(
        "{}/{}; {}",
        object::namespace(value),
        object::name(value),
        group_version_kind(value)
    )
}

fn group_version_kind(value: &Value) -> String {
    let api_version = value["apiVersion"].as_str().unwrap_or_default();
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
    let kind = value["kind"].as_str().unwrap_or_default();
    format!("{group}/{version}, Kind={kind}")
}
