//! Environment variables. An empty variable counts as unset, because shells expand unset variables
//! to empty texts.

use std::ffi::OsStr;

/// Returns the value of a variable. Values that are not Unicode count as unset.
pub fn variable(name: &str) -> Option<String> {
    unless_empty(std::env::var(name).ok())
}

/// Returns whether the variable is set and not empty.
pub fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| !value.is_empty())
}

/// Returns whether the variable is set and empty.
pub fn is_empty(name: impl AsRef<OsStr>) -> bool {
    std::env::var_os(name).is_some_and(|value| value.is_empty())
}

fn unless_empty(value: Option<String>) -> Option<String> {
    value.filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_variable_counts_as_unset() {
        let text = |value: &str| unless_empty(Some(value.to_owned()));
        assert_eq!((text(""), unless_empty(None)), (None, None));
        assert_eq!(text(" "), Some(" ".to_owned()));
        // Cargo or the shell sets PATH in every process.
        assert!(is_set("PATH") && variable("PATH").is_some());
        let unset = "ROOFLET_UNSET_VARIABLE";
        assert!(!is_set(unset) && variable(unset).is_none());
        assert!(!is_empty(unset) && !is_empty("PATH"));
    }
}
