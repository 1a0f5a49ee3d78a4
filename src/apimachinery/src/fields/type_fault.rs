//! Violations of a type schema.

use std::fmt;

/// Violation at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TypeFault {
    /// Path from the value that was checked, for example `.spec.bogus`.
    pub(super) path: String,
    pub(super) message: String,
}

/// All violations of a value. Not empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TypeFaults(pub(super) Vec<TypeFault>);

impl TypeFaults {
    pub(super) fn one(message: impl Into<String>) -> Self {
        Self(vec![TypeFault {
            path: String::new(),
            message: message.into(),
        }])
    }

    /// Adds a step in front of every path.
    pub(super) fn below(mut self, step: &impl fmt::Display) -> Self {
        for fault in &mut self.0 {
            fault.path.insert_str(0, &step.to_string());
        }
        self
    }

    pub(super) fn result(faults: Vec<TypeFault>) -> Result<(), Self> {
        if faults.is_empty() {
            Ok(())
        } else {
            Err(Self(faults))
        }
    }
}

impl fmt::Display for TypeFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

impl fmt::Display for TypeFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [fault] = self.0.as_slice() {
            return fault.fmt(f);
        }
        f.write_str("errors:")?;
        for fault in &self.0 {
            write!(f, "\n  {fault}")?;
        }
        Ok(())
    }
}

impl std::error::Error for TypeFaults {}
