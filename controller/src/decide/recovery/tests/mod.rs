//! Recoveries: tables of what begins and what does not, the way of one, and a world that breaks at any moment.

mod begin;
mod model;
mod progress;
pub(in crate::decide) mod scene;

/// Any incident, for tests elsewhere.
pub(crate) fn test_incident() -> mainstay_coordination::incident::Incident {
    scene::incident(3, 0)
}
