//! Loopback ports that belong to this process until it exits.
//!
//! A port that was free a moment ago can be taken by another test or by an outgoing connection, for which the kernel picks
//! ports from 32768 on. Therefore ports are allocated below that range in blocks, and a process owns a block while it
//! holds its lock file.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Mutex, PoisonError};

/// Above the well-known ports and those of Kubernetes, below the `NodePort` range (30000).
const FIRST_PORT: u16 = 11_000;
const BLOCK_SIZE: u16 = 64;
// 11000 + 290 * 64 stays below 30000.
const BLOCK_COUNT: u16 = 290;

#[derive(Debug)]
struct PortBlock {
    /// Locked until the process exits.
    _lock: File,
    remaining: std::ops::Range<u16>,
}

static ACQUIRED_BLOCKS: Mutex<Vec<PortBlock>> = Mutex::new(Vec::new());

/// A port that is unused and is allocated only once.
pub fn free_port() -> u16 {
    let mut taken = ACQUIRED_BLOCKS
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    loop {
        let next = taken.last_mut().and_then(|block| block.remaining.next());
        match next {
            Some(port) if is_free(port) => return port,
            Some(_) => {}
            None => taken.push(PortBlock::acquire()),
        }
    }
}

/// `N` free ports.
pub fn free_ports<const N: usize>() -> [u16; N] {
    [(); N].map(|()| free_port())
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

impl PortBlock {
    /// Locks the first free block, starting at one derived from the process ID to avoid contention.
    fn acquire() -> Self {
        let folder = std::env::temp_dir().join("etcd-mainstay-ports");
        fs::create_dir_all(&folder).expect("create the directory of lock files");
        let begin = u16::try_from(std::process::id() % u32::from(BLOCK_COUNT)).unwrap_or_default();
        (0..BLOCK_COUNT)
            .map(|n| (begin + n) % BLOCK_COUNT)
            .find_map(|number| {
                let lock = File::create(folder.join(number.to_string())).ok()?; // the file may belong to another user
                let first = FIRST_PORT + number * BLOCK_SIZE;
                lock.try_lock().is_ok().then_some(Self {
                    _lock: lock,
                    remaining: first..first + BLOCK_SIZE,
                })
            })
            .expect("a free block of ports")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_port_is_allocated_twice() {
        let ports: BTreeSet<u16> = (0..200).map(|_| free_port()).collect();
        assert_eq!(ports.len(), 200);
        assert!(ports.iter().all(|port| *port < 30_000), "{ports:?}");
    }

    #[test]
    fn port_in_use_is_not_free() {
        let [port, next] = free_ports();
        assert_ne!(port, next);
        let _listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
        assert!(!is_free(port));
    }

    #[test]
    fn port_block_has_one_holder() {
        let (one, other) = (PortBlock::acquire(), PortBlock::acquire());
        assert_ne!(one.remaining, other.remaining);
    }
}
