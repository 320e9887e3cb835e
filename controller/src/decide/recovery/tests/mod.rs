//! Recoveries: tables of what begins and what does not, the way of one, and a world that breaks at any moment.

mod begin;
mod model;
mod progress;
pub(in crate::decide) mod scene;
