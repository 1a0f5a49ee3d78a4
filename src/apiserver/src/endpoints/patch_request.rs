//! Patch requests: accepted formats of a resource, and application to an object.

use serde_json::Value;

use crate::endpoints::body::{self, Body};
use crate::endpoints::negotiate::{Encoding, essence};
use crate::endpoints::options::{FieldValidation, WriteOptions};
use crate::engine::{AppliedConfiguration, Warnings, decode_object, not_registered};
use crate::object::managed_fields;
use crate::registry::resource::{Origin, Resource};
use crate::status::ApiError;
use rooflet_apimachinery::patch::json::{JsonPatch, JsonPatchError};
use rooflet_apimachinery::patch::strategic;
use rooflet_base::json_syntax;
use rooflet_schema::{FieldError, gotext};

const JSON_PATCH: &str = "application/json-patch+json";
const MERGE_PATCH: &str = "application/merge-patch+json";
const STRATEGIC_MERGE_PATCH: &str = "application/strategic-merge-patch+json";
const APPLY_PATCH: &str = "application/apply-patch+yaml";

/// Members of metadata and of its managed fields, in the order of kube-apiserver's types.
const METADATA_MEMBERS: [&str; 22] = [
    "name",
    "generateName",
    "namespace",
    "selfLink",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "labels",
    "annotations",
    "ownerReferences",
    "finalizers",
    "managedFields",
    "manager",
    "operation",
    "apiVersion",
    "time",
    "fieldsType",
    "fieldsV1",
    "subresource",
];

#[derive(Debug)]
enum Format {
    Json(JsonPatch),
    Merge(Value),
    Strategic(Value),
}

/// Parsed patch. May be applied repeatedly.
#[derive(Debug)]
pub(crate) struct PatchRequest {
    format: Format,
    duplicates: Vec<String>,
    /// True if the patch reads or removes single entries of the managed fields.
    reads_managed_fields: bool,
}

/// Returns true for the media type of a server-side apply.
pub(crate) fn is_apply(content_type: &str) -> bool {
    essence(content_type) == APPLY_PATCH
}

/// Parses the configuration of a server-side apply.
pub(crate) fn read_configuration(
    bytes: &[u8],
    options: WriteOptions,
) -> Result<AppliedConfiguration, ApiError> {
    let undecodable = |reason: String| ApiError::bad_request(format!("error decoding YAML: {reason}"));
    let Body { value, duplicates } = body::parse(bytes, Encoding::Yaml)
        .map_err(|err| undecodable(format!("error converting YAML to JSON: yaml: {err}")))?;
    if !value.is_object() && !value.is_null() {
        let found = json_syntax::type_name(&value);
        return Err(undecodable(format!(
            "error unmarshaling JSON: while decoding JSON: json: cannot unmarshal {found} into Go value of type \
             map[string]interface {{}}"
        )));
    }
    Ok(AppliedConfiguration {
        value,
        forces: options.forces,
        duplicates,
        validation: options.validation,
    })
}

/// Returns true if a JSON patch has a path into the managed fields, or to a field with them.
fn reads_managed_fields(patch: &Value) -> bool {
    let operations = patch.as_array().into_iter().flatten();
    operations
        .flat_map(|operation| [&operation["path"], &operation["from"]])
        .filter_map(Value::as_str)
        .any(|path| matches!(path, "" | "/metadata") || path.starts_with("/metadata/managedFields"))
}

/// Returns the fault of a patched built-in object whose kind or version was changed.
fn type_fault(resource: &Resource, patched: &Value) -> Option<String> {
    let (kind, version) = (&patched["kind"], &patched["apiVersion"]);
    let is_same = *kind == resource.kind.as_str() && *version == resource.api_version().as_str();
    (!is_same).then(|| not_registered(kind, version))
}

fn json_patch_error(err: JsonPatchError) -> ApiError {
    match err {
        JsonPatchError::Malformed(_) => ApiError::bad_request(err.to_string()),
        JsonPatchError::TooManyOperations(_) => ApiError::too_large(&err.to_string()),
        JsonPatchError::Operation(_)
        | JsonPatchError::Rejected(_)
        | JsonPatchError::CopiedTooMuch(_)
        | JsonPatchError::TooDeep => ApiError::patch_does_not_apply(),
    }
}

impl PatchRequest {
    /// Parses a patch that is not an apply. Strategic merge patches are accepted only for built-in kinds, because they
    /// need the upstream types.
    pub(crate) fn read(content_type: &str, bytes: &[u8], is_built_in: bool) -> Result<Self, ApiError> {
        let accepted: &[&str] = if is_built_in {
            &[JSON_PATCH, MERGE_PATCH, STRATEGIC_MERGE_PATCH, APPLY_PATCH]
        } else {
            &[JSON_PATCH, MERGE_PATCH, APPLY_PATCH]
        };
        let media_type = essence(content_type);
        if is_apply(content_type) || !accepted.contains(&media_type.as_str()) {
            return Err(if is_built_in {
                ApiError::unsupported_patch_type()
            } else {
                ApiError::unsupported_media_type(accepted)
            });
        }
        let Body {
            value: patch,
            duplicates,
        } = body::parse(bytes, Encoding::Json)
            .map_err(|err| ApiError::bad_request(format!("error decoding patch: {err}")))?;
        let reads_managed_fields = reads_managed_fields(&patch);
        let format = match media_type.as_str() {
            JSON_PATCH => Format::Json(JsonPatch::parse(&patch).map_err(json_patch_error)?),
            _ if !patch.is_object() => {
                return Err(ApiError::bad_request(format!(
                    "error decoding patch: json: cannot unmarshal {} into Go value of type map[string]interface {{}}",
                    json_syntax::type_name(&patch)
                )));
            }
            STRATEGIC_MERGE_PATCH => Format::Strategic(patch),
            _ => Format::Merge(patch),
        };
        Ok(Self {
            format,
            duplicates,
            reads_managed_fields,
        })
    }

    /// Applies the patch to an object in external form.
    pub(crate) fn apply(&self, mut object: Value) -> Result<Value, ApiError> {
        match &self.format {
            Format::Json(operations) => operations.apply(&object).map_err(json_patch_error),
            Format::Merge(patch) => {
                json_patch::merge(&mut object, patch);
                Ok(object)
            }
            Format::Strategic(patch) => {
                strategic::apply(&mut object, patch).map_err(|err| ApiError::bad_request(err.to_string()))?;
                Ok(object)
            }
        }
    }

    /// Applies the patch to an object in working form and decodes the result.
    pub(crate) fn apply_to(
        &self,
        resource: &Resource,
        working: &Value,
        validation: FieldValidation,
        warnings: &mut Warnings,
    ) -> Result<Value, ApiError> {
        let mut working = working.clone();
        let managers = managed_fields::take(&mut working);
        if self.reads_managed_fields {
            managed_fields::set(&mut working, managers.clone());
        }
        let undecodable = |mut patched: Value, text: &str| {
            if let (Some(managers), false) = (managers.clone(), self.reads_managed_fields)
                && patched["metadata"].is_object()
            {
                managed_fields::set(&mut patched, Some(managers));
                managed_fields::expand(&mut patched);
            }
            let is_built_in = resource.custom().is_none();
            self.undecodable(&patched, is_built_in, text)
        };
        let patched = self.apply(resource.external(working))?;
        if !patched.is_object() {
            return Err(ApiError::patch_does_not_apply());
        }
        if let Origin::BuiltIn(_) = &resource.origin
            && let Some(text) = type_fault(resource, &patched)
        {
            return Err(undecodable(patched, &text));
        }
        if validation == FieldValidation::Strict
            && let Format::Json(patch) = &self.format
            && let [_, ..] = patch.unknown_members()
        {
            let text = format!("strict decoding error: {}", patch.unknown_members().join(", "));
            return Err(undecodable(patched, &text));
        }
        let shown = patched.clone();
        decode_object(resource, patched, self.duplicates.clone(), validation, warnings)
            .map_err(|fault| undecodable(shown, &fault.text()))
    }

    /// Returns the error of a patch whose result is not an object of the resource.
    fn undecodable(&self, patched: &Value, is_built_in: bool, text: &str) -> ApiError {
        let metadata_order: &[&str] = match is_built_in && !self.changes_metadata() {
            true => &METADATA_MEMBERS,
            false => &[],
        };
        let mut fields: Vec<_> = patched.as_object().into_iter().flatten().collect();
        fields.sort_by_key(|(name, _)| *name);
        let members: Vec<String> = fields
            .into_iter()
            .map(|(name, value)| {
                let order = if name == "metadata" { metadata_order } else { &[] };
                format!(
                    "{}:{}",
                    gotext::json(&Value::from(name.as_str())),
                    gotext::json_in_order(value, order)
                )
            })
            .collect();
        let shown = format!("{{{}}}", members.join(","));
        ApiError::invalid("", "", "", &[FieldError::invalid_text("patch", &shown, text)])
    }

    /// Returns true if the patch contains a part of the metadata.
    fn changes_metadata(&self) -> bool {
        match &self.format {
            Format::Json(patch) => patch.changes("/metadata"),
            Format::Merge(patch) | Format::Strategic(patch) => patch.get("metadata").is_some(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(content_type: &str, body: &str, is_built_in: bool) -> Result<&'static str, u16> {
        PatchRequest::read(content_type, body.as_bytes(), is_built_in)
            .map(|patch| match patch.format {
                Format::Json(_) => "json",
                Format::Merge(_) => "merge",
                Format::Strategic(_) => "strategic",
            })
            .map_err(|err| err.code().as_u16())
    }

    #[test]
    fn media_type_selects_the_format() {
        assert_eq!(
            read("application/merge-patch+json; charset=utf-8", "{}", false),
            Ok("merge")
        );
        assert_eq!(
            read("application/strategic-merge-patch+json", "{}", true),
            Ok("strategic")
        );
        assert_eq!(read("application/json-patch+json", "[]", false), Ok("json"));
        assert_eq!(
            read("application/strategic-merge-patch+json", "{}", false),
            Err(415)
        );
        assert_eq!(read("application/json", "{}", true), Err(415));
    }

    #[test]
    fn rejects_patches_of_invalid_shape_or_size() {
        assert_eq!(read(JSON_PATCH, "{}", false), Err(400));
        assert_eq!(read(MERGE_PATCH, "[]", false), Err(400));
        assert_eq!(read(MERGE_PATCH, "{", false), Err(400));
        let operation = r#"{"op":"remove","path":"/a"}"#;
        let many = format!("[{}{operation}]", format!("{operation},").repeat(10_000));
        assert_eq!(read(JSON_PATCH, &many, false), Err(413));
    }
}
