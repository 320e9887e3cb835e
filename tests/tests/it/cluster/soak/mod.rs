//! What `make soak` runs: the claims of `make test` again, at more moments, with more members, or for longer. What needs a hand
//! on the node: `node::soak`.

mod killed;
mod recoveries;
mod variants;
