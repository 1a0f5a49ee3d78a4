//! Names of models. Ollama's names end in a tag, and clients append `:latest` to a name without one.

const DEFAULT_TAG: &str = ":latest";

/// Returns the name without the default tag. `None` if the name has no such tag.
pub fn without_default_tag(name: &str) -> Option<&str> {
    name.strip_suffix(DEFAULT_TAG).filter(|name| !name.is_empty())
}

/// Returns the name with a tag, as in lists of models.
pub(super) fn with_tag(name: &str) -> String {
    match name.contains(':') {
        true => name.to_owned(),
        false => format!("{name}{DEFAULT_TAG}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_tag_is_optional() {
        assert_eq!(without_default_tag("guide:latest"), Some("guide"));
        assert_eq!(without_default_tag("team/guide:latest"), Some("team/guide"));
        for name in ["guide", "guide:8b", ":latest", "guide:latest:8b"] {
            assert_eq!(without_default_tag(name), None, "{name}");
        }
        assert_eq!(with_tag("team/guide"), "team/guide:latest");
        assert_eq!(with_tag("guide:8b"), "guide:8b");
    }
}
