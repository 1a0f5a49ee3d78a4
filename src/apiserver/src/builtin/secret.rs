//! Secret: `stringData` is merged into `data`; the type is immutable.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Map, Value};

use super::{DATA_MAX_BYTES, check_data, check_immutable, decoded_bytes};
use crate::object;
use rooflet_schema::FieldError;

pub(super) fn default(secret: &mut Value) {
    let Some(map) = secret.as_object_mut() else { return };
    if let Some(Value::Object(texts)) = map.remove("stringData") {
        let data = map.entry("data").or_insert_with(|| Value::Object(Map::new()));
        if let Some(data) = data.as_object_mut() {
            for (key, text) in texts {
                data.insert(key, Value::from(BASE64.encode(text.as_str().unwrap_or_default())));
            }
        }
    }
    if map.get("type").is_none_or(|kind| kind == "") {
        map.insert("type".to_owned(), Value::from("Opaque"));
    }
}

const ACCOUNT_NAME: &str = "kubernetes.io/service-account.name";

/// Checks the required keys of known Secret types.
fn check_type(secret: &Value, errors: &mut Vec<FieldError>) {
    let data = &secret["data"];
    let mut require = |keys: &[&str]| {
        for key in keys.iter().filter(|key| data.get(**key).is_none()) {
            errors.push(FieldError::required(format!("data[{key}]"), ""));
        }
    };
    match object::text(secret, &["type"]) {
        "kubernetes.io/tls" => require(&["tls.crt", "tls.key"]),
        "kubernetes.io/ssh-auth" => require(&["ssh-privatekey"]),
        // Either key is sufficient.
        "kubernetes.io/basic-auth" if data.get("username").or(data.get("password")).is_none() => {
            require(&["username", "password"]);
        }
        "kubernetes.io/dockercfg" => check_json(data, ".dockercfg", errors),
        "kubernetes.io/dockerconfigjson" => check_json(data, ".dockerconfigjson", errors),
        "kubernetes.io/service-account-token"
            if object::text(secret, &["metadata", "annotations", ACCOUNT_NAME]).is_empty() =>
        {
            errors.push(FieldError::required(
                format!("metadata.annotations[{ACCOUNT_NAME}]"),
                "",
            ));
        }
        _ => {}
    }
}

fn check_json(data: &Value, key: &str, errors: &mut Vec<FieldError>) {
    let field = format!("data[{key}]");
    let Some(text) = data.get(key).and_then(Value::as_str) else {
        return errors.push(FieldError::required(field, ""));
    };
    let bytes = BASE64.decode(text).unwrap_or_default();
    if let Err(err) = serde_json::from_slice::<Map<String, Value>>(&bytes) {
        errors.push(FieldError::invalid_text(
            field,
            "<secret contents redacted>",
            &err.to_string(),
        ));
    }
}

pub(super) fn validate(secret: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let data = &secret["data"];
    check_data(data, "data", &mut errors);
    let values = data.as_object().into_iter().flatten();
    let bytes: usize = values
        .map(|(_, value)| value.as_str().map_or(0, decoded_bytes))
        .sum();
    if bytes > DATA_MAX_BYTES {
        errors.push(FieldError::too_long("data", DATA_MAX_BYTES as u64));
    }
    check_type(secret, &mut errors);
    if let Some(old) = old {
        if secret["type"] != old["type"] {
            errors.push(FieldError::invalid("type", &secret["type"], "field is immutable"));
        }
        errors.extend(check_immutable(secret, old, &["data"]));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn merges_string_data_and_defaults_the_type() {
        let mut secret = json!({"data": {"a": "YQ==", "b": "Yg=="}, "stringData": {"b": "new"}});
        default(&mut secret);
        assert_eq!(
            secret,
            json!({"data": {"a": "YQ==", "b": "bmV3"}, "type": "Opaque"})
        );
    }

    #[test]
    fn known_types_require_their_keys() {
        let check = |kind: &str, rest: Value, expect: &[&str]| {
            let mut secret = rest;
            secret["type"] = json!(format!("kubernetes.io/{kind}"));
            let got: Vec<String> = validate(&secret, None).iter().map(FieldError::summary).collect();
            assert_eq!(got, expect, "{kind}");
        };
        check(
            "basic-auth",
            json!({}),
            &["data[username]: Required value", "data[password]: Required value"],
        );
        check("basic-auth", json!({"data": {"password": ""}}), &[]);
        let unnamed = "metadata.annotations[kubernetes.io/service-account.name]: Required value";
        check("service-account-token", json!({}), &[unnamed]);
        let named = json!({"metadata": {"annotations": {"kubernetes.io/service-account.name": "a"}}});
        check("service-account-token", named, &[]);
        check(
            "dockerconfigjson",
            json!({}),
            &["data[.dockerconfigjson]: Required value"],
        );
        check("dockercfg", json!({"data": {".dockercfg": "e30="}}), &[]);
        check(
            "dockercfg",
            json!({"data": {".dockercfg": "eA=="}}),
            &[
                "data[.dockercfg]: Invalid value: \"<secret contents redacted>\": expected value at line 1 column 1",
            ],
        );
    }

    #[test]
    fn type_is_immutable_and_requires_its_keys() {
        let old = json!({"type": "Opaque"});
        let new = json!({"type": "kubernetes.io/tls", "data": {"tls.crt": ""}});
        let got: Vec<String> = validate(&new, Some(&old))
            .iter()
            .map(FieldError::summary)
            .collect();
        assert_eq!(
            got,
            [
                "data[tls.key]: Required value",
                "type: Invalid value: \"kubernetes.io/tls\": field is immutable"
            ]
        );
    }
}
