//! Writer of the protobuf messages of OpenAPI documents. Fields with default values are omitted.

use rooflet_base::yaml;
use serde_json::Value;

/// Returns the members of an object, none for other values.
pub fn object(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

/// Returns the items of a list, none for other values.
pub fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Message that is being encoded.
#[derive(Default)]
pub struct Message(Vec<u8>);

impl Message {
    /// Returns the encoded fields.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push((number as u8) | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    pub(super) fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    /// Adds a message that `fill` encodes.
    pub fn nested(&mut self, field: u64, fill: impl FnOnce(&mut Self)) {
        let mut nested = Self::default();
        fill(&mut nested);
        self.bytes(field, &nested.0);
    }

    /// Adds an entry of a map: a message with name and value.
    pub fn named(&mut self, field: u64, name: &str, fill: impl FnOnce(&mut Self)) {
        self.nested(field, |entry| {
            entry.bytes(1, name.as_bytes());
            entry.nested(2, fill);
        });
    }

    /// Adds a string. Other values add nothing.
    pub fn text(&mut self, field: u64, value: &Value) {
        if let Some(text) = value.as_str().filter(|text| !text.is_empty()) {
            self.bytes(field, text.as_bytes());
        }
    }

    /// Adds each string of a list.
    pub fn texts(&mut self, field: u64, values: &Value) {
        for text in list(values).filter_map(Value::as_str) {
            self.bytes(field, text.as_bytes());
        }
    }

    /// Adds `true`. Other values add nothing.
    pub fn bool(&mut self, field: u64, value: &Value) {
        if value == true {
            self.flag(field, true);
        }
    }

    /// Adds a truth value also if it is false, which selects an alternative of a message.
    pub fn flag(&mut self, field: u64, value: bool) {
        self.varint(field << 3);
        self.varint(u64::from(value));
    }

    /// Adds an integer other than zero.
    pub fn integer(&mut self, field: u64, value: &Value) {
        if let Some(number) = value.as_u64().filter(|number| *number != 0) {
            self.varint(field << 3);
            self.varint(number);
        }
    }

    /// Adds a number other than zero.
    pub fn double(&mut self, field: u64, value: &Value) {
        if let Some(number) = value.as_f64().filter(|number| *number != 0.0) {
            self.number(field, number);
        }
    }

    /// Adds a number also if it is zero, which selects an alternative of a message.
    pub(super) fn number(&mut self, field: u64, number: f64) {
        self.varint(field << 3 | 1);
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    /// Adds any value as YAML.
    pub fn any(&mut self, field: u64, value: &Value) {
        let text = yaml::to_string(value).unwrap_or_else(|_| value.to_string());
        self.nested(field, |any| any.bytes(2, text.as_bytes()));
    }

    /// Adds the members whose names start with `x-`, as named values in YAML.
    pub fn extensions(&mut self, field: u64, fields: &Value) {
        for (name, value) in object(fields).filter(|(name, _)| name.starts_with("x-")) {
            self.nested(field, |entry| {
                entry.bytes(1, name.as_bytes());
                entry.any(2, value);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Texts that kube-apiserver 1.36.2 returns.
    #[test]
    fn values_of_extensions_have_the_yaml_of_kube_apiserver() {
        let text = |value: Value| {
            let mut message = Message::default();
            message.any(1, &value);
            String::from_utf8_lossy(&message.0[4..]).into_owned()
        };
        let kind = json!({"group": "", "kind": "ComponentStatus", "version": "v1"});
        assert_eq!(text(kind), "group: \"\"\nkind: ComponentStatus\nversion: v1\n");
        assert_eq!(text(json!(["name"])), "- name\n");
        assert_eq!(text(json!("map")), "map\n");
    }
}
