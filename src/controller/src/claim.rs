//! Checks of PerformanceClaims, with the verdict in their status.
//!
//! [`writes`] derives status and event from the assessment of the claim. [`reconciler`] computes
//! the assessment and executes the writes.

mod reconciler;
mod writes;

pub(super) use reconciler::ClaimReconciler;
