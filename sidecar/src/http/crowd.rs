//! Who is connected, counted in all and by address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// The connections there are.
#[derive(Debug)]
pub(super) struct Crowd {
    most: usize,
    most_per_address: usize,
    present: Mutex<HashMap<IpAddr, usize>>,
}

/// One connection; its place is free again when this is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    crowd: Arc<Crowd>,
    address: IpAddr,
}

impl Crowd {
    pub(super) fn new(most: usize, most_per_address: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            most_per_address,
            present: Mutex::new(HashMap::new()),
        })
    }

    /// A place for one more from this address, if there is one.
    pub(super) fn admit(self: &Arc<Self>, address: IpAddr) -> Option<Seat> {
        let address = address.to_canonical();
        let mut present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        let mine = present.get(&address).copied().unwrap_or_default();
        if mine >= self.most_per_address || present.values().sum::<usize>() >= self.most {
            return None;
        }
        present.insert(address, mine + 1);
        let crowd = Arc::clone(self);
        Some(Seat { crowd, address })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let present = &self.crowd.present;
        let mut present = present.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mine) = present.get_mut(&self.address) {
            *mine -= 1;
            if *mine == 0 {
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
    fn one_address_cannot_take_every_place() {
        let crowd = Crowd::new(3, 2);
        let seats = [crowd.admit(address(1)), crowd.admit(address(1))];
        assert!(seats.iter().all(Option::is_some));
        assert!(
            crowd.admit(address(1)).is_none(),
            "a third from one address"
        );
        let other = crowd.admit(address(2));
        assert!(other.is_some());
        assert!(crowd.admit(address(3)).is_none(), "a fourth in all");
    }

    #[test]
    fn a_place_is_free_again_when_its_connection_ends() {
        let crowd = Crowd::new(1, 1);
        let seat = crowd.admit(address(1));
        assert!(crowd.admit(address(2)).is_none());
        drop(seat);
        assert!(crowd.admit(address(2)).is_some());
        assert!(
            crowd.present.lock().unwrap().is_empty(),
            "addresses pile up"
        );
    }

    #[test]
    fn a_client_has_one_count_whichever_way_its_address_is_written() {
        let crowd = Crowd::new(9, 1);
        let seat = crowd.admit(address(1));
        assert!(seat.is_some());
        assert!(crowd.admit("::ffff:10.0.0.1".parse().unwrap()).is_none());
    }
}
