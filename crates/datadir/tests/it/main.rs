//! Verification of directories with one fault each.

#[cfg(test)]
mod clean_stop;
#[cfg(test)]
mod database;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod log;
#[cfg(test)]
mod parts;
#[cfg(test)]
mod real;
#[cfg(test)]
mod relation;
#[cfg(test)]
mod snapshots;
#[cfg(test)]
mod sound;
#[cfg(test)]
mod support;
