//! Decoding of a client's object to the working form: checks type members, drops unknown fields,
//! applies defaults.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::audit::Annotations;
use crate::builtin;
use crate::endpoints::body::{self, Body};
use crate::endpoints::negotiate::Encoding;
use crate::endpoints::options::FieldValidation;
use crate::object::managed_fields;
use crate::registry::resource::{Origin, Resource};
use crate::status::ApiError;
use rooflet_apimachinery::typed::DecodeTypeError;
use rooflet_base::json_syntax;
use rooflet_schema::FieldError;

/// Maximum warnings of a response. Some clients read at most 100 headers.
const WARNINGS_MAX: usize = 64;

/// Warnings for the client, sent as Warning headers. Further warnings are dropped. Also contains the
/// annotations of the audit event.
#[derive(Debug, Default)]
pub(crate) struct Warnings {
    texts: Vec<String>,
    annotations: Annotations,
}

impl Warnings {
    pub(crate) fn add(&mut self, text: impl Into<String>) {
        let text = text.into();
        if self.texts.len() < WARNINGS_MAX && !self.texts.contains(&text) {
            self.texts.push(text);
        }
    }

    pub(crate) fn extend(&mut self, texts: impl IntoIterator<Item = String>) {
        texts.into_iter().for_each(|text| self.add(text));
    }

    /// Adds annotations of the audit event.
    pub(crate) fn annotate(&mut self, annotations: BTreeMap<String, String>) {
        self.annotations.0.extend(annotations);
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.extend(other.texts);
        self.annotate(other.annotations.0);
    }

    pub(crate) fn into_parts(self) -> (Vec<String>, Annotations) {
        (self.texts, self.annotations)
    }
}

/// Decoding error of an object.
#[derive(Debug)]
pub(crate) enum DecodeFault {
    /// Error at any level of field validation.
    Malformed(DecodeTypeError),
    /// Type of a field in the metadata of an embedded resource.
    Embedded(FieldError),
    /// Error of strict field validation: `unknown field "…"`, `duplicate field "…"`.
    Strict(Vec<String>),
}

impl DecodeFault {
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Malformed(err) => err.to_string(),
            Self::Embedded(err) => err.summary(),
            Self::Strict(texts) => format!("strict decoding error: {}", texts.join(", ")),
        }
    }
}

/// Decodes the body of a create or update to the working form.
pub(crate) fn request_body(
    resource: &Resource,
    bytes: &[u8],
    encoding: Encoding,
    validation: FieldValidation,
    warnings: &mut Warnings,
) -> Result<Value, ApiError> {
    let unrecognized = |reason: &str| {
        ApiError::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): {reason} ({})",
            resource.kind,
            body::summary(bytes)
        ))
    };
    let Body { value, duplicates } = body::parse(bytes, encoding).map_err(|err| match encoding {
        Encoding::Json => unrecognized(&format!("couldn't get version/kind; json parse error: {err}")),
        Encoding::Yaml => unrecognized(&format!("yaml: {err}")),
        Encoding::Protobuf => ApiError::bad_request(err.to_string()),
    })?;
    if !value.is_object() {
        let reason = format!(
            "couldn't get version/kind; json parse error: json: cannot unmarshal {} into Go value of type struct {{ \
             APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }}",
            json_syntax::type_name(&value)
        );
        return Err(unrecognized(&reason));
    }
    let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let (kind, api_version) = (text("kind"), text("apiVersion"));
    let is_custom = resource.custom().is_some();
    if is_custom && kind.is_empty() {
        let shown = String::from_utf8_lossy(bytes);
        return Err(unrecognized(&format!("Object 'Kind' is missing in '{shown}'")));
    }
    if api_version.matches('/').count() > 1 {
        return Err(unrecognized(&format!(
            "unexpected GroupVersion string: {api_version}"
        )));
    }
    let expected = resource.api_version();
    // The path determines the type of built-in kinds if the body has none.
    if is_custom && api_version != expected {
        if validation == FieldValidation::Warn {
            // No schema describes the other version.
            let fields = value.as_object().into_iter().flatten();
            let unknown =
                fields.filter(|(name, _)| !matches!(name.as_str(), "apiVersion" | "kind" | "metadata"));
            warnings.extend(unknown.map(|(name, _)| format!("unknown field {name:?}")));
        }
        return Err(ApiError::bad_request(format!(
            "the API version in the data ({api_version}) does not match the expected API version ({expected})"
        )));
    }
    let or = |given: String, expected: &str| {
        if given.is_empty() {
            expected.to_owned()
        } else {
            given
        }
    };
    let (shown_kind, api_version) = (or(kind, &resource.kind), or(api_version, &expected));
    if !is_custom && (api_version != expected || shown_kind != resource.kind) {
        let version = api_version.rsplit('/').next().unwrap_or_default();
        let reason = if builtin::is_kind(&api_version, &shown_kind) {
            format!(
                "converting ({version}.{shown_kind}) to ({}.{}): unknown conversion",
                builtin::go_package(&resource.group),
                resource.kind
            )
        } else {
            not_registered(
                &Value::from(shown_kind.as_str()),
                &Value::from(api_version.as_str()),
            )
        };
        return Err(ApiError::bad_request(format!(
            "{shown_kind} in version {version:?} cannot be handled as a {}: {reason}",
            resource.kind
        )));
    }
    object(resource, value, duplicates, validation, warnings).map_err(|fault| {
        ApiError::bad_request(format!(
            "{shown_kind} in version {:?} cannot be handled as a {}: {}",
            resource.version,
            resource.kind,
            fault.text()
        ))
    })
}

/// Returns the fault of a built-in object of an unknown kind or version, in the words of
/// kube-apiserver.
pub(crate) fn not_registered(kind: &Value, api_version: &Value) -> String {
    format!("no kind {kind} is registered for version {api_version} in scheme \"pkg/runtime/scheme.go:111\"")
}

/// Converts an object from external to working form.
pub(crate) fn object(
    resource: &Resource,
    value: Value,
    duplicates: Vec<String>,
    validation: FieldValidation,
    warnings: &mut Warnings,
) -> Result<Value, DecodeFault> {
    let resets_managers = value["metadata"]["managedFields"]
        .as_array()
        .is_some_and(Vec::is_empty);
    let (mut value, unknown) = match &resource.origin {
        Origin::BuiltIn(built_in) => {
            let decoded = builtin::types()
                .decode(built_in.facts().definition, value)
                .map_err(DecodeFault::Malformed)?;
            let mut working = built_in.stored_form(decoded.value);
            if let Some(map) = working.as_object_mut() {
                map.remove("apiVersion");
                map.remove("kind");
            }
            built_in.default(&mut working);
            (working, decoded.unknown)
        }
        Origin::Custom(custom) => {
            let mut working = value;
            let mut unknown = Vec::new();
            if let Some(map) = working.as_object_mut() {
                let metadata = map.remove("metadata").unwrap_or(Value::Null);
                let decoded = builtin::types()
                    .decode_metadata(metadata)
                    .map_err(DecodeFault::Malformed)?;
                map.insert("metadata".to_owned(), decoded.value);
                unknown = decoded.unknown;
            }
            if let Some(fault) = custom.schema.embedded_type_fault(&working) {
                return Err(DecodeFault::Embedded(fault));
            }
            unknown.extend(custom.schema.prune(&mut working));
            custom.schema.apply_defaults(&mut working);
            (working, unknown)
        }
    };
    let managers = managed_fields::take(&mut value);
    let managers = managers.or_else(|| resets_managers.then(|| "[]".to_owned()));
    if managers.is_some() {
        managed_fields::set(&mut value, managers);
    }
    let faults: Vec<String> = duplicates
        .iter()
        .map(|path| format!("duplicate field {path:?}"))
        .chain(unknown.iter().map(|path| format!("unknown field {path:?}")))
        .collect();
    match validation {
        FieldValidation::Ignore => {}
        FieldValidation::Warn => warnings.extend(faults),
        FieldValidation::Strict if faults.is_empty() => {}
        FieldValidation::Strict => return Err(DecodeFault::Strict(faults)),
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builtin::BuiltIn;
    use serde_json::json;

    fn read(body: &str, validation: FieldValidation) -> Result<(Value, Vec<String>), String> {
        let resource = Resource::built_in(BuiltIn::ConfigMap);
        let mut warnings = Warnings::default();
        request_body(
            &resource,
            body.as_bytes(),
            Encoding::Json,
            validation,
            &mut warnings,
        )
        .map(|value| (value, warnings.into_parts().0))
        .map_err(|err| err.message().to_owned())
    }

    #[test]
    fn built_in_body_may_omit_type() {
        let got = read(
            r#"{"metadata":{"name":"a"},"data":{"k":"v"}}"#,
            FieldValidation::Strict,
        )
        .expect("decodes");
        assert_eq!(got.0, json!({"metadata": {"name": "a"}, "data": {"k": "v"}}));
    }

    #[test]
    fn unknown_and_duplicate_fields_warn_or_fail() {
        let body = r#"{"metadata":{"name":"a"},"data":{"k":"v","k":"w"},"bogus":1}"#;
        let (_, warnings) = read(body, FieldValidation::Warn).expect("warned");
        assert_eq!(
            warnings,
            ["duplicate field \"data.k\"", "unknown field \"bogus\""]
        );
        assert_eq!(
            read(body, FieldValidation::Strict).expect_err("strict"),
            "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: duplicate field \
             \"data.k\", unknown field \"bogus\""
        );
        assert_eq!(
            read(body, FieldValidation::Ignore).expect("ignored").1,
            Vec::<String>::new()
        );
    }

    #[test]
    fn rejects_body_of_another_version() {
        assert_eq!(
            read(r#"{"apiVersion":"v2","kind":"ConfigMap"}"#, FieldValidation::Warn).expect_err("version"),
            "ConfigMap in version \"v2\" cannot be handled as a ConfigMap: no kind \"ConfigMap\" is registered for version \
             \"v2\" in scheme \"pkg/runtime/scheme.go:111\""
        );
        assert!(
            read("{", FieldValidation::Warn)
                .expect_err("cut")
                .contains("couldn't get version/kind; json parse error")
        );
        assert!(read("[]", FieldValidation::Warn).is_err());
    }
}
