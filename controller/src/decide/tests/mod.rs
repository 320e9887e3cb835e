//! Claims about decisions, concern by concern; then about all of them at once.

mod again;
mod change;
pub(crate) mod fixture;
mod hands;
mod heal;
mod model;
mod props;
mod rolling;
