//! Limits concurrent connections, in total and per address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// Counts the open connections.
#[derive(Debug)]
pub(super) struct ConnectionLimiter {
    max_total: usize,
    max_per_address: usize,
    open_connections: Mutex<HashMap<IpAddr, usize>>,
}

/// One admitted connection; dropping it frees its slot.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    limiter: Arc<ConnectionLimiter>,
    address: IpAddr,
}

impl ConnectionLimiter {
    pub(super) fn new(max_total: usize, max_per_address: usize) -> Arc<Self> {
        Arc::new(Self {
            max_total,
            max_per_address,
            open_connections: Mutex::new(HashMap::new()),
        })
    }

    /// Admits one more connection of this address, unless a limit is reached.
    pub(super) fn try_acquire(self: &Arc<Self>, address: IpAddr) -> Option<ConnectionPermit> {
        // A dual-stack socket reports IPv4 clients as ::ffff:a.b.c.d.
        let address = address.to_canonical();
        let mut present = self
            .open_connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let current = present.get(&address).copied().unwrap_or_default();
        if current >= self.max_per_address || present.values().sum::<usize>() >= self.max_total {
            return None;
        }
        present.insert(address, current + 1);
        let limiter = Arc::clone(self);
        Some(ConnectionPermit { limiter, address })
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let present = &self.limiter.open_connections;
        let mut present = present.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(current) = present.get_mut(&self.address) {
            *current -= 1;
            if *current == 0 {
                // Otherwise the map would grow with every address that ever connected.
                present.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    #[test]
    fn one_address_cannot_use_all_connections() {
        let crowd = ConnectionLimiter::new(3, 2);
        let seats = [crowd.try_acquire(address(1)), crowd.try_acquire(address(1))];
        assert!(seats.iter().all(Option::is_some));
        assert!(
            crowd.try_acquire(address(1)).is_none(),
            "third connection of one address"
        );
        let other = crowd.try_acquire(address(2));
        assert!(other.is_some());
        assert!(
            crowd.try_acquire(address(3)).is_none(),
            "fourth connection in total"
        );
    }

    #[test]
    fn closed_connection_frees_its_slot() {
        let crowd = ConnectionLimiter::new(1, 1);
        let seat = crowd.try_acquire(address(1));
        assert!(crowd.try_acquire(address(2)).is_none());
        drop(seat);
        assert!(crowd.try_acquire(address(2)).is_some());
        assert!(
            crowd.open_connections.lock().unwrap().is_empty(),
            "addresses without connections remain"
        );
    }

    #[test]
    fn ipv4_mapped_address_shares_the_limit_of_its_ipv4_address() {
        let crowd = ConnectionLimiter::new(9, 1);
        let seat = crowd.try_acquire(address(1));
        assert!(seat.is_some());
        assert!(
            crowd
                .try_acquire("::ffff:10.0.0.1".parse().unwrap())
                .is_none()
        );
    }
}
