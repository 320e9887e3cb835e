//! Tests of decisions: by planner, then properties and models of all planners together.

mod recreated_stateful_set;
mod spec_changes;
pub(crate) mod fixture;
mod manual_changes;
mod member_repair;
mod model;
mod invariants;
mod rollout;
