//! Verification against directories with one thing wrong each.

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
