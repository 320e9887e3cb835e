//! Tests of recoveries: what starts one, its steps, and a model with faults and restarts at any time.

mod begin;
pub(in crate::decide) mod fixture;
mod model;
mod progress;

/// An incident for tests of other modules.
pub(crate) fn test_incident() -> mainstay_coordination::incident::Incident {
    fixture::incident(3, 0)
}
