//! Tests of decisions: by planner, then properties and models of all planners together.

pub(crate) mod fixture;
mod invariants;
mod manual_changes;
mod member_repair;
mod model;
mod recreated_stateful_set;
mod rollout;
mod spec_changes;
