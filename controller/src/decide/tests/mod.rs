//! Tests of decisions: by planner, then properties and models of all planners together.

mod again;
mod change;
pub(crate) mod fixture;
mod hands;
mod heal;
mod model;
mod props;
mod rolling;
