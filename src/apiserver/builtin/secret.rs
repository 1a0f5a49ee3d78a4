//! Secret: `stringData` is merged into `data`, the type never changes.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Map, Value};

use super::{DATA_MAX_BYTES, check_data, check_immutable, decoded_bytes};
use crate::apiserver::object;
use crate::schema::FieldError;

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

/// What secrets of some types must have in their data.
fn required_keys(kind: &str) -> &'static [&'static str] {
    match kind {
        "kubernetes.io/tls" => &["tls.crt", "tls.key"],
        "kubernetes.io/ssh-auth" => &["ssh-privatekey"],
        "kubernetes.io/dockercfg" => &[".dockercfg"],
        "kubernetes.io/dockerconfigjson" => &[".dockerconfigjson"],
        _ => &[],
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
    let kind = object::text(secret, &["type"]);
    for key in required_keys(kind).iter().filter(|key| data.get(**key).is_none()) {
        errors.push(FieldError::required(format!("data[{key}]"), ""));
    }
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
    fn string_data_is_merged_and_the_type_defaulted() {
        let mut secret = json!({"data": {"a": "YQ==", "b": "Yg=="}, "stringData": {"b": "new"}});
        default(&mut secret);
        assert_eq!(
            secret,
            json!({"data": {"a": "YQ==", "b": "bmV3"}, "type": "Opaque"})
        );
    }

    #[test]
    fn the_type_is_immutable_and_asks_for_keys() {
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
