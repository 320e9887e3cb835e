//! Verification of directories with one fault each.

#[cfg(test)]
mod clean_stop;
#[cfg(test)]
mod consistency;
#[cfg(test)]
mod corruption;
#[cfg(test)]
mod database;
#[cfg(test)]
mod log;
#[cfg(test)]
mod missing_parts;
#[cfg(test)]
mod real_etcd;
#[cfg(test)]
mod snapshots;
#[cfg(test)]
mod support;
#[cfg(test)]
mod valid_dirs;
