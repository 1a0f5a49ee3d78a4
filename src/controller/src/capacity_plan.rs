//! Answers to CapacityPlans, in their status.
//!
//! [`writes`] derives status and event from the verdict of the capacity planner. [`reconciler`]
//! runs the planner and executes the writes.

mod reconciler;
mod writes;

pub(super) use reconciler::CapacityPlanReconciler;
