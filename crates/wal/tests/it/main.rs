//! Integration tests of the log: bytes written by etcd, corrupted bytes, random bytes.

#[cfg(test)]
mod damage;
#[cfg(test)]
mod overwrite;
#[cfg(test)]
mod props;
#[cfg(test)]
mod real_log;
#[cfg(test)]
mod support;
#[cfg(test)]
mod tail_repair;
#[cfg(test)]
mod vectors;
