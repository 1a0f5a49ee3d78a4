//! The vocabulary: group `rooflet.dev`, version `v1alpha1`. Data only; what the words mean is in the doc comments,
//! which `kubectl explain` shows.

pub(crate) mod conditions;
pub(crate) mod crd;
pub(crate) mod meta;
pub(crate) mod v1alpha1;

/// The API group of every kind of ours.
pub(crate) const GROUP: &str = "rooflet.dev";
/// The only version served so far.
pub(crate) const VERSION: &str = "v1alpha1";
