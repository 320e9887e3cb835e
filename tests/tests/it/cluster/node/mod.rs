//! What needs a hand on the node: components that stop, wires that are cut, bytes of volumes, programs that are killed. These
//! run on the machine's own cluster only; `cluster filter` leaves them out on one of somebody else.

mod alone;
mod cut;
mod damage;
mod mended;
mod outage;
mod soak;
mod upload;
mod volumes;
