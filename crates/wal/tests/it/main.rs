//! Integration tests of the log: bytes written by etcd, corrupted bytes, random bytes.

#[cfg(test)]
mod damage;
#[cfg(test)]
mod disk;
#[cfg(test)]
mod overwrite;
#[cfg(test)]
mod props;
#[cfg(test)]
mod real;
#[cfg(test)]
mod repairing;
#[cfg(test)]
mod vectors;
