//! Fields of a request that have no effect on this server. A response header names them.

use http::{HeaderMap, HeaderValue};

use crate::openai::request::ignored::IGNORED_FIELDS;

/// Maximum number of names, and of bytes of a name. Names come from the client.
const MAX_NAMES: usize = 32;
const MAX_NAME_BYTES: usize = 64;

/// Names of ignored fields, such as `keep_alive` and `options.num_ctx`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IgnoredFields(Vec<String>);

impl IgnoredFields {
    /// Adds a name, unless it is unsafe in a header.
    pub fn add(&mut self, name: String) {
        let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
        if self.0.len() < MAX_NAMES && name.len() <= MAX_NAME_BYTES && name.bytes().all(is_safe) {
            self.0.push(name);
        }
    }

    /// Sets the header of the response, if there are any names.
    pub fn set_header(&self, headers: &mut HeaderMap) {
        if let Ok(names) = HeaderValue::from_str(&self.0.join(", "))
            && !self.0.is_empty()
        {
            headers.insert(IGNORED_FIELDS, names);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_has_only_safe_names() {
        let mut ignored = IgnoredFields::default();
        let mut headers = HeaderMap::new();
        ignored.set_header(&mut headers);
        assert!(headers.is_empty());
        for name in [
            "keep_alive",
            "options.num_ctx",
            "a,b",
            "a\nb",
            "é",
            &"x".repeat(65),
        ] {
            ignored.add(name.to_owned());
        }
        ignored.set_header(&mut headers);
        assert_eq!(headers[IGNORED_FIELDS], "keep_alive, options.num_ctx");
    }
}
